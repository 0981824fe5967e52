"""One code for NumPy and JAX: NumPy computes with known numbers, JAX with traced ones.

NumPy has nothing to compile, so the first answer takes milliseconds. Formulas that are worth it are
written with `xp = library(...)`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Values = Any  # NumPy or JAX arrays


def library(*trees: Any) -> Any:
    """`jax.numpy` if a leaf is a JAX array, otherwise `numpy`."""
    leaves = jax.tree.leaves(trees)
    return jnp if any(isinstance(leaf, jax.Array) for leaf in leaves) else np


def fixed(value: Values) -> Values:
    """The value without its derivative."""
    return jax.lax.stop_gradient(value) if library(value) is jnp else value


def to_numpy(tree: Any) -> Any:
    """The arrays of a tree, known numbers, as NumPy arrays in float64."""

    def convert(leaf: Any) -> Any:
        is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return np.asarray(leaf, np.float64) if is_float else np.asarray(leaf)

    return jax.tree.map(convert, tree)


def matmul(a: Values, b: Values) -> Values:
    """The product of two arrays, with all digits of their type."""
    return a @ b if library(a, b) is np else jnp.matmul(a, b, precision="highest")


def log_softmax(logs: Values) -> Values:
    """Logarithms of weights, shifted so that the weights sum to one."""
    if library(logs) is jnp:
        return jax.nn.log_softmax(logs)
    shifted = logs - np.max(logs)
    return shifted - np.log(np.sum(np.exp(shifted)))


def in_dtype(array: Values, dtype: Any) -> Values:
    """The array in a floating-point type; JAX arrays in 64-bit types only in 64-bit mode."""
    if isinstance(array, jax.Array):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def normal_of(key: Values, shape: tuple[int, ...], like: Values) -> Values:
    """Standard normal draws in the type of an array; float32 in place of float64 if JAX is in
    32-bit mode.
    """
    return jax.random.normal(key, shape, jax.dtypes.canonicalize_dtype(like.dtype))


def to_jax(tree: Any) -> Any:
    """NumPy arrays of a tree as JAX arrays of the same type, also while JAX traces others."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jax.tree.map(jax.device_put, tree)


def cast(tree: Any, dtype: Any) -> Any:
    """The arrays of a tree as JAX arrays of one type, by NumPy unless they are traced."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Tracer):
            return leaf.astype(dtype)
        return jax.device_put(np.asarray(leaf).astype(dtype))

    return jax.tree.map(convert, tree)


def flattened(tree: Any) -> np.ndarray:
    """The entries of a tree of known numbers, as one float64 vector."""
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def restorer(like: Any) -> Callable[[np.ndarray], Any]:
    """The inverse of `flattened`; leading axes of the array stay leading axes of the leaves."""
    split, structure = splitter(like), jax.tree.structure(like)
    return lambda flat: structure.unflatten(split(flat))


def splitter(like: Any) -> Callable[[np.ndarray], list[np.ndarray]]:
    """The leaves of a tree, from its `flattened` entries; leading axes stay leading axes."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(like)]
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    slices = [slice(start, end) for start, end in itertools.pairwise([0, *ends])]

    def split(flat: np.ndarray) -> list[np.ndarray]:
        before = flat.shape[:-1]
        return [flat[..., s].reshape(before + n) for s, n in zip(slices, shapes, strict=True)]

    return split
