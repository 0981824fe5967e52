"""Streamed attention on a GPU as one kernel, parallel over queries and over parts of the prompt.

Program (block of queries, part of the prompt) reads its tokens once, keeps scores and weights in
registers, and writes the moments of its part; the parts are merged as blocks of tokens are
(measures/tilted_moments.py). Parallelism over parts lets even one query fill the chip.

Tokens are float32 or bfloat16; scores, weights and sums are float32, and no product is rounded to
TensorFloat-32. For many queries of bfloat16 tokens the matrix units are used, with tilts and
weights split into two bfloat16 numbers each: a relative error of 2^-17. Many queries of float32
tokens are left to XLA, whose float32 matrix products are faster.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from .._softmax_sums import NO_WEIGHT, SoftmaxSums
from ..measures import Empirical, TiltedMoments

_FEW = 8  # most queries taken one by one: up to here memory bandwidth is the limit
_PARTS = 4096  # parts of the prompt for one query: about 32 programs on each of 132 processors
_QUERIES = 64  # queries of a block
_PROGRAMS = 1056  # programs for many queries
_TOKENS = (jnp.float32, jnp.bfloat16)
_WIDEST = 256  # coordinates that fit the registers


def fits(prompt: Empirical, queries: int, *, with_cov: bool) -> bool:
    """Whether there is a kernel for this prompt and number of queries."""
    if with_cov:
        return prompt.points.dtype in _TOKENS and queries <= _FEW and prompt.dim <= 64
    many = prompt.points.dtype == jnp.bfloat16
    few = prompt.points.dtype in _TOKENS and queries <= _FEW
    return (few or many) and prompt.dim <= _WIDEST


@partial(jax.jit, static_argnames=("with_cov", "interpret"))
def fused_moments(
    prompt: Empirical,
    tilts: Float[Array, "q d"],
    *,
    with_cov: bool = False,
    interpret: bool = False,
) -> TiltedMoments:
    """Moments of a prompt at q tilts; more than 8 are taken in blocks, on the matrix units."""
    tilts = tilts.astype(jnp.float32)
    if len(tilts) <= _FEW:
        parts = _one_by_one(prompt, tilts, with_cov, interpret)
    else:
        parts = _in_blocks(prompt, tilts, interpret)
    return parts.union()


def _one_by_one(
    prompt: Empirical, tilts: Float[Array, "q d"], with_cov: bool, interpret: bool
) -> TiltedMoments:
    """Moments of the parts of a prompt, shape (parts, q, ...), one program for each query.

    For covariances the tokens are centred at the mean of the first rows of the part.
    """
    (n, d), q = prompt.points.shape, len(tilts)
    width = max(16, _power_of_2(d))
    rows = max(16, 2048 // width)
    parts = min(_PARTS // 4 if with_cov else _PARTS, -(-n // rows))
    steps = -(-n // (rows * parts))
    weighted = prompt.log_weights is not None

    def kernel(tilt_ref, points_ref, *refs) -> None:
        log_weights_ref = refs[0] if weighted else None
        log_ref, mean_ref, *cov_refs = refs[weighted:]
        used = jax.lax.iota(jnp.int32, width) < d
        tilt = tilt_ref[...].reshape(width)
        first = pl.program_id(1) * steps * rows

        def load(start: Array) -> tuple[Array, Array]:
            """Load the tokens from `start` on and their log weights."""
            inside = start + jax.lax.iota(jnp.int32, rows) < n
            mask = inside[:, None] & used[None, :]
            at = points_ref.at[pl.ds(start, rows), pl.ds(0, width)]
            x = triton.load(at, mask=mask, other=0.0).astype(jnp.float32)
            logs = jnp.zeros(rows, jnp.float32)
            if log_weights_ref is not None:
                at = log_weights_ref.at[pl.ds(start, rows)]
                logs = triton.load(at, mask=inside, other=0.0).astype(jnp.float32)
            return x, jnp.where(inside, logs, NO_WEIGHT)

        centre = 0.0 * tilt
        if with_cov:
            present = jnp.clip(n - first, 1, rows).astype(jnp.float32)
            centre = jnp.sum(load(first)[0], axis=0) / present

        def step(i: Array, sums: SoftmaxSums) -> SoftmaxSums:
            x, logs = load(first + i * rows)
            scores = jnp.sum(x * tilt[None, :], axis=1) + logs
            top = jnp.maximum(sums.top, jnp.max(scores))
            weights = jnp.exp(scores - top)
            if with_cov:
                x = x - centre[None, :]
            weighted = weights[:, None] * x
            found = (jnp.sum(weights), jnp.sum(weighted, axis=0))
            if with_cov:
                found += (jnp.dot(weighted.T, x, precision="highest"),)
            return sums.rescaled(top).add(SoftmaxSums(top, found))

        zero = jnp.zeros((), jnp.float32)
        empty = (zero, 0.0 * tilt)
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
    padded = jnp.pad(tilts, ((0, 0), (0, width - d)))
    operands = [padded, prompt.points, *([prompt.log_weights] if weighted else [])]
    found = pl.pallas_call(
        kernel,
        grid=(q, parts),
        in_specs=[
            pl.BlockSpec((1, width), lambda b, c: (b, 0)),
            *(pl.BlockSpec(memory_space=pl.ANY) for _ in operands[1:]),
        ],
        out_specs=[_slot(shape) for shape in shapes],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=4 if with_cov else 1, num_stages=5),
        interpret=interpret,
    )(*operands)
    cov = found[2][..., :d, :d] if with_cov else None
    return TiltedMoments(found[0], found[1][..., :d], cov)


def _slot(shape: tuple[int, ...]) -> pl.BlockSpec:
    """Block of program (query, part) in an output of shape (parts, q, ...)."""
    rest = shape[2:]
    return pl.BlockSpec((1, 1, *rest), lambda b, c: (c, b, *(0 for _ in rest)))


def _in_blocks(prompt: Empirical, tilts: Float[Array, "q d"], interpret: bool) -> TiltedMoments:
    """Moments of the parts of a bfloat16 prompt for many queries, shape (parts, q, ...)."""
    (n, d), q = prompt.points.shape, len(tilts)
    width, rows = max(16, _power_of_2(d)), 128
    blocks = -(-q // _QUERIES)
    parts = min(max(1, _PROGRAMS // blocks), -(-n // rows))
    steps = -(-n // (rows * parts))
    weighted = prompt.log_weights is not None
    padded = jnp.pad(tilts, ((0, blocks * _QUERIES - q), (0, width - d)))

    def kernel(tilts_ref, points_ref, *refs) -> None:
        log_weights_ref = refs[0] if weighted else None
        log_ref, mean_ref = refs[weighted:]
        used = jax.lax.iota(jnp.int32, width) < d
        tilts = _halves(tilts_ref[...])
        first = pl.program_id(1) * steps * rows

        def step(i: Array, sums: SoftmaxSums) -> SoftmaxSums:
            start = first + i * rows
            inside = start + jax.lax.iota(jnp.int32, rows) < n
            at = points_ref.at[pl.ds(start, rows), pl.ds(0, width)]
            x = triton.load(at, mask=inside[:, None] & used[None, :], other=0.0)
            logs = jnp.zeros(rows, jnp.float32)
            if log_weights_ref is not None:
                at = log_weights_ref.at[pl.ds(start, rows)]
                logs = triton.load(at, mask=inside, other=0.0).astype(jnp.float32)
            scores = _product(tilts[0], x.T) + _product(tilts[1], x.T)
            scores = scores + jnp.where(inside, logs, NO_WEIGHT)[None, :]
            top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
            weights = jnp.exp(scores - top[:, None])
            total, weighted = sums.rescaled(top).first
            for part in _halves(weights):  # added one by one: the matrix units accumulate
                weighted = weighted + _product(part, x)
            return SoftmaxSums(top, (total + jnp.sum(weights, axis=1), weighted))

        zero = jnp.zeros(_QUERIES, jnp.float32)
        nothing = SoftmaxSums(zero + NO_WEIGHT, (zero, jnp.zeros((_QUERIES, width), jnp.float32)))
        sums = jax.lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, nothing)
        log_sum, (mean,) = sums.averages()
        log_ref[...] = log_sum[None, :]
        mean_ref[...] = mean[None, :, :]

    operands = [padded, prompt.points, *([prompt.log_weights] if weighted else [])]
    shapes = [(parts, blocks * _QUERIES), (parts, blocks * _QUERIES, width)]
    logs, means = pl.pallas_call(
        kernel,
        grid=(blocks, parts),
        in_specs=[
            pl.BlockSpec((_QUERIES, width), lambda b, c: (b, 0)),
            *(pl.BlockSpec(memory_space=pl.ANY) for _ in operands[1:]),
        ],
        out_specs=[
            pl.BlockSpec((1, _QUERIES), lambda b, c: (c, b)),
            pl.BlockSpec((1, _QUERIES, width), lambda b, c: (c, b, 0)),
        ],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
    )(*operands)
    return TiltedMoments(logs[:, :q], means[:, :q, :d], None)


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
