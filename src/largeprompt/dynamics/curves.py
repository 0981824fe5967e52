"""Labelled data of gradient flows and of best heads along prompt lengths."""

import json
import math
from typing import get_args

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from .. import _checks
from .._float64 import in_float64, not_traced
from .._lengths import length_vector
from .._provenance import describe, versions
from .._typing import ArrayInput
from ..icl import AbstractTask, Attention, BlockParams, LinearRegression
from ..prompts import MonteCarlo, needed_key
from .flow import gradient_flow
from .initial import input_covariance


@_checks.accepts(task=AbstractTask)
@not_traced
@in_float64
def flow_curves(
    task: LinearRegression,
    params: BlockParams,
    lengths: ArrayInput,
    attention: Attention = "softmax",
    *,
    until: ArrayInput | None = None,
    points: int = 127,
) -> xr.Dataset:
    """Gradient flows from one start at several lengths, on one grid of times.

    They run until stationary, or until time `until`.

    **Returns:** over (length, time) `risk`, `b`, `imbalance` = |A|_F^2 - b^2 and `limit_gap` =
    |b Sig A - I|_F; over length the `phase` the flow stopped in, when it stopped, when it entered
    the valley (infinity: never), the final risk and its gradient norm.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> found = lp.flow_curves(task, lp.balanced_init(task, 0.5), [100, jnp.inf])
    >>> print([str(phase) for phase in found.phase.values], found.b.values[:, -1].round(3))
    ['stationary', 'stationary'] [1.322 1.   ]
    """
    cov, grid = input_covariance(task, "flow_curves"), length_vector(lengths)
    longest = float(np.max(grid[np.isfinite(grid)], initial=100.0))
    end = None if until is None else _checks.number("until", until, "pass a time", above=0.1)
    last = 100 * longest if end is None else end
    times = np.append(0.0, np.geomspace(0.01, last, _checks.count("points", points)))
    runs = [gradient_flow(task, params, float(L), end, attention, saveat=times) for L in grid]
    records = [run.at_times(times) for run in runs]
    shape, d = (len(grid), len(times)), len(cov)
    flat = np.stack([points for points, _ in records]).reshape(*shape, d * d + 1)
    A, b = flat[..., :-1].reshape(*shape, d, d), flat[..., -1]
    product = b[..., None, None] * (cov @ A)
    both, one = ("length", "time"), "length"
    data = xr.Dataset(
        {
            "risk": (both, np.stack([risk for _, risk in records])),
            "b": (both, b),
            "imbalance": (both, np.sum(A**2, axis=(-2, -1)) - b**2),
            "limit_gap": (both, np.linalg.norm(product - np.eye(d), axis=(-2, -1))),
            "phase": (one, [run.phase for run in runs]),
            "stopped": (one, [float(run.times[-1]) for run in runs]),
            "valley_entered": (one, [run.valley_entered for run in runs]),
            "final_risk": (one, [float(run.risk[-1]) for run in runs]),
            "gradient_norm": (one, [float(run.gradient_norm[-1]) for run in runs]),
        },
        {"length": grid, "time": times},
    )
    data.attrs = {
        "attention": attention,
        "status": json.dumps([run.status for run in runs]),
        "bayes_risk": float(task.bayes_risk(math.inf).value),
        "configuration": json.dumps({"task": describe(task), "start": describe(params)}),
    } | versions(None)
    return data


@_checks.accepts(task=AbstractTask)
@not_traced
@in_float64
def risk_curves(
    task: AbstractTask, lengths: ArrayInput, method: MonteCarlo | None = None
) -> xr.Dataset:
    """Risks of the best softmax head, the best linear head and ridge regression along lengths.

    **Arguments:** `method` samples the risk of ridge regression, the Bayes predictor, where the
    task does not know it exactly; its key is split over the lengths.

    **Returns:** over length the exact risks `softmax` and `linear` of the best heads in block form,
    and `ridge` with its error `ridge_error`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
    >>> found = lp.risk_curves(task, [100])
    >>> print(*(found[name].values.round(5) for name in ("softmax", "linear", "ridge")))
    [0.12933] [0.08052] [0.05264]
    """
    grid = length_vector(lengths)
    found = {
        a: [float(task.minimiser(float(L), a).risk) for L in grid] for a in get_args(Attention)
    }
    key = None if method is None else needed_key(method)
    methods = [method] * len(grid)
    if method is not None:
        keys = jax.random.split(needed_key(method), len(grid))
        methods = [eqx.tree_at(lambda m: m.key, method, key) for key in keys]
    ridge = [
        task.exact_bayes_risk(float(L)) or task.bayes_risk(float(L), sampled)
        for L, sampled in zip(grid, methods, strict=True)
    ]
    found["ridge"] = [float(r.value) for r in ridge]
    found["ridge_error"] = [float(r.error) for r in ridge]
    data = xr.Dataset({k: ("length", np.array(v)) for k, v in found.items()}, {"length": grid})
    data.attrs = {"bayes_risk": float(task.bayes_risk(math.inf).value)} | versions(key)
    data.attrs["configuration"] = json.dumps({"task": describe(task)})
    return data
