"""Flows at finite L against the infinite one: Theorem 4.3 and Lemma D.1 of Boursier & Boyer."""

import math
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from .. import _checks
from .._float64 import in_float64
from .._lengths import length_vector
from .._provenance import versions
from .._typing import ArrayInput
from ..icl import AbstractParams, AbstractTask, Attention
from ..prompts import AbstractMethod
from ._ball import enclosing_ball, gradient_gap, steepest
from .flow import gradient_flow
from .trajectory import Trajectory


class Comparison(NamedTuple):
    """How far two flows from one point are apart, and how far Lemma D.1 allows them to be.

    `parameter_gap` and `risk_gap` hold |theta_L(t) - theta_inf(t)| and |R_L(theta_L(t)) -
    R_inf(theta_inf(t))| at `times` > 0; `risk_gap_error` is the error of the second, 0 where the
    risks are exact and otherwise made of both risks' errors as if they were independent;
    `limiting_risks` are the last risks of both. On the ball of `radius` around both flows, `beta`
    is the Lipschitz constant of the gradient that the infinite flow descends and `g2` the largest
    distance of the gradients that the two flows descend, both found by maximisation; those are of
    the risks where they are exact, otherwise of the training objectives.
    """

    times: Float[np.ndarray, " times"]
    parameter_gap: Float[np.ndarray, " times"]
    risk_gap: Float[np.ndarray, " times"]
    risk_gap_error: Float[np.ndarray, " times"]
    limiting_risks: tuple[float, float]
    beta: float
    g2: float
    radius: float

    @property
    def log10_envelope(self) -> Float[np.ndarray, " times"]:
        """log10 of g_2(L) t exp(beta t); the envelope itself overflows at moderate times."""
        return np.log10(self.g2 * self.times) + self.beta * self.times / math.log(10)

    @property
    def informative_until(self) -> float:
        """The last time at which the envelope is below the radius of the ball."""
        inside = self.times[self.log10_envelope <= math.log10(self.radius)]
        return float(inside[-1]) if inside.size else 0.0


@_checks.accepts(finite=Trajectory, infinite=Trajectory)
@in_float64
def compare(finite: Trajectory, infinite: Trajectory) -> Comparison:
    """Gaps between flows at finite and infinite L from one start, with the envelope of Lemma D.1.

    $|theta_L(t) - theta_inf(t)| <= g_2(L) t exp(beta_inf t)$. Both must be recorded at common times
    (`saveat`); a flow that became stationary stays where it is.

    >>> import jax.numpy as jnp, numpy as np
    >>> import largeprompt as lp
    >>> task, times = lp.LinearRegression(jnp.eye(1)), np.linspace(0.1, 2, 30)
    >>> start = lp.balanced_init(task, 0.5)
    >>> flows = [lp.gradient_flow(task, start, L, t1=2.0, saveat=times) for L in (1000, np.inf)]
    >>> found = lp.compare(*flows)
    >>> bool(np.all(np.log10(found.parameter_gap) <= found.log10_envelope))
    True
    """
    times = _common_times(finite, infinite)
    points, risks = zip(*(run.at_times(times) for run in (finite, infinite)), strict=True)
    if points[0].shape != points[1].shape:
        raise _checks.error(
            "two flows are compared in the same parameters",
            f"{points[0].shape[1]} and {points[1].shape[1]} numbers",
            "run both from the same kind and size of parameters",
        )
    centre, radius = enclosing_ball(np.concatenate(points))
    like = infinite.final
    return Comparison(
        times,
        np.linalg.norm(points[0] - points[1], axis=1),
        np.abs(risks[0] - risks[1]),
        np.hypot(*(run.risk_error[run.index(times)] for run in (finite, infinite))),
        (float(finite.risk[-1]), float(infinite.risk[-1])),
        steepest(infinite.objective, like, centre, radius),
        gradient_gap(finite.objective, infinite.objective, like, centre, radius),
        radius,
    )


def _common_times(one: Trajectory, other: Trajectory) -> np.ndarray:
    """Times > 0 at which both flows are known."""
    times = np.union1d(one.times, other.times)
    for run in (one, other):
        known = np.isin(times, run.times)
        if run.phase == "stationary":
            known |= times > run.times[-1]
        times = times[known]
    times = times[times > 0]
    if len(times) < 2:
        raise _checks.error(
            "two flows are compared at times both recorded",
            f"{len(times)} common times",
            "pass the same saveat to both, for example np.linspace(0.1, 10, 100)",
        )
    return times


@_checks.accepts(task=AbstractTask)
@in_float64
def transfer_curve(
    task: AbstractTask,
    params: AbstractParams,
    lengths: ArrayInput,
    t1: ArrayInput,
    attention: Attention = "softmax",
    *,
    points: int = 30,
    method: AbstractMethod | None = None,
) -> xr.Dataset:
    """Theorem 4.3 along L: largest gaps over [0, t1], beta and g_2 of Lemma D.1, risks at t1.

    `method` as in `gradient_flow`; `risk_gap_error` and `risk_error` are 0 where risks are exact.
    `log10_margin` <= 0 means that the envelope holds at all recorded times. The attributes
    `parameter_gap_rate` and `risk_gap_rate` are the exponents of L fitted to the gaps.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> found = lp.transfer_curve(task, lp.balanced_init(task, 0.5), [1e3, 1e4, 1e5], t1=2.0)
    >>> print(round(found.attrs["parameter_gap_rate"], 2))
    -0.48
    """
    grid = length_vector(lengths)
    if not np.all(np.isfinite(grid)):
        raise _checks.error(
            "a transfer curve compares finite lengths with the infinite one",
            str(grid.tolist()),
            "leave infinity out of lengths",
        )
    end = _checks.number("t1", t1, "pass a time > 0", above=0.0)
    times = np.linspace(0, end, _checks.count("points", points) + 1)[1:]

    def flow(L: float) -> Trajectory:
        return gradient_flow(task, params, L, end, attention, saveat=times, method=method)

    limit = flow(math.inf)
    runs = [flow(float(L)) for L in grid]
    found = [compare(run, limit) for run in runs]
    columns = {
        "parameter_gap": [float(c.parameter_gap.max()) for c in found],
        "risk_gap": [float(c.risk_gap.max()) for c in found],
        "risk_gap_error": [float(c.risk_gap_error[np.argmax(c.risk_gap)]) for c in found],
        "beta": [c.beta for c in found],
        "g2": [c.g2 for c in found],
        "log10_envelope": [float(c.log10_envelope[-1]) for c in found],
        "log10_margin": [
            float(np.max(np.log10(c.parameter_gap + 1e-300) - c.log10_envelope)) for c in found
        ],
        "informative_until": [c.informative_until for c in found],
        "risk": [c.limiting_risks[0] for c in found],
        "risk_error": [float(run.risk_error[-1]) for run in runs],
    }
    data = xr.Dataset({k: ("length", np.array(v)) for k, v in columns.items()}, {"length": grid})
    data.attrs = {"t1": end, "attention": attention, "infinite_risk": float(limit.risk[-1])}
    data.attrs["infinite_risk_error"] = float(limit.risk_error[-1])
    data.attrs |= versions(getattr(method, "key", None))
    if len(np.unique(grid)) > 1:
        for gap in ("parameter_gap", "risk_gap"):
            slope, _ = np.polyfit(np.log(grid), np.log(data[gap].values), 1)
            data.attrs[f"{gap}_rate"] = float(slope)
    return data
