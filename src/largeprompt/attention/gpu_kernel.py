"""Streamed attention on a GPU as one kernel, parallel over queries and over parts of the prompt.

Program (block of queries, part of the prompt) reads its tokens once, keeps scores and weights in
registers, and writes the moments of its part; the parts are merged as blocks of tokens are
(measures/tilted_moments.py). Parallelism over parts lets even one query fill the chip. Keys and
values may be two arrays of different widths; a single array is loaded once for both.

Tokens are float32 or bfloat16; scores, weights and sums are float32, and no product is rounded to
TensorFloat-32. For many queries of bfloat16 tokens the matrix units are used, with tilts and
weights split into two bfloat16 numbers each: a relative error of 2^-17. Many queries of float32
tokens are left to XLA, whose float32 matrix products are faster.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from .._softmax_sums import NO_WEIGHT, SoftmaxSums
from ..measures import TiltedMoments

_FEW = 8  # most queries taken one by one: up to here memory bandwidth is the limit
_PARTS = 4096  # parts of the prompt for one query: about 32 programs on each of 132 processors
_QUERIES = 64  # queries of a block
_PROGRAMS = 1056  # programs for many queries
_TOKENS = (jnp.float32, jnp.bfloat16)
_WIDEST = 256  # coordinates that fit the registers


def fits(
    points: Float[Array, "n d"], values: Float[Array, "n v"] | None, queries: int, *, with_cov: bool
) -> bool:
    """Whether there is a kernel for these tokens (keys, if there are values) and so many queries.

    Covariances are those of a single array.
    """
    arrays = [points] if values is None else [points, values]
    kinds, widest = {array.dtype for array in arrays}, max(array.shape[-1] for array in arrays)
    known = len(kinds) == 1 and points.dtype in _TOKENS
    if with_cov:
        return known and values is None and queries <= _FEW and widest <= 64
    many = points.dtype == jnp.bfloat16
    return known and (queries <= _FEW or many) and widest <= _WIDEST


@partial(jax.jit, static_argnames=("with_cov", "interpret"))
def fused_moments(
    points: Float[Array, "n d"],
    values: Float[Array, "n v"] | None,
    log_weights: Float[Array, " n"] | None,
    tilts: Float[Array, "q d"],
    *,
    with_cov: bool = False,
    interpret: bool = False,
) -> TiltedMoments:
    """Moments of a prompt at q tilts; more than 8 are taken in blocks, on the matrix units.

    With `values`, the points give the weights only and the mean is that of the values.
    """
    arrays = _Arrays(points, values, log_weights)
    tilts = tilts.astype(jnp.float32)
    if len(tilts) <= _FEW:
        parts = _one_by_one(arrays, tilts, with_cov, interpret)
    else:
        parts = _in_blocks(arrays, tilts, interpret)
    return parts.union()


class _Arrays(NamedTuple):
    """Tokens of a prompt in the memory of the device, or references to them in a kernel."""

    points: Any
    values: Any
    log_weights: Any

    @property
    def present(self) -> list:
        """Those that are not None."""
        return [array for array in self if array is not None]

    @property
    def n(self) -> int:
        return self.points.shape[0]

    @property
    def widths(self) -> tuple[int, int]:
        """Coordinates of a key and of a value."""
        d = self.points.shape[1]
        return d, d if self.values is None else self.values.shape[1]

    @property
    def padded_widths(self) -> tuple[int, int]:
        """The powers of 2 that hold them, at least 16."""
        key, value = (max(16, _power_of_2(width)) for width in self.widths)
        return key, value

    def references(self, refs: tuple) -> "_Arrays":
        """The references to the arrays that are present, in order."""
        given = iter(refs)
        return _Arrays(*(None if array is None else next(given) for array in self))

    def load(self, start: Array, rows: int, n: int, kind: Any = None) -> tuple[Array, Array, Array]:
        """Keys and values of the tokens from `start` on and their log weights, from references.

        Rows and coordinates that do not exist are 0, and such rows have no weight.
        """
        inside = start + jax.lax.iota(jnp.int32, rows) < n

        def rows_of(ref: Any, width: int, padded: int) -> Array:
            used = jax.lax.iota(jnp.int32, padded) < width
            # a traced 0: JAX 0.12 rejects slices that are known to be too long, masked or not
            at = ref.at[pl.ds(start, rows), pl.ds(start - start, padded)]
            found = triton.load(at, mask=inside[:, None] & used[None, :], other=0.0)
            return found if kind is None else found.astype(kind)

        (key, value), (wide, read) = self.widths, self.padded_widths
        keys = rows_of(self.points, key, wide)
        values = keys if self.values is None else rows_of(self.values, value, read)
        logs = jnp.zeros(rows, jnp.float32)
        if self.log_weights is not None:
            at = self.log_weights.at[pl.ds(start, rows)]
            logs = triton.load(at, mask=inside, other=0.0).astype(jnp.float32)
        return keys, values, jnp.where(inside, logs, NO_WEIGHT)


def _one_by_one(
    arrays: _Arrays, tilts: Float[Array, "q d"], with_cov: bool, interpret: bool
) -> TiltedMoments:
    """Moments of the parts of a prompt, shape (parts, q, ...), one program for each query.

    For covariances the tokens are centred at the mean of the first rows of the part.
    """
    n, q, (d, v), (wide, width) = arrays.n, len(tilts), arrays.widths, arrays.padded_widths
    rows = max(16, 2048 // max(wide, width))
    parts = min(_PARTS // 4 if with_cov else _PARTS, -(-n // rows))
    steps = -(-n // (rows * parts))
    count = len(arrays.present)

    def kernel(tilt_ref, *refs) -> None:
        tokens = arrays.references(refs[:count])
        log_ref, mean_ref, *cov_refs = refs[count:]
        tilt = tilt_ref[...].reshape(wide)
        first = pl.program_id(1) * steps * rows
        load = partial(tokens.load, rows=rows, n=n, kind=jnp.float32)

        centre = jnp.zeros(width, jnp.float32)
        if with_cov:
            present = jnp.clip(n - first, 1, rows).astype(jnp.float32)
            centre = jnp.sum(load(first)[1], axis=0) / present

        def step(i: Array, sums: SoftmaxSums) -> SoftmaxSums:
            x, read, logs = load(first + i * rows)
            scores = jnp.sum(x * tilt[None, :], axis=1) + logs
            top = jnp.maximum(sums.top, jnp.max(scores))
            weights = jnp.exp(scores - top)
            if with_cov:
                read = read - centre[None, :]
            weighted = weights[:, None] * read
            found = (jnp.sum(weights), jnp.sum(weighted, axis=0))
            if with_cov:
                found += (jnp.dot(weighted.T, read, precision="highest"),)
            return sums.rescaled(top).add(SoftmaxSums(top, found))

        zero = jnp.zeros((), jnp.float32)
        empty = (zero, jnp.zeros(width, jnp.float32))
        if with_cov:
            empty += (jnp.zeros((width, width), jnp.float32),)
        nothing = SoftmaxSums(zero + NO_WEIGHT, empty)
        sums = jax.lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, nothing)
        log_sum, (gap, *squares) = sums.averages()
        log_ref[...] = log_sum.reshape(1, 1)
        mean_ref[...] = (centre + gap).reshape(1, 1, width)
        if with_cov:
            cov = squares[0] - gap[:, None] * gap[None, :]
            cov_refs[0][...] = cov.reshape(1, 1, width, width)

    shapes = [(parts, q), (parts, q, width), *([(parts, q, width, width)] if with_cov else [])]
    padded = jnp.pad(tilts, ((0, 0), (0, wide - d)))
    found = pl.pallas_call(
        kernel,
        grid=(q, parts),
        in_specs=[
            pl.BlockSpec((1, wide), lambda b, c: (b, 0)),
            *(pl.BlockSpec(memory_space=pl.ANY) for _ in arrays.present),
        ],
        out_specs=[_slot(shape) for shape in shapes],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=4 if with_cov else 1, num_stages=5),
        interpret=interpret,
    )(padded, *arrays.present)
    cov = found[2][..., :v, :v] if with_cov else None
    return TiltedMoments(found[0], found[1][..., :v], cov)


def _slot(shape: tuple[int, ...]) -> pl.BlockSpec:
    """Block of program (query, part) in an output of shape (parts, q, ...)."""
    rest = shape[2:]
    return pl.BlockSpec((1, 1, *rest), lambda b, c: (c, b, *(0 for _ in rest)))


def _in_blocks(arrays: _Arrays, tilts: Float[Array, "q d"], interpret: bool) -> TiltedMoments:
    """Moments of the parts of a bfloat16 prompt for many queries, shape (parts, q, ...)."""
    n, q, (d, v), (wide, width) = arrays.n, len(tilts), arrays.widths, arrays.padded_widths
    rows, blocks = 128, -(-q // _QUERIES)
    parts = min(max(1, _PROGRAMS // blocks), -(-n // rows))
    steps = -(-n // (rows * parts))
    count = len(arrays.present)
    padded = jnp.pad(tilts, ((0, blocks * _QUERIES - q), (0, wide - d)))

    def kernel(tilts_ref, *refs) -> None:
        tokens = arrays.references(refs[:count])
        log_ref, mean_ref = refs[count:]
        tilts = _halves(tilts_ref[...])
        first = pl.program_id(1) * steps * rows

        def step(i: Array, sums: SoftmaxSums) -> SoftmaxSums:
            x, read, logs = tokens.load(first + i * rows, rows, n)
            scores = _product(tilts[0], x.T) + _product(tilts[1], x.T) + logs[None, :]
            top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
            weights = jnp.exp(scores - top[:, None])
            total, weighted = sums.rescaled(top).first
            for part in _halves(weights):  # added one by one: the matrix units accumulate
                weighted = weighted + _product(part, read)
            return SoftmaxSums(top, (total + jnp.sum(weights, axis=1), weighted))

        zero = jnp.zeros(_QUERIES, jnp.float32)
        nothing = SoftmaxSums(zero + NO_WEIGHT, (zero, jnp.zeros((_QUERIES, width), jnp.float32)))
        sums = jax.lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, nothing)
        log_sum, (mean,) = sums.averages()
        log_ref[...] = log_sum[None, :]
        mean_ref[...] = mean[None, :, :]

    shapes = [(parts, blocks * _QUERIES), (parts, blocks * _QUERIES, width)]
    logs, means = pl.pallas_call(
        kernel,
        grid=(blocks, parts),
        in_specs=[
            pl.BlockSpec((_QUERIES, wide), lambda b, c: (b, 0)),
            *(pl.BlockSpec(memory_space=pl.ANY) for _ in arrays.present),
        ],
        out_specs=[
            pl.BlockSpec((1, _QUERIES), lambda b, c: (c, b)),
            pl.BlockSpec((1, _QUERIES, width), lambda b, c: (c, b, 0)),
        ],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
    )(padded, *arrays.present)
    return TiltedMoments(logs[:, :q], means[:, :q, :v], None)


def _halves(x: Float[Array, "..."]) -> tuple[Array, Array]:
    """Two bfloat16 numbers whose sum is x to 16 bits.

    Their products with bfloat16 tokens are as accurate as in float32. Only for use in a kernel: XLA
    would simplify the round trip through bfloat16 away and make the second number 0.
    """
    leading = x.astype(jnp.bfloat16)
    return leading, (x - leading.astype(jnp.float32)).astype(jnp.bfloat16)


def _product(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
