"""Suprema over a ball of parameters, for the bound of Lemma D.1."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from .. import _checks
from .._typing import Array
from ..icl import AbstractParams, RiskFunction

_STARTS = 8
_ASCENT = 200  # steps


def enclosing_ball(points: Float[np.ndarray, "points n"]) -> tuple[np.ndarray, float]:
    """Centre and radius of a ball around all points [Badoiu & Clarkson 2003].

    The radius is at most a percent above the smallest.
    """
    centre = points[0]
    for i in range(1, 10_000):
        farthest = points[np.argmax(np.sum((points - centre) ** 2, axis=1))]
        centre = centre + (farthest - centre) / (i + 1)
    return centre, float(np.sqrt(np.max(np.sum((points - centre) ** 2, axis=1))))


def steepest(risk: RiskFunction, like: AbstractParams, centre: np.ndarray, radius: float) -> float:
    """The Lipschitz constant of grad R on the ball: the largest |h'Hess R(y) h| over |h| = 1."""
    value = float(_steepest(risk, like, jnp.asarray(centre), jnp.asarray(radius)))
    return _known(value, radius)


def gradient_gap(
    risk: RiskFunction, other: RiskFunction, like: AbstractParams, centre: np.ndarray, radius: float
) -> float:
    """The largest |grad R - grad R'| on the ball."""
    value = float(_gap(risk, other, like, jnp.asarray(centre), jnp.asarray(radius)))
    return _known(value, radius)


def _known(value: float, radius: float) -> float:
    if not np.isfinite(value):
        raise _checks.error(
            "the risks must be known on the whole ball the flows visit",
            f"a ball of radius {radius:.3g} that leaves their domain",
            "compare over a shorter time, or start from smaller parameters",
        )
    return value


@eqx.filter_jit
def _steepest(risk: RiskFunction, like: AbstractParams, centre: Array, radius: Array) -> Array:
    restore = ravel_pytree(like)[1]
    gradient = jax.grad(lambda y: risk(restore(y)))

    def curvature(y: Array, h: Array) -> Array:
        h = h / jnp.linalg.norm(h)
        return jnp.abs(h @ jax.jvp(gradient, (y,), (h,))[1])

    return _largest(curvature, centre, radius, directions=True)


@eqx.filter_jit
def _gap(
    risk: RiskFunction, other: RiskFunction, like: AbstractParams, centre: Array, radius: Array
) -> Array:
    restore = ravel_pytree(like)[1]
    gradient = jax.grad(lambda y: risk(restore(y)) - other(restore(y)))
    # of a smooth function: at equal gradients the norm itself has no derivative
    return jnp.sqrt(
        _largest(lambda y, h: jnp.sum(gradient(y) ** 2), centre, radius, directions=False)
    )


def _largest(
    function: Callable[[Array, Array], Array], centre: Array, radius: Array, *, directions: bool
) -> Array:
    """The largest value found by projected gradient ascent from several points of the ball."""
    n = len(centre)
    for_points, for_directions = jax.random.split(jax.random.key(0))
    away = jax.random.normal(for_points, (_STARTS, n), centre.dtype)
    away = away / jnp.linalg.norm(away, axis=1, keepdims=True)
    others = jax.random.normal(for_directions, (_STARTS, n), centre.dtype)
    ascent = optax.adam(optax.cosine_decay_schedule(0.1, _ASCENT, 0.01))

    def one(x: tuple[Array, Array]) -> Array:
        def value(x: tuple[Array, Array]) -> Array:
            return function(centre + radius * x[0], x[1])

        def step(carry: tuple, _: None) -> tuple[tuple, Array]:
            x, state = carry
            found, slope = jax.value_and_grad(value)(x)
            # steps of the optimiser have the size of its rate whatever the scale of the value
            change, state = ascent.update(jax.tree.map(jnp.negative, slope), state)
            moved: Any = optax.apply_updates(x, change)
            inside, free = moved
            inside = optax.projections.projection_l2_ball(inside)
            return ((inside, free if directions else x[1]), state), found

        with jax.numpy_dtype_promotion("standard"):  # the schedule counts its steps in integers
            _, values = jax.lax.scan(step, (x, ascent.init(x)), None, length=_ASCENT)
        return jnp.max(values)

    return jnp.max(jax.lax.map(one, (away, others)))
