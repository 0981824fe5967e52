"""Values and gradients of risks at known parameters, as flat vectors for the solvers of SciPy."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arrays import flattened, restorer
from .coordinates import Coordinates
from .params import AbstractParams, blocks_of
from .risks import RiskFunction, by_numpy


def flat_value_and_gradient(
    function: RiskFunction, like: AbstractParams
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """A function of parameters and its gradient at known parameters, as flat vectors (NumPy).

    By the function's own formula, or by one compiled program; in 64-bit mode.
    """
    restore, known = restorer(like), by_numpy(function, like)

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        params = restore(flat)
        if known is not None:
            value, gradient = known(*jax.tree.leaves(params))
        else:
            value, gradient = _value_and_gradient(function, jax.tree.map(jnp.asarray, params))
        return float(value), flattened(gradient)

    return evaluate


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
