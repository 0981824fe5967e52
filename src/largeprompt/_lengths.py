"""Prompt lengths: the one place that says what a length is, in the four forms functions need.

A length is a real number from 1 to 1e100, or infinity, which selects the infinite prompt.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from . import _checks
from ._float64 import is_traced, require_x64
from ._typing import Array, ArrayInput

# P_22 is of order L^-2, its integrands of order L^-3: beyond this they leave the range of float64
LONGEST = 1e100
_RULE = f"L must be >= 1 and at most {LONGEST:g}, or infinite"
_FIX = "pass the number of tokens of the prompt, or jnp.inf for the infinite prompt"


def length_array(L: ArrayInput, name: str = "this function") -> Float[Array, "..."] | np.ndarray:
    """Lengths as a float64 array: checked now if known (NumPy), at run time if traced (JAX).

    `name` is the function that error messages mention when JAX traces in 32-bit mode.
    """
    if is_traced(L):
        require_x64(name)
        array, received = jnp.asarray(L, jnp.float64), "a value outside that range"
    else:
        array, received = _checks.known("L", L), ""
    good = (array >= 1) & ((array <= LONGEST) | (array == np.inf))
    if not isinstance(good, Tracer) and not np.all(good):
        received = f"{np.asarray(array)[~np.asarray(good)].flat[0]:g}"
    return _checks.require(array, ~good, rule=_RULE, received=received, fix=_FIX)


def length_vector(lengths: ArrayInput) -> np.ndarray:
    """Known lengths as a non-empty float64 vector."""
    if is_traced(lengths):
        raise _checks.error(
            "lengths must be known before tracing", "traced values", "pass NumPy numbers"
        )
    array = np.atleast_1d(np.asarray(length_array(lengths), np.float64))
    if array.ndim != 1 or not array.size:
        raise _checks.error(
            "lengths must be a non-empty sequence of numbers",
            f"shape {array.shape}",
            "pass for example np.geomspace(10, 1e6, 60)",
        )
    return array


def one_length(L: ArrayInput) -> float:
    """One known length as a Python float."""
    found = _checks.number("L", L, _FIX, least=1.0, finite=False)
    return float(np.asarray(length_array(found)))


def token_count(L: Any) -> int:
    """The finite whole number of tokens of a prompt to be sampled."""
    if isinstance(L, (float, np.floating)) and float(L).is_integer():
        L = int(L)
    if isinstance(L, (float, np.floating)):
        fix = "round it, or use an exact method, which takes real and infinite lengths"
        rule = "L must be a whole number >= 1 where prompts are sampled"
        raise _checks.error(rule, f"{L:g}", fix)
    return _checks.count("L", L)


def longest_finite(lengths: np.ndarray) -> float:
    """The largest finite length, at least 2."""
    return float(np.max(lengths[np.isfinite(lengths)], initial=2.0))
