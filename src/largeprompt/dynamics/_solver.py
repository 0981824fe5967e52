"""One segment of a gradient flow, by diffrax."""

from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ..icl import AbstractParams, RiskFunction
from ..icl.params import Coordinates

_TIMES = 128
_CHUNK = 64  # points of a flow evaluated in one call


class Tolerances(NamedTuple):
    """The gradient norm at which a segment ends, and the tolerances of the solver."""

    goal: float | Array
    rtol: float | Array
    atol: float | Array


class Segment(NamedTuple):
    """The records of a segment, its end, and whether the solver succeeded."""

    times: np.ndarray
    points: np.ndarray
    last_time: float
    last_point: Float[Array, " n"]
    succeeded: bool


def follow(
    risk: RiskFunction,
    like: AbstractParams,
    start: Float[Array, " n"],
    t0: float,
    t1: float,
    times: np.ndarray | None,
    tolerances: Tolerances,
    *,
    implicit: bool,
    most_steps: int,
) -> Segment:
    """Follow y' = -grad R(y) from t0 until t1 or |grad R| <= goal.

    Recorded at `times` or, if that is None, at every step.
    """
    # In units of t0 the change of y over the segment is of order one, whatever t0: the stages of
    # the implicit solver are solved to an absolute tolerance on y'.
    unit = max(t0, 1e-3) if implicit else 1.0
    here = ravel_pytree(like)[1](start)
    coordinates = here.straight_coordinates() if implicit else None
    scaled = None
    if times is not None:
        # padded: one program serves all numbers of times up to the next multiple
        padded = np.pad(times, (0, -len(times) % _TIMES), mode="edge")
        scaled = jnp.asarray(np.clip(padded, t0, t1) / unit)
    span = tuple(jnp.asarray(x, jnp.float64) for x in (t0 / unit, t1 / unit, unit))
    limits = Tolerances(*(jnp.asarray(x, jnp.float64) for x in tolerances))
    ts, ys, last, point, okay = _solve(
        risk, like, start, span, scaled, limits, implicit, coordinates or _PLAIN, most_steps
    )
    last_time = min(float(last) * unit, t1)
    if times is None:
        recorded, points = np.asarray(ts) * unit, np.asarray(ys)
    else:
        recorded, points = times, np.asarray(ys)[: len(times)]
    # the start of this segment is the end of the one before
    kept = (recorded > t0) & (recorded <= last_time) & np.all(np.isfinite(points), axis=1)
    return Segment(recorded[kept], points[kept], last_time, point, bool(okay))


@eqx.filter_jit
def _solve(
    risk: RiskFunction,
    like: AbstractParams,
    start: Float[Array, " n"],
    span: tuple[Array, ...],
    times: Array | None,
    tolerances: Tolerances,
    implicit: bool,
    coordinates: Coordinates,
    most_steps: int,
) -> tuple[Array, Array, Array, Array, Array]:
    (t0, t1, unit), (goal, rtol, atol) = span, tolerances
    restore = ravel_pytree(like)[1]
    gradient = jax.grad(lambda y: risk(restore(y)))
    to, back, push = coordinates

    def field(t: object, x: Array, args: object) -> Array:
        y = back(x)
        return -unit * push(y, gradient(y))

    def arrived(t: object, x: Array, args: object, **_: object) -> Array:
        return jnp.linalg.norm(gradient(back(x))) <= goal

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno3() if implicit else diffrax.Dopri8(),
        t0=t0,
        t1=t1,
        dt0=jnp.minimum(1e-2, (t1 - t0) / 10),
        y0=to(start),
        saveat=diffrax.SaveAt(
            subs=[diffrax.SubSaveAt(steps=times is None, ts=times), diffrax.SubSaveAt(t1=True)]
        ),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        event=diffrax.Event(arrived),
        max_steps=most_steps,
        adjoint=diffrax.ForwardMode(),  # no gradients through the solver: half the compile time
        throw=False,
    )
    assert solution.ts is not None
    assert solution.ys is not None
    (ts, last_time), (ys, last_point) = solution.ts, solution.ys
    points = jax.vmap(back)(ys)
    return ts, points, last_time[0], back(last_point[0]), diffrax.is_okay(solution.result)


def _same(y: Float[Array, " n"]) -> Float[Array, " n"]:
    return y


def _same_change(y: Float[Array, " n"], dy: Float[Array, " n"]) -> Float[Array, " n"]:
    return dy


_PLAIN = Coordinates(_same, _same, _same_change)


def evaluate(
    risk: RiskFunction, like: AbstractParams, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Risk, gradient norm, and share of the gradient along the valley, at points of a flow."""
    found = []
    for start in range(0, len(points), _CHUNK):
        chunk = points[start : start + _CHUNK]
        padded = np.pad(chunk, ((0, _CHUNK - len(chunk)), (0, 0)), mode="edge")
        values = _evaluate(risk, like, jnp.asarray(padded), jnp.asarray(len(chunk), jnp.int32))
        found.append([np.asarray(v)[: len(chunk)] for v in values])
    risks, norms, shares = (np.concatenate(column) for column in zip(*found, strict=True))
    return risks, norms, shares


@eqx.filter_jit
def _evaluate(
    risk: RiskFunction, like: AbstractParams, ys: Float[Array, "points n"], count: Int[Array, ""]
) -> tuple[Array, Array, Array]:
    """The first `count` of the points: one program for any number of them."""
    restore = ravel_pytree(like)[1]

    def one(y: Float[Array, " n"]) -> tuple[Array, Array, Array]:
        value, gradient = jax.value_and_grad(lambda y: risk(restore(y)))(y)
        direction = restore(y).rescaled()
        if direction is None:
            return value, jnp.linalg.norm(gradient), jnp.zeros_like(value)
        along = ravel_pytree(direction)[0]
        size, length = jnp.linalg.norm(gradient), jnp.linalg.norm(along)
        whole = jnp.where(size * length > 0, size * length, 1.0)
        return value, size, jnp.abs(gradient @ along) / whole

    def step(i: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(a.at[i].set(b) for a, b in zip(found, one(ys[i]), strict=True))

    empty = jnp.zeros(len(ys), ys.dtype)
    risks, norms, shares = jax.lax.fori_loop(0, count, step, (empty, empty, empty))
    return risks, norms, shares
