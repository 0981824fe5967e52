"""Gradient flow of the risk, at finite and infinite prompt length.

At finite L there are two time scales: in time O(1) the flow reaches the valley b Sig A = I of the
infinite-prompt minimisers, then it drifts along it in time O(L) towards the finite-L minimiser. A
multistep solver takes the descent, an implicit one the valley, decade by decade.
"""

import math
import warnings
from typing import NamedTuple

import jax
import numpy as np

from .. import _checks
from .._arrays import flattened, restorer, to_numpy
from .._float64 import in_float64, not_traced
from .._lengths import one_length
from .._typing import ArrayInput
from ..icl import AbstractParams, AbstractTask, Attention, FreshRisk, RiskFunction
from ..icl.flat_gradients import ValueAndGradient, coordinates_for, flat_value_and_gradient
from ..prompts import AbstractMethod
from ._solver import Segment, Tolerances, follow
from .trajectory import Phase, Trajectory

_FLOOR = 1e-13  # gradients below are rounding
_FALLEN = 0.1  # of the first gradient: the descent is nearly over
_LONGER = 4.0  # times its duration the solver of the descent goes on
_ALONG = 0.9  # share of the gradient along the valley from which on the flow is in it
_NOISE = 3e-15  # rounding of a gradient: no solution over a time t is sharper than this times t
_FLAT = 1e-3  # relative change of the risk with a parameter, above which no flow is stationary
_STEPS = 2048  # most steps of a segment
_SHARPER = 1e-5  # tolerances of the descent, relative to those in the valley


@_checks.accepts(task=AbstractTask)
@not_traced
@in_float64
def gradient_flow(
    task: AbstractTask,
    params: AbstractParams,
    L: ArrayInput,
    t1: ArrayInput | None = None,
    attention: Attention = "softmax",
    *,
    saveat: ArrayInput | None = None,
    stationary: float | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    method: AbstractMethod | None = None,
) -> Trajectory:
    """Gradient flow $d theta/dt = -grad R_L(theta)$ from `params`, until time `t1` or stationarity.

    **Arguments:** `saveat` are times to record (all steps of the solver if None); the last point is
    always recorded. `stationary` is the gradient norm at which the flow ends, by default 1e-4 / L
    (1e-9 at infinity): the drift along the valley is of order 1/L. `rtol` and `atol` are the
    tolerances in the valley; the descent, and all of a flow at infinity, are followed to 1e-5 of
    them. The default of `stationary` is for inputs of variance about 1: a flow that it ends too
    early warns.

    `method` as in `task.objective`. The risk is exact for `LinearRegression` in block form. By
    `lp.QuasiMonteCarlo(key)` or `lp.MonteCarlo(key)` the flow descends the mean over one fixed
    sample of w or of prompts. That `training_loss` is not the risk; `risk` is measured on eight
    fresh samples, with its error `risk_error`.

    **Returns:** a `Trajectory`, also if the flow did not become stationary: `status` says what
    ended it.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> run = lp.gradient_flow(task, lp.BlockParams(jnp.eye(1), 1.0), L=100)
    >>> print(run.phase, round(float(run.final.A[0, 0]), 3), round(float(run.final.b), 3))
    stationary 0.747 1.322
    """
    length = one_length(L)
    default = max(_FLOOR, min(1e-4, 1e-4 / length)) if math.isfinite(length) else 1e-9
    goal = _checks.number(
        "stationary", default if stationary is None else stationary, "pass 1e-8", above=0.0
    )
    end = _checks.number(
        "t1", math.inf if t1 is None else t1, "pass a time > 0, or None", above=0.0, finite=False
    )
    rtol, atol = (
        _checks.number(name, value, "pass for example 1e-6", above=0.0)
        for name, value in (("rtol", rtol), ("atol", atol))
    )
    times = None if saveat is None else _increasing(saveat)
    params = to_numpy(params)
    risk = task.risk_by(length, attention, params, method)
    objective = risk.objective()
    evaluate = flat_value_and_gradient(objective, params)
    run = _Run(objective, evaluate, params, end, times, goal, rtol, atol)
    pieces = run.segments(task.is_stiff(length))
    found = _trajectory(pieces, run, risk.fresh(), length, attention)
    if found.phase == "stationary" and stationary is None:
        _warn_of_small_scales(run, found)
    return found


def _increasing(saveat: ArrayInput) -> np.ndarray:
    times = np.atleast_1d(_checks.known("saveat", saveat))
    if (
        times.ndim != 1
        or not np.all(np.isfinite(times))
        or np.any(np.diff(times) <= 0)
        or times[0] < 0
    ):
        raise _checks.error(
            "saveat must be increasing times >= 0",
            str(times.tolist()[:5]),
            "pass for example np.geomspace(1e-2, 1e3, 50)",
        )
    return times


class _Run(NamedTuple):
    """One flow: objective, start, end, times to record, and tolerances."""

    objective: RiskFunction
    evaluate: ValueAndGradient
    start: AbstractParams
    end: float
    times: np.ndarray | None
    goal: float
    rtol: float
    atol: float

    def segments(self, stiff: bool) -> list[Segment]:
        """The segments of the flow: the descent, and decades of the valley if it is stiff."""
        flat = flattened(self.start)
        norm = float(np.linalg.norm(self.evaluate(flat)[1]))
        if not math.isfinite(norm):
            raise _checks.error(
                "a gradient flow must start where its risk is finite",
                "parameters with a risk or gradient that is not",
                "start from smaller parameters",
            )
        recorded = 1 if self.times is None or self.times[0] == 0 else 0
        start = Segment(np.zeros(recorded), flat[None][:recorded], 0.0, flat, True)
        if norm <= self.goal:
            return [start]
        if stiff:
            descent = max(self.goal, _FALLEN * norm)
            pieces = [start, *self._sharply(start, min(self.end, 1e3), descent)]
            longer = min(self.end, _LONGER * pieces[-1].last_time)
            if longer > pieces[-1].last_time:
                pieces += self._sharply(pieces[-1], longer, self.goal)
        else:
            longer = min(self.end, 1e8)
            pieces = [start, *self._sharply(start, longer, self.goal)]
        arrived = pieces[-1].succeeded and pieces[-1].last_time < 0.999 * longer
        while not arrived and pieces[-1].last_time < min(self.end, 1e8 / self.goal):
            piece = self._decade(pieces[-1], 1.0 if stiff else _SHARPER)
            pieces.append(piece)
            if piece.last_time < 0.999 * self._decade_end(pieces[-2]):  # arrived, or gave up
                break
        return pieces

    def _decade_end(self, before: Segment) -> float:
        return min(10 * max(before.last_time, 1e-3), self.end)

    def _decade(self, before: Segment, sharper: float) -> Segment:
        """The implicit solver, up to ten times the time reached."""
        end, atol = self._decade_end(before), sharper * self.atol
        tolerances = Tolerances(self.goal, sharper * self.rtol, max(atol, _NOISE * end))
        return self._follow(before, end, tolerances, True)

    def _sharply(self, before: Segment, t1: float, goal: float) -> list[Segment]:
        """To sharper tolerances, by the multistep solver; by the implicit one if that gives up."""
        sharper = Tolerances(goal, self.rtol * _SHARPER, self.atol * _SHARPER)
        first = self._follow(before, t1, sharper, False)
        return [first] if first.succeeded else [first, self._follow(first, t1, sharper, True)]

    def _follow(
        self, before: Segment, t1: float, tolerances: Tolerances, implicit: bool
    ) -> Segment:
        here = restorer(self.start)(before.last_point)
        return follow(
            self.evaluate,
            before.last_point,
            before.last_time,
            t1,
            self.times,
            tolerances,
            implicit=implicit,
            coordinates=coordinates_for(self.objective, here) if implicit else None,
            most_steps=_STEPS,
        )


def _trajectory(
    pieces: list[Segment], run: _Run, fresh: FreshRisk | None, L: float, attention: Attention
) -> Trajectory:
    """Join the segments, and describe how the flow ended."""
    times = np.concatenate([piece.times for piece in pieces])
    points = np.concatenate([piece.points for piece in pieces])
    last = pieces[-1].last_time
    if not len(times) or times[-1] < last:
        times = np.append(times, last)
        points = np.concatenate([points, pieces[-1].last_point[None]])
    found = [run.evaluate(point) for point in points]
    loss, gradients = np.array([value for value, _ in found]), np.stack([g for _, g in found])
    norm = np.linalg.norm(gradients, axis=1)
    if not np.all(np.isfinite(loss)):
        raise _checks.error(
            "a gradient flow must stay where its risk is finite",
            f"a risk that is not at time {times[np.argmin(np.isfinite(loss))]:.3g}",
            "start from smaller parameters",
        )
    params = restorer(run.start)(points)
    along = _share_along_valley(params, gradients)
    phase: Phase = "descent"
    if norm[-1] <= run.goal:
        phase = "stationary"
    elif along[-1] >= _ALONG:
        phase = "valley"
    reached = np.flatnonzero(along >= _ALONG)
    entered = float(times[reached[0]]) if reached.size else math.inf
    status = _status(phase, last, float(norm[-1]), run, pieces[-1].succeeded)
    risk, error = loss, np.zeros_like(loss)
    if fresh is not None:
        risk, error, _ = fresh(params)
    return Trajectory(
        run.objective,
        times,
        params,
        loss,
        risk,
        error,
        norm,
        status,
        phase,
        entered,
        L,
        attention,
    )


def _warn_of_small_scales(run: _Run, found: Trajectory) -> None:
    """Warn if the default gradient norm is large for a task of small covariances."""
    last = flattened(found.final)
    change = float(np.max(np.abs(last * run.evaluate(last)[1]), initial=0.0))  # of risk, relative
    if change > _FLAT * float(found.training_loss[0]):
        norm = float(found.gradient_norm[-1])
        warnings.warn(
            f"The flow ended at a gradient norm of {norm:.1e}, the default for inputs of variance "
            f"about 1, but the risk ({float(found.training_loss[-1]):.1e}) still changes there "
            "with the scale of the parameters. Pass a smaller `stationary`, or scale the inputs.",
            UserWarning,
            stacklevel=4,
        )


def _share_along_valley(params: AbstractParams, gradients: np.ndarray) -> np.ndarray:
    """|<gradient, direction of the valley>| over the product of norms, at every point."""
    shares = np.zeros(len(gradients))
    for i, gradient in enumerate(gradients):
        direction = jax.tree.map(lambda leaf, i=i: leaf[i], params).rescaled()
        if direction is not None:
            along = flattened(direction)
            size = np.linalg.norm(gradient) * np.linalg.norm(along)
            shares[i] = abs(gradient @ along) / size if size > 0 else 0.0
    return shares


def _status(phase: Phase, last: float, norm: float, run: _Run, succeeded: bool) -> str:
    """What ended the run, and how to continue it."""
    if phase == "stationary":
        return f"stationary at time {last:.4g}: gradient norm {norm:.1e} <= {run.goal:.1e}"
    where = f"in the phase of {phase}: gradient norm {norm:.1e}"
    if last >= run.end * (1 - 1e-12):
        return f"reached t1 = {run.end:.4g} {where}; pass t1=None to go on until stationary"
    if succeeded:
        return f"still not stationary at time {last:.4g} {where}; raise `stationary`"
    return (
        f"the solver gave up at time {last:.4g} {where}. To go on: start again from .final, loosen "
        "rtol and atol, or raise `stationary`"
    )
