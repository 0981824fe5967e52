"""Values and gradients of risks at known parameters, as flat vectors for the solvers of SciPy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import flattened, restorer, splitter
from .._typing import Array
from .coordinates import Coordinates
from .params import AbstractParams, blocks_of
from .risks import NumpyFunction, RiskFunction, by_numpy

ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


def flat_value_and_gradient(function: RiskFunction, like: AbstractParams) -> ValueAndGradient:
    """A function of parameters and its gradient at known parameters, as flat vectors (NumPy).

    By the function's own formula, or by one compiled program; in 64-bit mode.
    """
    known = by_numpy(function, like)
    if known is None:
        return partial(_by_program, function, restorer(like))
    return partial(_by_formula, known, splitter(like))


def _by_formula(
    known: NumpyFunction, split: Callable[[np.ndarray], list[np.ndarray]], flat: np.ndarray
) -> tuple[float, np.ndarray]:
    value, gradient = known(*split(flat))
    return float(value), np.concatenate([part.ravel() for part in gradient])


def _by_program(
    function: RiskFunction, restore: Callable[[np.ndarray], AbstractParams], flat: np.ndarray
) -> tuple[float, np.ndarray]:
    value, gradient = _value_and_gradient(function, jax.tree.map(jnp.asarray, restore(flat)))
    return float(value), flattened(gradient)


def coordinates_for(function: RiskFunction, params: AbstractParams) -> Coordinates | None:
    """Coordinates for an implicit solver: those the function knows to be invariant, or the
    straight ones of the parameters.
    """
    invariant = getattr(function, "invariant_coordinates", None)
    blocks = blocks_of(params)
    if invariant is not None and blocks is not None and by_numpy(function, params) is not None:
        return invariant(np.stack([np.asarray(block.A) for block in blocks]))
    return params.straight_coordinates()


@eqx.filter_jit
def _value_and_gradient(function: RiskFunction, params: AbstractParams) -> tuple[Array, Any]:
    return jax.value_and_grad(function)(params)
