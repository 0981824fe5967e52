"""float64 for functions that promise exact numbers, whatever JAX's default, without touching that default."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _checks

Result = TypeVar("Result")


def is_traced(*values: Any) -> bool:
    """Whether any of the values is being traced by jit, vmap or grad."""
    return any(isinstance(value, Tracer) for value in values)


def require_x64(name: str) -> None:
    """Refuse to trace in 32-bit mode: float32 digits must not pass for exact ones."""
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            _checks.message(
                f"{name} under jit, vmap or grad needs JAX in 64-bit mode",
                "traced arguments in 32-bit mode",
                'jax.config.update("jax_enable_x64", True) at the start of the program',
            )
        )


def exact(function: Callable[..., Result]) -> Callable[..., Result]:
    """Run `function` in float64.

    Called with known numbers it computes in 64-bit mode and returns float64 arrays, in whatever mode the caller is. Traced
    while JAX is in 32-bit mode it raises, naming the fix, rather than return float32 digits as exact ones.
    """

    @wraps(function)
    def in_float64(*args: Any, **kwargs: Any) -> Result:
        leaves = jax.tree.leaves((args, kwargs))
        if not jax.config.read("jax_enable_x64"):
            if is_traced(*leaves):
                require_x64(function.__name__)
            with jax.enable_x64(True):
                return function(*_widened(args), **_widened(kwargs))
        return function(*_widened(args), **_widened(kwargs))

    return in_float64


def _widened(tree: Any) -> Any:
    """Every floating-point array of the tree in float64; other leaves as they are."""

    def widen(leaf: Any) -> Any:
        if eqx.is_inexact_array(leaf) and not jnp.iscomplexobj(leaf):
            return leaf.astype(jnp.float64)
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
            return leaf.astype(np.float64)
        return leaf

    return jax.tree.map(widen, tree)
