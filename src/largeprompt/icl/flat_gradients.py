"""Values and gradients of risks at known parameters, as flat vectors for the solvers of SciPy."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arrays import flattened, restorer
from .params import AbstractParams
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


@eqx.filter_jit
def _value_and_gradient(function: RiskFunction, params: AbstractParams) -> tuple[Array, Any]:
    return jax.value_and_grad(function)(params)
