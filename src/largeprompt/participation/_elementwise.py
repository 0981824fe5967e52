"""Scalar numerical kernels as array functions: chunked, differentiable, always float64.

A kernel is a function of scalars that returns a tuple of scalars and needs about a megabyte of
memory. This module applies it to arrays in chunks, so that memory is bounded (also under `vmap`),
and differentiates it in forward mode (one extra evaluation, nothing stored, for `grad` as well).
"""

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from .._typing import ArrayInput

Kernel = Callable[..., tuple[Array, ...]]

_CHUNK = 16  # scalars evaluated at once: the kernels' matrices then stay in cache
_BLOCK = 1024  # scalars handed to one compiled call outside jit


def _chunked(kernel: Kernel) -> Kernel:
    """The kernel over arrays of one shape, in chunks; axes of `vmap` join the chunks."""

    @jax.jit  # so that grad and vmap outside jit do not run the kernel one primitive at a time
    def run(*args: Array) -> tuple[Array, ...]:
        shape, size = args[0].shape, args[0].size
        flat = [jnp.ravel(a) for a in args]
        if size <= _CHUNK:
            out = jax.vmap(kernel)(*flat)
        else:
            pad = -size % _CHUNK
            chunks = [jnp.pad(a, (0, pad), mode="edge").reshape(-1, _CHUNK) for a in flat]
            out = jax.lax.map(lambda chunk: jax.vmap(kernel)(*chunk), tuple(chunks))
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
def with_slope(kernel: Kernel, argnum: int) -> Kernel:
    """(value, derivative in one argument), each a tuple like the kernel's."""

    def both(*args: Array) -> tuple[Array, ...]:
        def along(x: Array) -> tuple[Array, ...]:
            return kernel(*args[:argnum], x, *args[argnum + 1 :])

        value, slope = jax.jvp(along, (args[argnum],), (jnp.ones_like(args[argnum]),))
        return (*value, *slope)

    return both


@lru_cache(maxsize=512)
def elementwise(kernel: Kernel) -> Kernel:
    """The kernel over float64 arrays of one shape, differentiable in all arguments, any order."""
    chunked = _chunked(kernel)

    @jax.custom_jvp
    def call(*args: Array) -> tuple[Array, ...]:
        return chunked(*args)

    def rule(primals, tangents):
        out, total = (), ()
        for argnum, tangent in enumerate(tangents):
            if isinstance(tangent, jax.custom_derivatives.SymbolicZero):
                continue
            both = elementwise(with_slope(kernel, argnum))(*primals)
            half = len(both) // 2
            out, slope = both[:half], both[half:]
            part = tuple(s * tangent for s in slope)
            total = tuple(map(jnp.add, total, part)) if total else part
        if not out:
            out = call(*primals)
            total = tuple(map(jnp.zeros_like, out))
        return out, total

    call.defjvp(rule, symbolic_zeros=True)
    return call


@lru_cache(maxsize=512)
def _compiled_block(kernel: Kernel) -> Kernel:
    """One executable for up to _BLOCK scalars: the number of chunks is a run-time value."""

    def run(chunks: Array, *args: Float[Array, " block"]) -> tuple[Array, ...]:
        def body(i: Array, out: tuple[Array, ...]) -> tuple[Array, ...]:
            part = [jax.lax.dynamic_slice_in_dim(a, i * _CHUNK, _CHUNK) for a in args]
            new = jax.vmap(kernel)(*part)
            return tuple(
                jax.lax.dynamic_update_slice_in_dim(o, n, i * _CHUNK, 0)
                for o, n in zip(out, new, strict=True)
            )

        shapes = jax.eval_shape(jax.vmap(kernel), *args)
        return jax.lax.fori_loop(
            0, chunks, body, tuple(jnp.zeros(s.shape, s.dtype) for s in shapes)
        )

    return jax.jit(run)


def evaluate(kernel: Kernel, *args: ArrayInput) -> tuple[Float[Array, "..."], ...]:
    """The kernel on concrete arguments, broadcast, in float64 whatever JAX's default is.

    No recompilation when values, or the number of values, change.
    """
    arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in args))
    shape, size = arrays[0].shape, arrays[0].size
    flat = [np.ravel(a) for a in arrays]
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        if size == 0:
            outputs = jax.eval_shape(kernel, *(np.float64(1.0) for _ in flat))
            return tuple(jnp.zeros(shape, jnp.float64) for _ in outputs)
        blocks = []
        for start in range(0, size, _BLOCK):
            piece = [a[start : start + _BLOCK] for a in flat]
            count = piece[0].size
            padded = [np.pad(a, (0, _BLOCK - count), mode="edge") for a in piece]
            out = _compiled_block(kernel)(np.int32(-(-count // _CHUNK)), *padded)
            blocks.append([np.asarray(o)[:count] for o in out])
        columns = zip(*blocks, strict=True)
        return tuple(jax.device_put(np.concatenate(c).reshape(shape)) for c in columns)
