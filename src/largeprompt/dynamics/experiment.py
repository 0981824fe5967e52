"""The published experiment (Boursier & Boyer, Section 6) as a preset, in three variants.

One head with full K, Q, V and read-out O on tokens of dimension 6, scores scaled by 6^-1/2,
initial entries uniform on +-6^-1/2; plain SGD at rate 1e-3 on the squared error *without* the
factor 1/2, batches of 128 fresh prompts, 300,000 steps; w ~ N(0, I/5), noise of variance 0.1,
covariance 0.5^|i-j|; 19 lengths and two attentions. Our loss has the factor 1/2, so the same steps
are taken at twice the rate, and risks here are half the squared errors of the paper.

* `paper`: as described there. Prompts and queries have that covariance, and softmax and linear
  attention start from the same weights.
* `released-code`: as distributed. The Cholesky root C of the covariance is applied twice to prompts
  (covariance C Sig C') and never to queries (white), and the two attentions start from different
  weights.
* `theory`: the setting of Section 5. w ~ N(0, I), no noise, A = alpha I / |I|, b = alpha, gradient
  flow instead of SGD.

In all of them softmax and linear attention see the same w and queries.

*Two routes.* With U = [[A, .], [c', .]] and v = (v_x, b) a head can score by x and read y (A, b:
the block form) or score by y and read x (c, v_x). At finite L the second route has minima of its
own, so where a run ends depends on its start (docs/descent.md). Its final parameters show which:
`route_ratio` is |c||v_x| / (|b||A|), below 0.1 for a run in the block class. Near the origin the
risk falls with the two pulls b <A, M> and v_x'M c, M = Sig S Q (Q the covariance of the queries).
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Key

from .. import __version__, _checks
from .._float64 import in_float64
from .._lengths import length_vector
from .._typing import Array, ArrayInput
from ..icl import Attention, FactoredParams, LinearRegression
from ..prompts import AbstractMethod, MonteCarlo
from .descent import Descent, descend_many, method_name
from .flow import gradient_flow
from .initial import balanced_init

Variant = Literal["paper", "released-code", "theory"]
Init = Literal["published", "balanced"]
BLOCK_CLASS = 0.1  # a run whose |c||v_x| is below this times |b||A| is in the block class


class Published(NamedTuple):
    """The hyperparameters of the published experiment."""

    inputs: int = 5
    correlation: float = 0.5
    noise_variance: float = 0.1
    rate: float = 1e-3  # on the squared error without 1/2
    batch: int = 128
    steps: int = 300_000
    record_every: int = 1_000
    seed: int = 327
    lengths: tuple[int, ...] = (*range(10, 100, 10), *range(100, 1001, 100))
    attentions: tuple[Attention, ...] = ("softmax", "linear")
    alpha: float = 0.2  # of the variant `theory`: inside the interval (0, 0.418) of (9)


PUBLISHED = Published()


@_checks.accepts()
def published_task(variant: Variant = "paper") -> LinearRegression:
    """The task of a variant.

    >>> from largeprompt.dynamics.experiment import published_task
    >>> print(published_task("released-code").cov.trace().round(3))
    7.328
    """
    d = PUBLISHED.inputs
    cov = PUBLISHED.correlation ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    if variant == "theory":
        return LinearRegression(cov)
    if variant == "paper":
        return LinearRegression(cov, np.eye(d) / d, PUBLISHED.noise_variance)
    root = np.linalg.cholesky(cov)
    twice = root @ cov @ root.T
    return LinearRegression(twice, np.eye(d) / d, PUBLISHED.noise_variance, query_cov=np.eye(d))


def published_init(key: Key[Array, ""]) -> FactoredParams:
    """Initial weights uniform on +-6^-1/2, the default of the published code's layers."""
    D = PUBLISHED.inputs + 1
    shapes = ((D, D), (D, D), (D, D), (1, D))
    bound = D**-0.5
    draws = [  # in float32 whatever JAX's default, which would draw other numbers
        jax.random.uniform(k, shape, jnp.float32, minval=-bound, maxval=bound)
        for k, shape in zip(jax.random.split(key, 4), shapes, strict=True)
    ]
    return FactoredParams(*draws, scale=bound)


def balanced_weights(task: LinearRegression, key: Key[Array, ""]) -> FactoredParams:
    """Initialisation (9) with a random Theta, as weights of the published head: K = Q, V = O'O."""
    d, scale = task.inputs, (task.inputs + 1) ** -0.5
    # drawn in float32 and on the host afterwards, whatever JAX's default: the same numbers always
    theta = np.asarray(jax.random.normal(key, (d, d), jnp.float32), np.float64)
    theta = theta * np.sqrt(PUBLISHED.alpha / scale / np.linalg.norm(theta @ theta.T))
    K = np.pad(theta.T, (0, 1)).astype(np.float32)
    # O V = (0, alpha), the last entry shared equally between both layers
    O = np.sqrt(PUBLISHED.alpha) * np.eye(1, d + 1, d, dtype=np.float32)
    V = np.pad(O, ((d, 0), (0, 0)))
    return FactoredParams(K, K, V, O, scale=scale)


@_checks.accepts()
def published_experiment(
    variant: Variant = "paper",
    *,
    steps: int = PUBLISHED.steps,
    lengths: Sequence[ArrayInput] = PUBLISHED.lengths,
    seeds: int = 1,
    method: AbstractMethod | None = None,
    record_every: int | None = None,
    seed: int = PUBLISHED.seed,
    folder: str | Path | None = None,
    references: bool = True,
    rate: float = PUBLISHED.rate,
    init: Init = "published",
) -> xr.Dataset:
    """Train all runs of a variant, with exact references.

    **Arguments:** scale it down with `steps`, `lengths` and `seeds` (independent repetitions: data
    and initial weights); `method`, `record_every` and `folder` as in `descend`; `references=False`
    leaves out ridge regression and
    minimisers. `rate` is that of the squared error without 1/2, as published. `init="balanced"`
    starts from the initialisation (9) of the paper, alpha = 0.2, with a random Theta for each
    seed, the same for both attentions. The variant `theory` follows gradient flows from (9) with
    Theta = I: it has times instead of steps, and no seeds.

    **Returns:** `risk` (attention, length, seed, step) with `risk_error`; `final_risk` with its 95%
    interval over seeds (two seeds or more); `bayes_risk` (ridge regression), `minimiser_risk` (the
    best head in block form); the product `trained` of the read-out's last entry and the block of U
    that acts on inputs, its limit `predicted` = Sig^-1 as L grows, and their relative distance
    `limit_gap`; the effective parameters `final_A`, `final_b`, `final_c`, `final_v_x` each run
    ended with, and `route_ratio`, which tells the two routes of one head apart (see the top of
    this file); `pull_block` and `pull_other` against steps; `status` of each run. Attributes record
    the configuration.

    >>> import largeprompt as lp
    >>> options = {"method": lp.Exact(), "references": False}
    >>> found = lp.published_experiment(steps=100, lengths=[10], **options)
    >>> print(found.risk.dims, found.attrs["variant"])
    ('attention', 'length', 'seed', 'step') paper
    """
    checked = length_vector(lengths).tolist()
    steps, seed = _checks.count("steps", steps), _checks.count("seed", seed, least=0)
    if record_every is not None:
        record_every = _checks.count("record_every", record_every)
    task = published_task(variant)
    if variant == "theory":
        found = _flows(task, checked)
    else:
        seeds = _checks.count("seeds", seeds)
        every = record_every or min(PUBLISHED.record_every, max(1, steps // 10))
        keys = seed_keys(seed, seeds)
        start = _initial(variant, init, task, keys)
        rate = _checks.number("rate", rate, "pass for example 1e-3", above=0.0)
        runs = _trained(task, start, keys, checked, steps, rate, method, every, folder)
        found = _curves(task, runs, checked, seeds)
    found = _with_limit(found, task).assign_coords(
        attention=list(PUBLISHED.attentions), length=checked
    )
    if references:
        found = _with_references(found, task, checked, jax.random.key(seed))
    return found.assign_attrs(
        variant=variant,
        method="flow" if variant == "theory" else method_name(method),
        seed=seed,
        init="balanced" if variant == "theory" else init,
        hyperparameters=json.dumps(PUBLISHED._replace(rate=rate)._asdict()),
        loss="half the squared error; the published numbers are twice these",
        largeprompt=__version__,
        jax=jax.__version__,
        backend=jax.default_backend(),
    )


def _initial(
    variant: Variant, init: Init, task: LinearRegression, keys: Key[Array, " seeds"]
) -> dict[Attention, list[FactoredParams]]:
    if init == "published":
        return initial_weights(variant, keys)
    balanced = [balanced_weights(task, jax.random.fold_in(key, 2**31)) for key in keys]
    return dict.fromkeys(PUBLISHED.attentions, balanced)


def seed_keys(seed: int, n: int) -> Key[Array, " seeds"]:
    """Keys of independent repetitions: of their data, and of their initial weights."""
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(n))


def initial_weights(
    variant: Variant, keys: Key[Array, " seeds"]
) -> dict[Attention, list[FactoredParams]]:
    """Initial weights of every attention and seed; in `paper` both attentions share them."""

    def drawn(number: int) -> list[FactoredParams]:
        return [published_init(jax.random.fold_in(key, 2**31 + number)) for key in keys]

    if variant == "paper":
        return dict.fromkeys(PUBLISHED.attentions, drawn(0))
    return {attention: drawn(number) for number, attention in enumerate(PUBLISHED.attentions)}


def _trained(
    task: LinearRegression,
    start: dict[Attention, list[FactoredParams]],
    keys: Key[Array, " seeds"],
    lengths: list[float],
    steps: int,
    rate: float,
    method: AbstractMethod | None,
    every: int,
    folder: str | Path | None,
) -> list[Descent]:
    """One run for each (attention, length, seed), in that order."""
    runs: list[tuple[Attention, float, int]] = [
        (attention, L, i)
        for attention in PUBLISHED.attentions
        for L in lengths
        for i in range(len(keys))
    ]
    weights = [start[attention][i] for attention, _, i in runs]
    return descend_many(
        keys[np.array([i for _, _, i in runs])],
        task,
        jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *weights),
        [L for _, L, _ in runs],
        steps,
        PUBLISHED.batch,
        _sgd(2 * rate),  # our loss is half of theirs
        method=method,
        attention=[attention for attention, _, _ in runs],
        record_every=every,
        folder=folder,
        optimizer_name=f"optax.sgd({2 * rate!r})",
    )


@cache
def _sgd(rate: float) -> optax.GradientTransformation:
    """Made once for each rate, so that its program is compiled once."""
    return optax.sgd(rate)


def _curves(
    task: LinearRegression, runs: list[Descent], lengths: list[float], seeds: int
) -> xr.Dataset:
    """Risks against steps, and the block each run ended with."""
    shape = (len(PUBLISHED.attentions), len(lengths), seeds)
    dims = ("attention", "length", "seed")
    steps = max((run.steps for run in runs), key=len)

    def gathered(values: list[np.ndarray]) -> np.ndarray:
        # a run that diverged has fewer records
        rows = [np.append(v, np.full(len(steps) - len(v), np.nan)) for v in values]
        return np.stack(rows).reshape(*shape, -1)

    heads = [effective(run.params) for run in runs]
    pulled = [pulls(task, *head) for head in heads]
    A, b, c, v_x = (
        np.stack(parts).reshape(*shape, *parts[0].shape)
        for parts in zip(*([part[-1] for part in head] for head in heads), strict=True)
    )
    risk = gathered([run.risk for run in runs])
    found = xr.Dataset(
        {
            "risk": ((*dims, "step"), risk),
            "risk_error": ((*dims, "step"), gathered([run.risk_error for run in runs])),
            "final_risk": (dims[:2], risk[..., -1].mean(axis=2)),
            "trained": ((*dims, "row", "column"), b[..., None, None] * A),
            **_final(dims, A, b, c, v_x),
            "pull_block": ((*dims, "step"), gathered([block for block, _ in pulled])),
            "pull_other": ((*dims, "step"), gathered([other for _, other in pulled])),
            "status": (dims, np.array([run.status for run in runs]).reshape(shape)),
        },
        coords={"step": steps},
    )
    if seeds > 1:
        from scipy.stats import t

        half = t.ppf(0.975, seeds - 1) * risk.std(axis=2, ddof=1) / np.sqrt(seeds)
        found["risk_mean"] = (("attention", "length", "step"), risk.mean(axis=2))
        found["risk_half_interval"] = (("attention", "length", "step"), half)
        found["final_half_interval"] = (dims[:2], half[..., -1])
    return found


def effective(params: FactoredParams) -> tuple[np.ndarray, ...]:
    """(A, b, c, v_x) of weights with a leading axis."""
    weights = (np.asarray(w, np.float64) for w in (params.K, params.Q, params.V, params.O))
    K, Q, V, O = weights
    U, v = params.scale * np.swapaxes(K, -1, -2) @ Q, (O @ V)[..., 0, :]
    return U[..., :-1, :-1], v[..., -1], U[..., -1, :-1], v[..., :-1]


def pulls(
    task: LinearRegression, A: np.ndarray, b: np.ndarray, c: np.ndarray, v_x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pulls b <A, M> and v_x'M c, M = Sig S Q: how fast the risk falls with either product."""
    covariances = (np.asarray(m, np.float64) for m in (task.cov, task.task_cov, task.query_cov))
    M = np.linalg.multi_dot(list(covariances))
    block, other = b * np.sum(A * M, axis=(-2, -1)), np.einsum("...i,ij,...j->...", v_x, M, c)
    return np.asarray(block), np.asarray(other)


def _final(
    dims: tuple[str, ...], A: np.ndarray, b: np.ndarray, c: np.ndarray, v_x: np.ndarray
) -> dict[str, tuple]:
    """The effective parameters of final heads, and their route."""
    return {
        "final_A": ((*dims, "row", "column"), A),
        "final_b": (dims, b),
        "final_c": ((*dims, "column"), c),
        "final_v_x": ((*dims, "row"), v_x),
        "route_ratio": (dims, route_ratio(A, b, c, v_x)),
    }


def route_ratio(A: np.ndarray, b: np.ndarray, c: np.ndarray, v_x: np.ndarray) -> np.ndarray:
    """The ratio |c||v_x| / (|b||A|) of the two routes, for heads with any leading axes."""
    by_x = np.abs(b) * np.linalg.norm(A, axis=(-2, -1))
    return np.linalg.norm(c, axis=-1) * np.linalg.norm(v_x, axis=-1) / by_x


def _flows(task: LinearRegression, lengths: list[float]) -> xr.Dataset:
    """Gradient flows from the balanced initialisation, at fixed times."""
    d, start = task.inputs, balanced_init(task, PUBLISHED.alpha)
    times = np.geomspace(0.1, 1000.0, 61)
    risk, ends, status = [], [], []
    for attention in PUBLISHED.attentions:
        for L in lengths:
            flow = gradient_flow(task, start, L, times[-1], attention, saveat=times)
            risk.append(flow.at_times(times)[1])
            ends.append(flow.final)
            status.append(str(flow.status))
    shape = (len(PUBLISHED.attentions), len(lengths))
    risk = np.stack(risk).reshape(*shape, -1)
    dims = ("attention", "length")
    A = np.stack([end.A for end in ends]).reshape(*shape, d, d)
    b = np.stack([end.b for end in ends]).reshape(shape)
    return xr.Dataset(
        {
            "risk": ((*dims, "time"), risk),
            "final_risk": (dims, risk[..., -1]),
            "trained": ((*dims, "row", "column"), b[..., None, None] * A),
            **_final(dims, A, b, np.zeros((*shape, d)), np.zeros((*shape, d))),
            "status": (dims, np.array(status).reshape(shape)),
        },
        coords={"time": times},
    )


def _with_limit(found: xr.Dataset, task: LinearRegression) -> xr.Dataset:
    """Add the limit Sig^-1 of the trained product b A as L grows, and their relative distance."""
    predicted = np.linalg.inv(np.asarray(task.cov, np.float64))
    gap = np.linalg.norm(found.trained.values - predicted, axis=(-2, -1))
    found["predicted"] = (("row", "column"), predicted)
    found["limit_gap"] = (found.trained.dims[:-2], gap / np.linalg.norm(predicted))
    return found


@in_float64
def _with_references(
    found: xr.Dataset, task: LinearRegression, lengths: list[float], key: Key[Array, ""]
) -> xr.Dataset:
    """Add the risks of ridge regression and of the best head in block form."""
    best = [[float(task.minimiser(L, a).risk) for L in lengths] for a in PUBLISHED.attentions]
    bayes = [task.bayes_risk(L, MonteCarlo(key)) for L in lengths]
    found["bayes_risk"] = ("length", [float(b.value) for b in bayes])
    found["bayes_error"] = ("length", [float(b.error) for b in bayes])
    found["minimiser_risk"] = (("attention", "length"), best)
    return found
