"""One segment of a gradient flow, by the solvers of SciPy.

They call a gradient from Python, so that nothing is compiled around it: a compiled solver takes
much longer to compile than these take to run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import DOP853, Radau

from ..icl.coordinates import Coordinates

_LEAST_RTOL = 1e-13  # what rounding allows
_STEP = 1e-4  # of the difference quotients in the Jacobian

ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


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
    to, back, push = coordinates or _PLAIN

    def field(_: float, x: np.ndarray) -> np.ndarray:
        y = back(x)
        return -push(y, evaluate(y)[1])

    options: dict[str, Any] = {
        "rtol": max(tolerances.rtol, _LEAST_RTOL),
        "atol": tolerances.atol,
        "first_step": min(1e-2 * max(t0, 1e-3 if implicit else 1.0), (t1 - t0) / 10),
    }
    if implicit:
        solver = Radau(field, t0, to(start), t1, jac=_jacobian(field), **options)
    else:
        solver = DOP853(field, t0, to(start), t1, **options)
    recorded, points = [], []
    arrived = False
    for _ in range(most_steps):
        if arrived or solver.status != "running":
            break
        before = solver.t
        with np.errstate(all="ignore"):  # steps that overflow are rejected
            solver.step()
        if solver.status == "failed":
            break
        arrived = bool(np.linalg.norm(evaluate(back(solver.y))[1]) <= tolerances.goal)
        if times is None:
            recorded.append(solver.t)
            points.append(back(solver.y))
        else:
            inside = times[(times > before) & (times <= solver.t)]
            if inside.size:
                recorded.extend(inside)
                points.extend(map(back, solver.dense_output()(inside).T))
    return Segment(
        np.array(recorded),
        np.array(points).reshape(len(points), len(start)),
        float(solver.t),
        back(solver.y),
        arrived or solver.status == "finished",
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
