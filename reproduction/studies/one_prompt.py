"""One given prompt: how often its confidence region contains T, and what its diagnostic says.

Tokens have mean 0 and variance 1 in two coordinates. Scores are sigma times the first coordinate,
and both coordinates are read. Each prompt is read at all sigma, so numbers at different sigma are
dependent; those of different laws or lengths are independent.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key
from scipy.special import bdtr

import largeprompt as lp
from reproduction.mutants import plus, times
from reproduction.panels import LENGTH, Panel, Series, Style
from reproduction.study import Check, Config, Patch, Study, at_least, at_most

_RARE = 1e-4  # p-value, after Bonferroni, at which a check fails: its false-alarm rate
_SHORT, _LONG, _VERY_LONG = 30, 200, 1000
_SHARES = np.array([0.8, 0.2])  # of the components of the mixture
_CENTRES = np.array([[-0.4, 0.4], [1.6, -1.6]])
_WIDTH = 0.6


def _vocabulary() -> tuple[np.ndarray, np.ndarray]:
    """Fifty words and their probabilities, by Zipf's law; words of large scores are rare."""
    i = np.arange(50)
    chances = 1 / (1 + i) / np.sum(1 / (1 + i))
    words = np.stack([np.cos(1.7 * i), np.sin(1.1 * i**1.3)], 1) * np.sqrt(1 + i % 7)[:, None]
    words = words - chances @ words
    return words / np.sqrt(chances @ words**2), chances


LAWS = ("Gaussian", "mixture", "vocabulary", "Laplace")
EXACT = LAWS[:3]  # the error of a prompt is exact
CONTINUOUS = ["Gaussian", "mixture", "Laplace"]


def _law(name: str) -> lp.AbstractMeasure:
    """The token law, for those with an exact error."""
    if name == "Gaussian":
        return lp.Gaussian(np.zeros(2), np.eye(2))
    if name == "mixture":
        return lp.Mixture(_SHARES, [lp.Gaussian(c, _WIDTH**2 * np.eye(2)) for c in _CENTRES])
    return lp.Empirical(*_vocabulary())


def _draw(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Tokens of a law, by NumPy."""
    if name == "Gaussian":
        return rng.standard_normal((*shape, 2))
    if name == "mixture":
        component = rng.choice(2, size=shape, p=_SHARES)
        return _CENTRES[component] + _WIDTH * rng.standard_normal((*shape, 2))
    if name == "vocabulary":
        words, chances = _vocabulary()
        return words[rng.choice(len(words), size=shape, p=chances)]
    return rng.laplace(scale=math.sqrt(0.5), size=(*shape, 2))


def _limits(name: str, head: lp.Head, queries: np.ndarray) -> np.ndarray:
    """T at each query; NaN for Laplace tokens with sigma >= sqrt(2), where E e^<u,x> diverges."""
    if name != "Laplace":
        return np.asarray(lp.finite_mean(head, _law(name), queries, np.inf))
    sigma = queries[:, :1]
    first = sigma / np.where(sigma**2 < 2, 1 - sigma**2 / 2, np.nan)
    return np.concatenate([first, np.zeros_like(first)], 1)


def _inside(x: np.ndarray, queries: np.ndarray, T: np.ndarray, radius: float) -> np.ndarray:
    """Whether the confidence region of each prompt contains T, in plain NumPy."""
    found = np.zeros((len(x), len(queries)), bool)
    for j, (z, t) in enumerate(zip(queries, T, strict=True)):
        scores = x @ z
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        output = np.einsum("nl,nld->nd", p, x)
        terms = p[..., None] * (x - output[:, None])
        (a, b), (_, d) = np.einsum("nli,nlj->ijn", terms, terms)
        e, f = (output - t).T
        found[:, j] = d * e**2 - 2 * b * e * f + a * f**2 <= radius**2 * (a * d - b**2)
    return found


class _Measured(NamedTuple):
    """Numbers of one law and length at each sigma, over prompts."""

    coverage: np.ndarray
    holds: np.ndarray  # share of prompts that read "the error bar holds"
    too_short: np.ndarray  # share that read "the prompt is too short to know"
    estimate: np.ndarray  # mean of the estimated squared error
    estimate_error: np.ndarray
    distance: np.ndarray  # mean of |T_L - T|^2
    distance_error: np.ndarray
    tail_index: np.ndarray  # mean Pareto index of the softmax weights
    tail_index_error: np.ndarray
    disagreements: np.ndarray  # prompts whose region is another one in plain NumPy


def _measured(x: np.ndarray, head: lp.Head, queries: np.ndarray, T: np.ndarray) -> _Measured:
    bars = [lp.prompt_uncertainty(head, lp.Empirical(tokens), queries) for tokens in x]
    bar = jax.tree.map(lambda *parts: np.stack(parts), *bars)
    bar = eqx.tree_at(lambda one: one.radius, bar, bar.radius[:, None])  # of a batch
    exists = np.isfinite(T).all(1)
    covered = np.asarray(bar.contains(np.nan_to_num(T))) & exists
    readings, root = bar.reading, math.sqrt(len(x))
    estimate = np.trace(bar.covariance, axis1=-2, axis2=-1)
    distance = ((bar.output - T) ** 2).sum(-1)
    index = bar.weight_tail_index
    again = _inside(x, queries, T, float(bar.radius[0, 0]))
    with np.errstate(invalid="ignore"):  # the index of few different tokens may be infinite
        mean_index, index_error = index.mean(0), index.std(0, ddof=1) / root
    return _Measured(
        covered.mean(0),
        np.char.endswith(readings, "holds").mean(0),
        np.char.endswith(readings, "too short to know").mean(0),
        estimate.mean(0),
        estimate.std(0, ddof=1) / root,
        distance.mean(0),
        distance.std(0, ddof=1) / root,
        mean_index,
        index_error,
        (again != covered).sum(0),
    )


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Coverage, readings and error bars over prompts of each law, sigma and length."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    sigma, lengths, prompts = np.array(config["sigmas"]), config["lengths"], config["prompts"]
    head, queries = lp.Head(U=np.eye(2), V=np.eye(2)), np.stack([sigma, np.zeros_like(sigma)], 1)
    cells = {}
    for law in LAWS:
        T = _limits(law, head, queries)
        for L, n in zip(lengths, prompts, strict=True):
            cells[law, L] = _measured(_draw(law, rng, (n, L)), head, queries, T)
    dims = ("law", "sigma", "length")
    every = {
        name: np.stack(
            [np.stack([getattr(cells[law, L], name) for L in lengths], 1) for law in LAWS]
        )
        for name in _Measured._fields
    }
    at = np.array(lengths, np.float64)
    exact = [np.asarray(lp.output_error(head, _law(law), queries[:, None], at)) for law in EXACT]
    parts = {name: (dims, every[name]) for name in ("coverage", "holds", "too_short")}
    parts |= {
        name: (("exact_law", *dims[1:]), every[name][: len(EXACT)])
        for name in ("estimate", "estimate_error", "distance", "distance_error")
    }
    parts |= {
        f"Laplace_{name}": (dims[1:], every[name][LAWS.index("Laplace")])
        for name in ("tail_index", "tail_index_error")
    }
    return xr.Dataset(
        parts
        | {
            "disagreements": (dims, every["disagreements"]),
            "exact": (("exact_law", *dims[1:]), np.stack(exact)),
        },
        {
            "law": list(LAWS),
            "exact_law": list(EXACT),
            "sigma": sigma,
            "length": at,
            "prompts": ("length", prompts),
        },
    )


def _at_least_p(share: xr.DataArray, prompts: xr.DataArray, low: float) -> float:
    """p-value of shares of prompts if all chances are >= `low`: the smallest, by Bonferroni."""
    share, number = xr.broadcast(share, prompts)
    known = np.isfinite(share.values)
    n = number.values[known]
    counts = np.clip(np.round(share.values[known] * n), 0, n)
    return min(1.0, n.size * float(bdtr(counts, n, low).min(initial=1.0)))


def _at_most_p(share: xr.DataArray, prompts: xr.DataArray, high: float) -> float:
    """The same if all chances are <= `high`."""
    return _at_least_p(1 - share, prompts, 1 - high)


def examine(data: xr.Dataset) -> list[Check]:
    """Where the diagnostic trusts the region, where it warns, and where it is blind."""
    n = data.prompts
    long, longest = data.sel(length=data.length >= _LONG), data.isel(length=-1)
    sure = data.coverage.where(data.holds >= 0.8).where(data.length >= _VERY_LONG)
    sure_sooner = long.coverage.where(long.holds >= 0.8).sel(law=CONTINUOUS)
    pooled = longest.coverage.isel(sigma=0).mean("law")
    broken = long.sel(law=CONTINUOUS)
    broken = broken.where(broken.coverage < 0.6)
    normal = data.sel(law="Gaussian")
    trusted = normal.coverage.where(data.length >= 100 * np.exp(2 * data.sigma**2))
    frozen = normal.coverage.where(data.sigma**2 >= 2 * np.log(data.length))
    ratio, spread = data.estimate / data.exact - 1, data.estimate_error / data.exact
    small = (data.sigma <= 0.5) & (data.length >= _VERY_LONG)
    away = (np.abs(ratio) - 0.03) / spread
    relative = (data.distance / data.exact).mean("length") - 1
    square = ((data.distance_error / data.exact) ** 2).sum("length") / data.length.size**2
    apart = (np.abs(relative) / np.sqrt(square)).where(data.sigma <= 1)
    terms = np.ceil(3 * np.sqrt(longest.length))
    index = (terms * data.sigma / math.sqrt(2) + 10 * 0.5) / (terms + 10)  # with the prior
    gap = np.abs(longest.Laplace_tail_index - index) - 0.05 * (1 + index)
    at = {"sigma": data.sigma[-1], "length": _VERY_LONG}
    few = data.sel(law="Gaussian", length=_SHORT, sigma=2.0)
    rare = data.sel(law="vocabulary", length=_LONG, sigma=3.0)
    rate = "p-value"
    return [
        at_least(
            f"L >= {_VERY_LONG}, where 80% of prompts read 'holds': coverage >= 0.85, {rate}",
            _at_least_p(sure, n, 0.85),
            _RARE,
        ),
        at_least(
            f"the same from L = {_LONG}, continuous laws, {rate}",
            _at_least_p(sure_sooner, long.prompts, 0.85),
            _RARE,
        ),
        at_least(
            f"smallest sigma, longest prompts, all laws together: coverage >= 0.93, {rate}",
            _at_least_p(pooled, longest.prompts * len(LAWS), 0.93),
            _RARE,
        ),
        at_least(
            f"the same: coverage <= 0.96, {rate}",
            _at_most_p(pooled, longest.prompts * len(LAWS), 0.96),
            _RARE,
        ),
        at_least(
            f"L >= {_LONG}, continuous laws, coverage below 0.6: at most 20% read 'holds', {rate}",
            _at_most_p(broken.holds, long.prompts, 0.2),
            _RARE,
        ),
        at_least(
            f"there: 40% or more read 'too short', {rate}",
            _at_least_p(broken.too_short, long.prompts, 0.4),
            _RARE,
        ),
        at_least(
            f"Gaussian tokens, L >= 100 exp(2 sigma^2): coverage >= 0.88, {rate}",
            _at_least_p(trusted, n, 0.88),
            _RARE,
        ),
        at_least(
            f"Gaussian tokens, frozen regime: coverage at most 0.3, {rate}",
            _at_most_p(frozen, n, 0.3),
            _RARE,
        ),
        at_most(
            f"sigma <= 0.5, L >= {_VERY_LONG}: estimated over exact error, beyond 1 +- 0.03, in "
            "standard errors",
            away.where(small).max(),
            5.0,
        ),
        at_most(
            f"Gaussian tokens, largest sigma, L = {_VERY_LONG}: estimated over exact error",
            1 + ratio.sel(exact_law="Gaussian", **at),
            0.5,
        ),
        at_most(
            "Laplace tokens, longest prompts: mean tail index of the weights against sigma/sqrt(2) "
            "with its prior, beyond 0.05 (1 + k), in standard errors",
            (gap / longest.Laplace_tail_index_error).max(),
            5.0,
        ),
        at_most(
            f"L = {_SHORT}, sigma = 2: share that reads 'holds' where coverage is below one half",
            few.holds.where(few.coverage < 0.5),
            0.2,
        ),
        at_most(
            f"vocabulary, L = {_LONG}, sigma = 3, where rare words are missing: coverage",
            rare.coverage.where(rare.holds > 0.4),
            0.92,
            "control",
        ),
        at_most(
            "prompts whose confidence region is another one in plain NumPy",
            data.disagreements.sum(),
            0.0,
            "accuracy",
        ),
        at_most(
            "sigma <= 1, mean over lengths: exact squared error against prompts, standard errors",
            apart.max(),
            5.0,
            "accuracy",
        ),
        at_most(
            "sigma <= 1: largest relative standard error of the squared error of prompts",
            (data.distance_error / data.distance).where(data.sigma <= 1).max(),
            0.5,
            "accuracy",
        ),
        at_most(
            "largest relative standard error of estimates that are compared with the exact error",
            (data.estimate_error / data.estimate).where(small).max(),
            0.1,
            "accuracy",
        ),
        at_most(
            "standard error of the tail index of Laplace tokens, longest prompts",
            longest.Laplace_tail_index_error.max(),
            0.1,
            "accuracy",
        ),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Coverage over sigma and L, where the diagnostic warns, and the regimes of softmax weights."""
    L, sigma = data["length"].values, data["sigma"].values
    fine = np.geomspace(L[0], L[-1], 40)
    edges = [("averaging", 2 / 3), ("frozen", 2.0)]  # in sigma^2 / ln L
    classes = [("0.9 or more", 0.9, 2.0), ("0.7 to 0.9", 0.7, 0.9), ("below 0.7", -1.0, 0.7)]
    found = []
    for law in data["law"].values:
        here = data.sel(law=law)
        coverage = here["coverage"].transpose("sigma", "length").values
        rows, columns = np.meshgrid(sigma, L, indexing="ij")
        series = []
        for i, (text, low, high) in enumerate(classes):
            kept = (coverage >= low) & (coverage < high)
            name = f"coverage {text}"
            series.append(Series(name, columns[kept], rows[kept], i, "points"))
        trusting = here["holds"].transpose("length", "sigma").values
        half = np.array([_last_above(sigma, row, 0.5) for row in trusting])
        series.append(Series("half the prompts read 'holds'", L, half, 3))
        for i, (text, x) in enumerate(edges):
            style: Style = "dashed" if i == 0 else "dotted"
            series.append(Series(f"edge of {text}", fine, np.sqrt(x * np.log(fine)), 6, style))
        found.append(Panel(series, LENGTH, r"$\sigma$", True, False, title=f"{law} tokens"))
    return found


def _last_above(x: np.ndarray, y: np.ndarray, level: float) -> float:
    """The largest x at which the curve y crosses `level` downwards; NaN if it is below it."""
    above = np.flatnonzero(y >= level)
    if not above.size:
        return np.nan
    i = above[-1]
    if i == len(x) - 1:
        return float(x[i])
    return float(x[i] + (x[i + 1] - x[i]) * (y[i] - level) / (y[i] - y[i + 1]))


def broken(patch: Patch) -> None:
    """Error bars whose covariance is too small by a factor of two."""
    exact = lp.prompt_uncertainty

    def wrong(*arguments, **options):
        found = exact(*arguments, **options)
        return eqx.tree_at(lambda bar: bar.covariance, found, found.covariance / 2)

    patch(lp, "prompt_uncertainty", wrong)


STUDY = Study(
    name="one-prompt",
    title="One given prompt: when its error bar can be trusted",
    source="own result: error bars of self-normalised importance sampling",
    place=3.7,
    statement="The confidence region of one prompt contains the infinite-prompt output with about "
    "its nominal probability where the Pareto diagnostic reads that the error bar holds, for "
    "prompts long enough to fit it. Where the region fails on continuous tokens, at 200 tokens or "
    "more, the diagnostic warns. It is blind to rare words that a prompt does not contain.",
    formula=r"\mathrm{Cov}\,T_L \approx \sum_i p_i^2\,(v_i - T_L)(v_i - T_L)^\top, \qquad "
    r"(t - T_L)^\top C^{-1} (t - T_L) \le \chi^2_{2,\,0.95}",
    method="Coverage and readings are shares of independent prompts of Gaussian, mixture, "
    "vocabulary (fifty words by Zipf's law) and Laplace tokens of variance 1, at scores of "
    "deviation sigma. A statement about shares fails if its exact binomial p-value, multiplied by "
    "the number of cases, is below 1e-4: that bounds its false-alarm rate, up to the choice of the "
    "cases from the same prompts. The control and the comparisons in standard errors have "
    "rates of about 1e-3 or less. Squared errors are compared with the exact ones where known. "
    "The output of Laplace tokens does not exist for sigma from the root of 2: no region contains "
    "it there.",
    quick={
        "sigmas": [0.25, 0.5, 1.0, 1.5, 2.0, 3.0],
        "lengths": [_SHORT, _LONG, _VERY_LONG],
        "prompts": [50, 90, 60],  # by length
    },
    full={
        "sigmas": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0],
        "lengths": [_SHORT, 100, _LONG, _VERY_LONG, 4000, 10_000],
        "prompts": [1000] * 6,
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Each point is a score deviation and a length; its colour says how often the 95% "
    "region contains the infinite prompt. Below the solid line most prompts read that their error "
    "bar holds.",
    notices={
        "coverage": times(0.85, 1.1) + plus(0.3, -0.2),
        "holds": times(0.1) + plus(0.5),
        "too_short": times(0.1),
        "estimate": times(1.3, 0.7, each="exact_law"),
        "estimate_error": plus(1.0, each="exact_law"),
        "distance": times(2, 0.3, each="exact_law"),
        "distance_error": plus(1.0, each="exact_law") + times(0.01),
        "exact": times(1.3, 0.7, each="exact_law"),
        "Laplace_tail_index": plus(0.3, -0.3) + times(1.5),
        "Laplace_tail_index_error": plus(0.5),
        "disagreements": plus(1),
    },
    broken=broken,
    fewer={"prompts": [10, 10, 20]},
)
