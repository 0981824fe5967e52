"""Run functions in float64 whatever JAX's default precision, without changing that default."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context

from . import _checks
from ._arrays import library, to_jax
from ._typing import Array

Result = TypeVar("Result")


def is_traced(*values: Any) -> bool:
    """Whether any leaf of the values is being traced by jit, vmap or grad."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def require_x64(name: str) -> None:
    """Raise if JAX traces in 32-bit mode: float32 results must not pass for float64 ones."""
    if not jax.config.read("jax_enable_x64"):
        raise _checks.error(
            f"{name} under jit, vmap or grad needs JAX in 64-bit mode",
            "traced arguments in 32-bit mode",
            'jax.config.update("jax_enable_x64", True) at the start of the program',
        )


def in_float64(function: Callable[..., Result]) -> Callable[..., Result]:
    """Run `function` in float64.

    With known numbers it computes in 64-bit mode and returns NumPy arrays in float64, whatever the
    caller's mode. Traced while JAX is in 32-bit mode it raises and names the one-line fix.
    """
    known = known_in_float64(function)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        if not is_traced(args, kwargs):
            return known(*args, **kwargs)
        require_x64(function.__name__)
        return function(*_widened(args), **_widened(kwargs))

    return wrapped


def known_in_float64(function: Callable[..., Result]) -> Callable[..., Result]:
    """Run `function` in float64 unless it is traced; with known numbers it returns NumPy arrays."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        if is_traced(args, kwargs):
            return function(*args, **kwargs)
        with known_numbers():
            return to_host(function(*_widened(args), **_widened(kwargs)))

    return wrapped


def in_numpy(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return NumPy arrays if no argument is a JAX array; their types are kept, float64 included."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        if library(args, kwargs) is not np:
            return function(*args, **kwargs)
        with known_numbers():
            return to_host(function(*args, **kwargs))

    return wrapped


@contextmanager
def known_numbers() -> Iterator[None]:
    """Compute with known numbers in 64-bit mode, at once even while JAX traces others."""
    with jax.enable_x64(True), eval_context():
        yield


def to_host(tree: Any) -> Any:
    """The known floating-point and boolean JAX arrays of a tree as NumPy arrays."""

    def convert(leaf: Any) -> Any:
        known = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
        if not known or not leaf.is_fully_addressable:
            return leaf
        return np.array(leaf) if eqx.is_inexact_array(leaf) or leaf.dtype == bool else leaf

    def is_function(node: Any) -> bool:
        return node is not tree and callable(node)  # JAX indexes the tables of an objective

    # a tree without JAX arrays stays the same object
    return tree if library(tree) is np else jax.tree.map(convert, tree, is_leaf=is_function)


def not_traced(function: Callable[..., Result]) -> Callable[..., Result]:
    """Raise if `function`, which returns no arrays or decides by values, is traced."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        fix = "call it with known numbers; lp.output_error and task.objective can be traced"
        refuse_traced(function.__name__, fix, args, kwargs)
        return function(*args, **kwargs)

    return wrapped


def refuse_traced(name: str, fix: str, *values: Any) -> None:
    """Raise if any of the values is traced."""
    if is_traced(*values):
        rule = f"{name} cannot run under jit, vmap or grad"
        raise _checks.error(rule, "traced arguments", fix)


def by_host(
    function: Callable[..., Sequence[np.ndarray]], shapes: Sequence[tuple[int, ...]], *arrays: Array
) -> list[Array]:
    """The float64 arrays of these shapes that a NumPy function makes of traced float64 arrays.

    They travel as pairs of 32-bit words: callbacks run in threads of JAX, which are in 32-bit mode
    if that is the default, and would round them.
    """

    def called(*words: Any) -> list[np.ndarray]:
        numbers = [np.array(pair).view(np.float64)[..., 0] for pair in words]
        found = [np.array(a, np.float64, order="C") for a in function(*numbers)]
        return [a.reshape(*a.shape, 1).view(np.uint32) for a in found]

    def split(array: Array) -> Array:
        return jax.lax.bitcast_convert_type(jnp.asarray(array, jnp.float64), jnp.uint32)

    results = [jax.ShapeDtypeStruct((*shape, 2), jnp.uint32) for shape in shapes]
    found = jax.pure_callback(called, results, *map(split, arrays), vmap_method="sequential")
    return [jax.lax.bitcast_convert_type(pair, jnp.float64) for pair in found]


def _widened(tree: Any) -> Any:
    """Cast every floating-point array of the tree to float64; those of modules become JAX arrays.

    Other leaves are kept.
    """

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, eqx.Module):
            return jax.tree.map(lambda part: _of_module(widen(part)), leaf)
        if isinstance(leaf, (np.ndarray, np.generic)):
            return leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf
        if eqx.is_inexact_array(leaf) and leaf.dtype != np.float64 and not jnp.iscomplexobj(leaf):
            if is_traced(leaf) or len(leaf.devices()) > 1:
                return leaf.astype(jnp.float64)
            # by NumPy, which has nothing to compile
            return jax.device_put(np.asarray(leaf, np.float64), leaf.sharding)
        return leaf

    return jax.tree.map(widen, tree, is_leaf=lambda node: isinstance(node, eqx.Module))


def _of_module(leaf: Any) -> Any:
    return to_jax(leaf) if isinstance(leaf, np.ndarray) else leaf
