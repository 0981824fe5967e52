"""Checks of (sigma, L), sigma from 0 to WIDEST, L from 1 to LONGEST or infinite, and kernels."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _checks
from .._typing import ArrayInput
from ._elementwise import Kernel, elementwise, evaluate
from ._exact import is_traced, require_x64


class _Rule(NamedTuple):
    rule: str
    fix: str


WIDEST = 1e8  # beyond, the nodes of the Laplace rule overflow
_SIGMA = _Rule(
    f"sigma must be finite and >= 0, and at most {WIDEST:g}",
    "pass the standard deviation sqrt(u' G u) of the scores",
)
# P_22 is of order L^-2, its integrands of order L^-3: beyond this they leave the range of float64
LONGEST = 1e100
LENGTH = _Rule(
    f"L must be >= 1 and at most {LONGEST:g}, or infinite",
    "pass the number of tokens of the prompt, or jnp.inf for the infinite prompt",
)


def _is_sigma(sigma: Any) -> Any:
    return (sigma >= 0) & (sigma <= WIDEST)


def is_length(L: Any) -> Any:
    """Whether each entry is a length: between 1 and LONGEST, or infinity."""
    return (L >= 1) & ((L <= LONGEST) | (np.inf == L))


# beyond this sigma, with fewer tokens than this, the nodes of the Laplace rule do not suffice
RESOLVED, SHORT = 40.0, 100.0


def known(name: str, value: ArrayInput) -> np.ndarray:
    """A known number or array in float64, which JAX in 32-bit mode would not keep."""
    try:
        array = np.asarray(value)
        # Python integers of more than 64 bits
        whole = array.dtype == object and all(isinstance(entry, int) for entry in array.flat)
        if not whole and array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            _checks.message(
                f"{name} must be a real number or an array of them",
                f"{type(value).__name__} ({error})",
                "pass a float, or a NumPy or JAX array",
            )
        ) from error


def checked(
    name: str, sigma: ArrayInput, L: ArrayInput
) -> tuple[Array | np.ndarray, Array | np.ndarray]:
    """(sigma, L) as float64, refused if outside the domain: at once if known, at run time if traced."""
    results = []
    for label, value, (rule, fix) in (("sigma", sigma, _SIGMA), ("L", L, LENGTH)):
        if is_traced(value):
            require_x64(name)
            array, received = jnp.asarray(value, jnp.float64), "a value outside that range"
            good = _is_sigma(array) if label == "sigma" else is_length(array)
        else:
            array = known(label, value)
            good = _is_sigma(array) if label == "sigma" else is_length(array)
            received = "" if np.all(good) else str(array[~good].flat[0])
        results.append(_checks.require(array, ~good, rule=rule, received=received, fix=fix))
    try:
        np.broadcast_shapes(*(a.shape for a in results))
    except ValueError as error:
        raise ValueError(
            _checks.message(
                "sigma and L must broadcast",
                f"shapes {results[0].shape} and {results[1].shape}",
                "add axes, for example sigma[:, None] against L[None, :]",
            )
        ) from error
    deviation, length = results
    unresolved = (deviation > RESOLVED) & (length < SHORT)
    deviation = _checks.require(
        deviation,
        unresolved,
        rule=f"sigma must be at most {RESOLVED:g} for prompts of fewer than {SHORT:g} tokens",
        received="a larger sigma with a shorter prompt",
        fix="scale the head down, or sample: one token takes nearly all the weight there",
    )
    return deviation, length


def apply(
    name: str, kernel: Kernel, sigma: ArrayInput, L: ArrayInput, *more: ArrayInput
) -> tuple[Array, ...]:
    """A kernel of (sigma, L, ...) over broadcast arguments: compiled here if known, staged if traced."""
    checked_args = checked(name, sigma, L)
    if not is_traced(*checked_args, *more):
        return evaluate(kernel, *checked_args, *more)
    require_x64(name)
    arrays = jnp.broadcast_arrays(*(jnp.asarray(a, jnp.float64) for a in (*checked_args, *more)))
    return elementwise(kernel)(*arrays)
