"""Elementwise numerical kernels as array functions: in chunks, differentiable, always float64.

A kernel maps arrays of one shape to a tuple of such arrays, entry by entry, and needs up to a
megabyte of memory an entry. Known arguments are evaluated by NumPy; traced ones by JAX, in chunks,
so that memory is bounded (also under `vmap`), and differentiated in forward mode (one extra
evaluation, nothing stored, for `grad` as well).
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from .._typing import Array, ArrayInput

Kernel = Callable[..., tuple[Any, ...]]  # of NumPy arrays, or of JAX arrays

_CHUNK = 16  # entries that JAX evaluates at once: the kernels' matrices then stay in cache
_BLOCK = 256  # entries that NumPy evaluates at once
_STEP = 1e-10  # of complex steps, relative


def _chunked(kernel: Kernel) -> Kernel:
    """The kernel over arrays of one shape, in chunks; axes of `vmap` join the chunks."""

    @jax.jit  # so that grad and vmap outside jit do not run the kernel one primitive at a time
    def run(*args: Array) -> tuple[Array, ...]:
        shape, size = args[0].shape, args[0].size
        flat = [jnp.ravel(a) for a in args]
        if size <= _CHUNK:
            out = kernel(*flat)
        else:
            pad = -size % _CHUNK
            chunks = [jnp.pad(a, (0, pad), mode="edge").reshape(-1, _CHUNK) for a in flat]
            out = jax.lax.map(lambda chunk: kernel(*chunk), tuple(chunks))
            out = jax.tree.map(lambda a: a.ravel()[:size], out)
        return jax.tree.map(lambda a: a.reshape(shape), out)

    @custom_vmap
    def chunked(*args: Array) -> tuple[Array, ...]:
        return run(*args)

    @chunked.def_vmap
    def rule(axis_size, batched, *args):
        grown = [
            a if b else jnp.broadcast_to(a, (axis_size, *a.shape))
            for a, b in zip(args, batched, strict=True)
        ]
        out = chunked(*grown)
        return out, jax.tree.map(lambda _: True, out)

    return chunked


@lru_cache(maxsize=512)
def with_slopes(kernel: Kernel, argnums: tuple[int, ...]) -> Kernel:
    """(value, derivatives in each of these arguments), each a tuple like the kernel's.

    One program, in which all derivatives share the values: `vmap` goes over the directions.
    """

    def every(*args: Array) -> tuple[Array, ...]:
        def along(*moved: Array) -> tuple[Array, ...]:
            given = list(args)
            for argnum, x in zip(argnums, moved, strict=True):
                given[argnum] = x
            return kernel(*given)

        moved = tuple(args[argnum] for argnum in argnums)

        def in_direction(direction: tuple[Array, ...]) -> tuple[Any, ...]:
            tangents = (jnp.broadcast_to(d, x.shape) for d, x in zip(direction, moved, strict=True))
            return jax.jvp(along, moved, tuple(tangents))

        if len(argnums) == 1:
            value, slope = in_direction((jnp.ones(()),))
            return (*value, *slope)
        directions = tuple(jnp.eye(len(argnums)))
        value, slopes = jax.vmap(in_direction, out_axes=(None, 0))(directions)
        return (*value, *(slope[i] for i in range(len(argnums)) for slope in slopes))

    return every


@lru_cache(maxsize=512)
def elementwise(kernel: Kernel) -> Kernel:
    """The kernel over float64 arrays of one shape, differentiable in all arguments, any order."""
    chunked = _chunked(kernel)

    @jax.custom_jvp
    def call(*args: Array) -> tuple[Array, ...]:
        return chunked(*args)

    def rule(primals, tangents):
        symbolic = jax.custom_derivatives.SymbolicZero
        moved = tuple(i for i, each in enumerate(tangents) if not isinstance(each, symbolic))
        if not moved:
            out = call(*primals)
            return out, tuple(map(jnp.zeros_like, out))
        found = elementwise(with_slopes(kernel, moved))(*primals)
        size = len(found) // (1 + len(moved))
        out, total = found[:size], ()
        for place, argnum in enumerate(moved, start=1):
            slope = found[place * size : (place + 1) * size]
            part = tuple(s * tangents[argnum] for s in slope)
            total = tuple(map(jnp.add, total, part)) if total else part
        return out, total

    call.defjvp(rule, symbolic_zeros=True)
    return call


def evaluate(kernel: Kernel, *args: ArrayInput) -> tuple[np.ndarray, ...]:
    """The kernel on known arguments, broadcast, by NumPy: nothing is compiled."""
    arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in args))
    return _by_numpy(kernel, list(arrays))


def evaluate_with_slope(kernel: Kernel, argnum: int, *args: ArrayInput) -> tuple[np.ndarray, ...]:
    """Values, and derivatives in one argument by a complex step, which loses no digits."""
    arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in args))
    arrays = [a.astype(complex if i == argnum else float) for i, a in enumerate(arrays)]
    with np.errstate(invalid="ignore"):  # infinite arguments have no step
        size = _STEP * np.abs(arrays[argnum])
        arrays[argnum] += 1j * np.where(np.isfinite(size), size, 0.0)
    found = _by_numpy(kernel, arrays)
    slopes = [np.imag(value) / size for value in found]
    return (*map(np.real, found), *slopes)


def _by_numpy(kernel: Kernel, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    shape, flat = arrays[0].shape, [a.ravel() for a in arrays]
    if not flat[0].size:
        flat = [np.ones(1, a.dtype) for a in flat]
    # neighbours need the same lattice, so that NumPy computes only one of two
    order = np.argsort(np.real(flat[0]))
    chunks = [order[i : i + _BLOCK] for i in range(0, len(order), _BLOCK)]
    with np.errstate(all="ignore"):
        found = [kernel(*(a[chunk] for a in flat)) for chunk in chunks]
    places = np.argsort(order)
    outputs = (np.concatenate(column)[places] for column in zip(*found, strict=True))
    return tuple(o[: math.prod(shape)].reshape(shape) for o in outputs)
