"""Depth: a prompt passed through layers approaches the Gaussian recursion as it grows."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key

import largeprompt as lp
from reproduction.mutants import plus, power_of, times
from reproduction.panels import LENGTH, Panel, Series
from reproduction.studies._draws import normals
from reproduction.studies._pushed_tokens import pushed_tokens
from reproduction.study import Check, Config, Patch, Study, at_most, between, power

_DIM = 3
_AT_ONCE = 8  # prompts in a batch


def random_layers(key: Key[Array, ""], d: int, depth: int, heads: int) -> list[lp.Layer]:
    """Layers of small random heads, so that scores stay of order one through the depth."""
    scale = 0.5 * d**-0.5
    (entries,) = normals(key, (depth, heads, 2, d, d))
    return [lp.Layer([lp.Head(U=scale * U, V=scale * V) for U, V in layer]) for layer in entries]


def _start() -> lp.Gaussian:
    return lp.Gaussian(jnp.full(_DIM, 0.3), jnp.diag(jnp.array([1.0, 0.5, 0.0])))


def depth_errors(
    key: Key[Array, ""], lengths: list[int], replicates: int, depth: int
) -> Float[np.ndarray, "lengths replicates depth"]:
    """Squared distance of mean and covariance to the Gaussian recursion, after each layer."""
    for_layers, for_tokens = jax.random.split(key)
    layers = random_layers(for_layers, _DIM, depth=depth, heads=2)
    start = _start()
    limits = [start]
    for layer in layers:
        limits.append(layer(limits[-1]))  # pyright: ignore[reportArgumentType]

    # one program for all layers, in batches of prompts: compile time and memory stay bounded
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *zip(layers, limits[1:], strict=True))

    def through(prompt: lp.Empirical, step: tuple) -> tuple[lp.Empirical, Float[Array, ""]]:
        layer, limit = step
        pushed = layer(prompt)
        gap_of_means, gap_of_covs = pushed.mean() - limit.mean(), pushed.cov() - limit.cov()
        return pushed, jnp.sum(gap_of_means**2) + jnp.sum(gap_of_covs**2)

    def squared_errors(key: Key[Array, ""], length: int) -> Float[Array, " depth"]:
        return jax.lax.scan(through, start.sample(key, length), stacked)[1]

    keys = jax.random.split(for_tokens, replicates)
    return np.stack(
        [
            jax.lax.map(lambda k, n=n: squared_errors(k, n), keys, batch_size=_AT_ONCE)
            for n in lengths
        ]
    )


def _by_hand(
    key: Key[Array, ""], length: int, prompts: int, depth: int
) -> Float[np.ndarray, "prompts depth"]:
    """The same squared distances in NumPy, from other prompts."""
    for_layers, for_tokens = jax.random.split(key)
    layers = random_layers(for_layers, _DIM, depth=depth, heads=2)
    deviation = np.sqrt(np.array([1.0, 0.5, 0.0]))
    x = 0.3 + deviation * np.asarray(jax.random.normal(for_tokens, (prompts, length, _DIM)))
    m, G = np.full(_DIM, 0.3), np.diag(deviation**2)
    errors = []
    for layer in layers:
        parts = [(np.asarray(head.U), np.asarray(head.V)) for head in layer.heads]
        pushed, slope, shift = x, np.eye(_DIM), np.zeros((_DIM, _DIM))
        for U, V in parts:
            scores = x @ U.T @ x.transpose(0, 2, 1)  # queries, tokens
            terms = np.exp(scores - scores.max(-1, keepdims=True))
            pushed = pushed + terms / terms.sum(-1, keepdims=True) @ x @ V.T
            slope, shift = slope + V @ G @ U, shift + V
        x, m, G = pushed, slope @ m + shift @ m, slope @ G @ slope.T
        centred = x - x.mean(1, keepdims=True)
        cov = centred.transpose(0, 2, 1) @ centred / length
        errors.append(((x.mean(1) - m) ** 2).sum(1) + ((cov - G) ** 2).sum((1, 2)))
    return np.stack(errors, 1)


def _at_a_query(key: Key[Array, ""], lengths: list[int], prompts: int) -> xr.Dataset:
    """Squared error of each head of the first layer at a query outside the prompt.

    Sampled in NumPy, and in closed form.
    """
    for_layers, for_tokens = jax.random.split(key)
    (layer,) = random_layers(for_layers, _DIM, depth=1, heads=2)
    z, start = np.array([1.0, -0.5, 0.7]), _start()
    m, G = np.asarray(start.mean()), np.asarray(start.cov())
    found = []
    for length, here in zip(lengths, jax.random.split(for_tokens, len(lengths)), strict=True):
        x = m + np.sqrt(G) @ np.asarray(jax.random.normal(here, (prompts, length, _DIM, 1)))
        x = x[..., 0]
        for head in layer.heads:
            U, V = np.asarray(head.U), np.asarray(head.V)
            weights = np.exp(x @ U @ z)
            output = np.einsum("nl,nld->nd", weights, x) / weights.sum(1, keepdims=True)
            squares = (((output - m - G @ U @ z) @ V.T) ** 2).sum(1)
            found.append((squares.mean(), squares.std(ddof=1) / prompts**0.5))
    numbers = np.array(found).reshape(len(lengths), len(layer.heads), 2).transpose(1, 0, 2)
    at = np.array(lengths, np.float64)
    exact = [np.asarray(lp.output_error(head, start, z, at)) for head in layer.heads]
    dims = ("head", "query_length")
    return xr.Dataset(
        {
            "query_error": (dims, numbers[..., 0]),
            "query_error_error": (dims, numbers[..., 1]),
            "query_exact": (dims, np.array(exact)),
        },
        {"query_length": at},
    )


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """The squared distance of the pushed particles to the pushed Gaussian, the first layer against
    its exact error, and the law of the tokens after it.
    """
    lengths, depth, replicates = config["lengths"], config["depth"], config["replicates"]
    draws = depth_errors(key, lengths, replicates, depth)
    again = _by_hand(key, lengths[0], config["by_hand"], depth)
    data = xr.Dataset(
        {
            "squared_error": (("layer", "length"), draws.mean(1).T),
            "squared_error_error": (("layer", "length"), draws.std(1, ddof=1).T / replicates**0.5),
            "by_hand": ("layer", again.mean(0)),
            "by_hand_error": ("layer", again.std(0, ddof=1) / len(again) ** 0.5),
        },
        {"layer": np.arange(1, depth + 1), "length": np.array(lengths, np.float64)},
    )
    ends = [lengths[0], lengths[-1]]
    at_a_query = _at_a_query(jax.random.fold_in(key, 1), ends, config["by_hand"])
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    sizes = (config["pushed_lengths"], config["pushed_prompts"], config["pair_nodes"])
    return data.merge(at_a_query, compat="no_conflicts").merge(pushed_tokens(rng, *sizes))


def _pushed_checks(data: xr.Dataset) -> list[Check]:
    """The exact law of the tokens after one layer against particles, and its way to the limit."""
    names = {
        "mean": "mean of a token",
        "cov": "covariance of a token",
        "shared": "covariance of two tokens",
    }
    pushed = {name: data[f"pushed_{name}"] for name in names}
    errors = {name: data[f"pushed_{name}_error"] for name in names}
    gap = np.sqrt(
        ((pushed["mean"] - data.pushed_mean_limit) ** 2).sum("i")
        + ((pushed["cov"] - data.pushed_cov_limit) ** 2).sum(["i", "j"])
    )
    diagonal = np.einsum("lii->l", pushed["shared"].values)
    expected = pushed["shared"].isel(pushed_length=-1) + data.self_shared_extra
    largest = abs(expected).max()
    surplus = abs(data.self_shared_sampled - expected) - 0.1 * largest
    logs = np.log(data.pushed_length.values)
    slopes = [np.polyfit(logs, np.log(values), 1)[0] for values in (gap.values, diagonal)]
    return [
        *(
            at_most(
                f"one layer, tokens that read one prompt: {text}, exact against particles, in "
                "standard errors",
                (np.abs(pushed[name] - data[f"pushed_{name}_sampled"]) / errors[name]).max(),
                5.0,
            )
            for name, text in names.items()
        ),
        between(
            "one layer: exponent of L in the distance of mean and covariance to the recursion",
            slopes[0],
            -1.1,
            -0.7,
        ),
        between("one layer: exponent of L in the covariance of two tokens", slopes[1], -1.1, -0.85),
        at_most(
            f"self-attention, L = {data.pushed_length.values[-1]:g}: covariance of two tokens "
            "against first order, beyond a tenth of its largest entry, in standard errors",
            (surplus / data.self_shared_error).max(),
            4.0,
        ),
        at_most(
            "self-attention: standard error over the largest entry",
            data.self_shared_error.max() / largest,
            0.1,
            "accuracy",
        ),
        *(
            at_most(
                f"particles: standard error of the {text} over its largest entry",
                (errors[name].max(per) / abs(pushed[name]).max(per)).max(),
                0.2,
                "accuracy",
            )
            for name, text in names.items()
            for per in [[dim for dim in pushed[name].dims if dim != "pushed_length"]]
        ),
    ]


def examine(data: xr.Dataset) -> list[Check]:
    """The rate 1/L at every depth, the same numbers in NumPy, and the exact error of one layer."""
    logs, checks = np.log(data.length.values), []
    for layer in data.layer.values[::-1]:
        slope = np.polyfit(logs, np.log(data.squared_error.sel(layer=layer).values), 1)[0]
        text = f"depth {layer}: exponent of L in the squared error"
        checks.append(between(text, slope, -1.25, -0.75))
    first = data.isel(length=0)
    combined = np.hypot(first.squared_error_error, data.by_hand_error)
    again = np.abs(first.squared_error - data.by_hand) / combined
    away = np.abs(data.query_error - data.query_exact) / data.query_error_error
    relative = (data.squared_error_error / data.squared_error).max()
    return [
        *checks,
        at_most(
            "depth 1, query outside the prompt: exact against sampled error, in standard errors",
            away.max(),
            5.0,
        ),
        at_most(
            "that sample: largest relative standard error",
            (data.query_error_error / data.query_error).max(),
            0.1,
            "accuracy",
        ),
        at_most(
            f"L = {power(data.length[0])}: errors against NumPy, in standard errors",
            again.max(),
            5.0,
            "accuracy",
        ),
        at_most("largest relative standard error", relative, 0.3, "accuracy"),
        at_most(
            "largest relative standard error in NumPy",
            (data.by_hand_error / data.by_hand).max(),
            0.1,
            "accuracy",
        ),
        *_pushed_checks(data),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Squared errors after each layer; correlations of two tokens after one."""
    L = data["length"].values
    series = []
    for i, layer in enumerate(data["layer"].values):
        here = data.sel(layer=layer)
        value, error = here["squared_error"].values, here["squared_error_error"].values
        series.append(Series(f"after layer {layer}", L, value, i, "points", error))
        guide = value[0] * L[0] / L
        series.append(Series("$1/L$", L, guide, i, "dotted", in_legend=i == 0))
    L, shown = data["pushed_length"].values, []
    for k in range(data.sizes["i"]):
        at = data.isel(i=k, j=k)
        at = at / at["pushed_cov_limit"]  # relative to the variance of a token
        value, error = at["pushed_shared_sampled"].values, at["pushed_shared_error"].values
        name = f"coordinate {k + 1}"
        shown.append(Series(f"{name}, exact", L, at["pushed_shared"].values, k))
        shown.append(Series(f"{name}, particles", L, value, k, "points", error, False))
    return [
        Panel(series, LENGTH, "squared error (mean, covariance)"),
        Panel(shown, LENGTH, "correlation of two tokens", title="one layer, tokens of one prompt"),
    ]


def broken(patch: Patch) -> None:
    """Sampled tokens twice as wide as the law says."""
    exact = lp.Gaussian.sample

    def wrong(law, key, n):
        return exact(law, key, n).affine(2 * jnp.eye(law.dim))

    patch(lp.Gaussian, "sample", wrong)


STUDY = Study(
    name="depth",
    title="Through depth, prompts follow the Gaussian recursion",
    source="Lemma 2.1, iterated (Castin et al. 2025)",
    place=3.8,
    statement="Since T is affine on Gaussian tokens, a residual layer maps Gaussian tokens to "
    "Gaussian tokens, with mean and covariance in closed form. A prompt of L tokens passed through "
    "the same layers approaches this recursion at rate 1/L in squared error. After one layer that "
    "reads another prompt of L tokens, mean and covariance of a token, and the covariance that two "
    "tokens share, are known at every L; in self-attention two tokens share more, for each reads "
    "the other.",
    formula=r"\mu_{k+1} = \mathcal{N}(B m + \textstyle\sum_h V_h m,\; B \Gamma B^{\top}), \qquad B "
    r"= I + \textstyle\sum_h V_h \Gamma U_h",
    method="The recursion is exact. The squared error (of mean and covariance) is a Monte Carlo "
    "mean over independent prompts, shown with two standard errors. The exponent is fitted over "
    "the lengths shown, and the numbers at the first length are computed again in NumPy from other "
    "prompts. After one layer the error at a query outside the prompt has a closed form, which is "
    "compared with sampled prompts. The law of tokens that read one prompt, and are no part of it, "
    "is exact for a head whose U has rank one: a closed form at each query or pair of queries, and "
    "Gauss-Hermite sums over queries. It is compared with particles at five standard errors, which "
    "gives a false alarm in about one of 10,000 runs. For self-attention the covariance of two "
    "tokens is compared to first order in 1/L.",
    quick={
        "lengths": [64, 256, 1024],
        "replicates": 64,
        "depth": 3,
        "by_hand": 512,
        "pushed_lengths": [8, 64],
        "pushed_prompts": 500,
        "pair_nodes": 5,
    },
    full={
        "lengths": [64, 128, 256, 512, 1024, 2048, 4096],
        "replicates": 200,
        "depth": 6,
        "by_hand": 2048,
        "pushed_lengths": [8, 32, 128],
        "pushed_prompts": 4000,
        "pair_nodes": 10,
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="First: squared error of prompts through layers, which falls like 1/L. Second: "
    "correlation of two tokens that read the same prompt, exact and sampled.",
    notices={
        "squared_error": times(3, 400, each="layer") + power_of("length", 0.5, -0.5, each="layer"),
        "squared_error_error": plus(1.0, each="layer"),
        "by_hand": times(3, 1 / 3, each="layer"),
        "by_hand_error": plus(1.0, each="layer"),
        "query_error": times(1.5, 0.5, each="head") + power_of("query_length", 0.1, 0.3),
        "query_exact": times(1.5, 0.5, each="head") + power_of("query_length", 0.1, 0.3),
        "query_error_error": plus(1.0, each="head"),
        "pushed_mean": plus(0.2, each="i"),
        "pushed_mean_sampled": plus(0.2, each="i"),
        "pushed_mean_error": plus(1.0),
        "pushed_cov": times(1.1, 0.9) + power_of("pushed_length", 0.1),
        "pushed_cov_sampled": times(1.1, 0.9),
        "pushed_cov_error": plus(1.0),
        "pushed_shared": times(1.5, 0.5, -1) + power_of("pushed_length", 0.2, -0.2),
        "pushed_shared_sampled": times(1.5, 0.5, -1) + power_of("pushed_length", 0.2),
        "pushed_shared_error": plus(0.1),
        "self_shared_sampled": times(0.3, 2),
        "self_shared_error": plus(0.1),
        "self_shared_extra": times(0, 2),
        "pushed_mean_limit": plus(0.2, each="i"),
        "pushed_cov_limit": times(1.1, 0.9),
    },
    broken=broken,
    fewer={"lengths": [64, 256], "depth": 2},
)
