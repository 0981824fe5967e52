"""One segment of a gradient flow, by the solvers of SciPy.

They call a gradient from Python, so that nothing is compiled around it: a compiled solver takes
much longer to compile than these take to run.
"""

import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..icl.coordinates import Coordinates
from ..icl.flat_gradients import ValueAndGradient

_LEAST_RTOL = 1e-13  # what rounding allows
_STEP = 1e-4  # of the difference quotients in the Jacobian
_NEARLY = 2.0  # times the goal: from there on the gradient at the end of a step is evaluated
_ONE_AT_A_TIME = threading.Lock()  # LSODA of SciPy before 1.17 keeps its state in global variables


class Tolerances(NamedTuple):
    """The gradient norm at which a segment ends, and the tolerances of the solver."""

    goal: float
    rtol: float
    atol: float


class Segment(NamedTuple):
    """The records of a segment, its end, and whether the solver succeeded."""

    times: np.ndarray
    points: np.ndarray
    last_time: float
    last_point: np.ndarray
    succeeded: bool


def follow(
    evaluate: ValueAndGradient,
    start: np.ndarray,
    t0: float,
    t1: float,
    times: np.ndarray | None,
    tolerances: Tolerances,
    *,
    implicit: bool,
    coordinates: Coordinates | None,
    most_steps: int,
) -> Segment:
    """Follow y' = -gradient(y), which `evaluate` returns second, until t1 or |gradient| <= goal.

    Recorded at `times` or, if that is None, at every step. `coordinates` are those in which the
    solver works.
    """
    from scipy.integrate import LSODA, Radau  # 0.15 s that descents need not wait for

    to, back, push = coordinates or _PLAIN
    seen = np.inf  # norm of the last gradient that the solver asked for

    def field(_: float, x: np.ndarray) -> np.ndarray:
        nonlocal seen
        y = back(x)
        gradient = evaluate(y)[1]
        seen = np.linalg.norm(gradient)
        return -push(y, gradient)

    options: dict[str, Any] = {
        "rtol": max(tolerances.rtol, _LEAST_RTOL),
        "atol": tolerances.atol,
        "first_step": min(1e-2 * max(t0, 1e-3 if implicit else 1.0), (t1 - t0) / 10),
    }
    recorded, points = [], []
    arrived, last, time = False, start, t0
    with _ONE_AT_A_TIME, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # LSODA warns when it gives up: `succeeded` says so
        if implicit:
            solver = Radau(field, t0, to(start), t1, jac=_jacobian(field), **options)
        else:
            solver = LSODA(field, t0, to(start), t1, **options)
        for _ in range(most_steps):
            if arrived or solver.status != "running":
                break
            solver.step()
            here = back(solver.y)
            if solver.status == "failed" or not np.all(np.isfinite(here)):
                break
            if times is None:
                recorded.append(solver.t)
                points.append(here)
            else:
                inside = times[(times > time) & (times <= solver.t)]
                if inside.size:
                    recorded.extend(inside)
                    points.extend(map(back, solver.dense_output()(inside).T))
            last, time = here, float(solver.t)
            if seen <= _NEARLY * tolerances.goal:
                arrived = bool(np.linalg.norm(evaluate(here)[1]) <= tolerances.goal)
    finished = solver.status == "finished" and time == solver.t
    return Segment(
        np.array(recorded),
        np.array(points).reshape(len(points), len(start)),
        time,
        last,
        arrived or finished,
    )


def _jacobian(field: Callable[[float, np.ndarray], np.ndarray]) -> Callable:
    """The Jacobian of the field by central differences.

    Their steps are long: in the valley some entries are smaller than others by a factor L, and the
    error must be relative to them. The difference quotients of short steps are rounding there.
    """

    def jacobian(t: float, x: np.ndarray) -> np.ndarray:
        columns = []
        for i, size in enumerate(_STEP * np.maximum(np.abs(x), 0.1)):
            move = np.zeros_like(x)
            move[i] = size
            columns.append((field(t, x + move) - field(t, x - move)) / (2 * size))
        return np.stack(columns, axis=1)

    return jacobian


def _same(y: np.ndarray) -> np.ndarray:
    return y


def _same_change(y: np.ndarray, dy: np.ndarray) -> np.ndarray:
    return dy


_PLAIN = Coordinates(_same, _same, _same_change)
