"""Checks of (sigma, L), and kernels applied over them: sigma finite and >= 0, L >= 1 (infinity included)."""

from typing import NamedTuple

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


_SIGMA = _Rule(
    "sigma must be finite and >= 0", "pass the standard deviation sqrt(u' G u) of the scores"
)
LENGTH = _Rule(
    "L must be >= 1 (infinity allowed)",
    "pass the number of tokens of the prompt, or jnp.inf for the infinite prompt",
)


# beyond this sigma, with fewer tokens than this, the nodes of the Laplace rule do not suffice
RESOLVED, SHORT = 40.0, 100.0


def _known(name: str, value: ArrayInput) -> np.ndarray:
    """A known number or array in float64, which JAX in 32-bit mode would not keep."""
    try:
        array = np.asarray(value)
        if np.iscomplexobj(array) or array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
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
            good = (array >= 0) & jnp.isfinite(array) if label == "sigma" else array >= 1
        else:
            array = _known(label, value)
            good = (array >= 0) & np.isfinite(array) if label == "sigma" else array >= 1
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
