"""Checks of (sigma, L): sigma finite and >= 0, L >= 1 (infinity included)."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._typing import ArrayInput
from ._elementwise import Kernel, elementwise, evaluate, is_traced, require_x64

_SIGMA = (
    "sigma must be finite and >= 0; received {}. "
    "To fix: pass the standard deviation sqrt(u' G u) of the scores."
)
_LENGTH = (
    "L must be >= 1 (infinity allowed); received {}. "
    "To fix: pass the number of tokens, or jnp.inf for the limit."
)


def _concrete(name: str, value: ArrayInput) -> np.ndarray:
    try:
        array = np.asarray(value)
        if np.iscomplexobj(array) or array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a real number or an array of them; received {type(value).__name__} "
            f"({error}). "
            "To fix: pass a float, or a NumPy or JAX array."
        ) from error


def checked(
    name: str, sigma: ArrayInput, L: ArrayInput
) -> tuple[Array | np.ndarray, Array | np.ndarray]:
    """(sigma, L) as float64, refused outside the domain: at once if known, else at run time."""
    results = []
    for label, value, text in (("sigma", sigma, _SIGMA), ("L", L, _LENGTH)):
        if is_traced(value):
            require_x64(name)
            array = jnp.asarray(value, jnp.float64)
            good = (array >= 0) & jnp.isfinite(array) if label == "sigma" else array >= 1
            array = eqx.error_if(array, ~good, text.format("a value outside that range"))
        else:
            array = _concrete(label, value)
            good = (array >= 0) & np.isfinite(array) if label == "sigma" else array >= 1
            if not np.all(good):
                raise ValueError(text.format(array[~good].flat[0]))
        results.append(array)
    try:
        np.broadcast_shapes(*(a.shape for a in results))
    except ValueError as error:
        raise ValueError(
            f"sigma and L must broadcast; received shapes {results[0].shape} and "
            f"{results[1].shape}. To fix: add axes, "
            "for example sigma[:, None] against L[None, :]."
        ) from error
    return results[0], results[1]


def apply(
    name: str, kernel: Kernel, sigma: ArrayInput, L: ArrayInput, *more: ArrayInput
) -> tuple[Array, ...]:
    """A kernel of (sigma, L, ...) over broadcast arguments: run now if known, staged if traced."""
    checked_args = checked(name, sigma, L)
    if not is_traced(*checked_args, *more):
        return evaluate(kernel, *checked_args, *more)
    require_x64(name)
    arrays = jnp.broadcast_arrays(*(jnp.asarray(a, jnp.float64) for a in (*checked_args, *more)))
    return elementwise(kernel)(*arrays)
