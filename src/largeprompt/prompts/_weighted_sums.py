"""Sums over the tokens of sampled prompts, weighted by e^{score}, without holding the tokens.

For prompts r = 0, 1, ... of L tokens with standard normal coordinates (g_i, ...) and scores sigma g_i the sums are

    sum_i w_i f(token_i)   and   sum_i w_i^2 f'(token_i),       w_i = e^{sigma g_i - M},  M any number (it cancels in ratios).

Token numbers are named by (key, prompt, counter), see normals.py, so a prompt is the same on every device and in every company. Two
ways lead to its sums: blocks of tokens in XLA with a running maximum, and on a GPU one fused kernel that keeps numbers, weights
and sums in registers. They differ by the rounding of the sums alone: in float32 a relative 1e-6 or so.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, UInt32

from .._message import message
from .normals import normal_pairs

_LONGEST = 2**32 - 1  # tokens and lengths are 32-bit numbers
_BLOCK = 2**13  # counters of a prompt taken at once by XLA
_NUMBERS = 2**17  # counters held at once, over prompts
_LANES = 256  # counters a program of the kernel takes at once
_WARPS = 1  # of a program: fastest of 1, 2 and 4 for long prompts
_TURNS = 256  # the most turns of a program: a lane adds no more than 512 numbers in float32
_PROGRAMS = 2**13  # programs that fill a large GPU


class Layout(NamedTuple):
    """What a pair of normals stands for: tokens, each its normal g of the score and the functions to sum with w and w^2."""

    tokens: Callable[[Array, Array], Sequence[tuple[Array, Sequence[Array], Sequence[Array]]]]
    per_counter: int  # tokens made of one pair
    first: int  # number of functions summed with w
    second: int  # and with w^2


def weighted_sums(
    key: UInt32[Array, " 2"],
    prompts: UInt32[Array, " n"],
    sigma: Float[Array, "#n"],
    L: UInt32[Array, "#n"],
    capacity: int,
    layout: Layout,
) -> tuple[Float[Array, "n first"], Float[Array, "n second"]]:
    """The sums of the prompts named, each with its own deviation of scores and length; `capacity` counters hold the longest."""
    by_blocks = partial(_by_blocks, capacity=capacity, layout=layout)
    sigma, L = (jnp.broadcast_to(a, prompts.shape) for a in (sigma, L))
    if jax.default_backend() != "gpu" or sigma.dtype != jnp.float32:
        return by_blocks(key, prompts, sigma, L)
    fused = partial(fused_sums, capacity=capacity, layout=layout)
    return jax.lax.platform_dependent(key, prompts, sigma, L, cuda=fused, default=by_blocks)


def capacity_for(L: int, layout: Layout) -> int:
    """Counters that hold L tokens, rounded up to three leading bits: few programs serve all lengths, an eighth is wasted at most."""
    if L > _LONGEST:
        raise ValueError(
            message(
                f"a sampled prompt has at most 2^32 - 1 = {_LONGEST} tokens",
                f"L = {L}",
                "use what is exact (output_error, finite_mean, gradient_error, oracle='exact'): its cost does not depend on L",
            )
        )
    pairs = -(-L // layout.per_counter)
    grain = 2 ** max(0, pairs.bit_length() - 4)
    return -(-pairs // grain) * grain


class _Summary(NamedTuple):
    """Largest score and sums relative to it."""

    top: Array
    first: list[Array]
    second: list[Array]

    def rescaled(self, top: Array) -> "_Summary":
        factor = jnp.exp(self.top - top)
        return _Summary(
            top, [factor * s for s in self.first], [factor * (factor * s) for s in self.second]
        )

    def plus(self, other: "_Summary") -> "_Summary":
        top = jnp.maximum(self.top, other.top)
        a, b = self.rescaled(top), other.rescaled(top)
        return _Summary(
            top,
            [x + y for x, y in zip(a.first, b.first, strict=True)],
            [x + y for x, y in zip(a.second, b.second, strict=True)],
        )

    def total(self, axis: int) -> "_Summary":
        """The sum over an axis."""
        top = jnp.max(self.top, axis=axis, keepdims=True)
        scaled = self.rescaled(top)
        return _Summary(
            jnp.squeeze(top, axis),
            [jnp.sum(s, axis=axis) for s in scaled.first],
            [jnp.sum(s, axis=axis) for s in scaled.second],
        )


def _drawn(key, prompt, counter, sigma: Array, L: Array, layout: Layout) -> list[_Summary]:
    """One summary for every token of the counters, elementwise: its score, and its terms before weighting."""
    found = []
    pair = normal_pairs(key, prompt, counter, sigma.dtype)
    for place, (g, first, second) in enumerate(layout.tokens(*pair)):
        index = counter * jnp.uint32(layout.per_counter) + jnp.uint32(place)
        # a token beyond L has weight e^{-inf}; no finite score is as low
        score = jnp.where(index < L, sigma * g, jnp.asarray(_NOTHING, g.dtype))
        found.append(_Summary(score, list(first), list(second)))
    return found


_NOTHING = -1e30  # in place of -inf, whose differences are not numbers


def _by_blocks(
    key: Array, prompts: Array, sigma: Array, L: Array, *, capacity: int, layout: Layout
) -> tuple[Array, Array]:
    block = min(_BLOCK, capacity)

    def of_block(prompt: Array, sigma: Array, L: Array, index: Array) -> _Summary:
        counter = index.astype(jnp.uint32) * jnp.uint32(block) + jax.lax.iota(jnp.uint32, block)
        tokens = _drawn(key, prompt, counter, sigma, L, layout)
        top = jnp.max(jnp.stack([jnp.max(token.top) for token in tokens]))
        weights = [jnp.exp(token.top - top) for token in tokens]
        first = [[_dot(w, c) for c in t.first] for w, t in zip(weights, tokens, strict=True)]
        second = [[_dot(w * w, c) for c in t.second] for w, t in zip(weights, tokens, strict=True)]
        added = [
            [jnp.sum(jnp.stack(column)) for column in zip(*sums, strict=True)]
            for sums in (first, second)
        ]
        return _Summary(top, *added)

    def one(prompt: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        summary = of_block(*prompt, jnp.uint32(0))
        if capacity > block:
            used = (prompt[2] - 1) // jnp.uint32(layout.per_counter * block) + 1
            summary = jax.lax.fori_loop(
                jnp.uint32(1), used, lambda i, sums: sums.plus(of_block(*prompt, i)), summary
            )
        return jnp.stack(summary.first), jnp.stack(summary.second)

    at_once = max(1, _NUMBERS // block)
    if len(prompts) <= at_once:
        return jax.vmap(one)((prompts, sigma, L))
    return jax.lax.map(one, (prompts, sigma, L), batch_size=at_once)


def _dot(weights: Array, column: Array) -> Array:
    """A product, not the sum of products: inside a loop XLA runs the latter on one core, without vector instructions."""
    return jnp.matmul(weights, column, precision="highest")


def fused_sums(
    key: Array,
    prompts: Array,
    sigma: Array,
    L: Array,
    *,
    capacity: int,
    layout: Layout,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """The same sums by one GPU kernel: program (prompt, part) takes `turns` times `_LANES` counters and keeps a summary a lane."""
    n, tiles = len(prompts), -(-capacity // _LANES)
    turns = min(_TURNS, max(1, n * tiles // _PROGRAMS), tiles)
    parts = -(-tiles // turns)
    widths = 1 + layout.first + layout.second

    def kernel(key_ref, prompt_ref, sigma_ref, length_ref, out_ref) -> None:
        words, prompt = (key_ref[0], key_ref[1]), prompt_ref[0]
        start = pl.program_id(1) * turns
        lane = jax.lax.iota(jnp.uint32, _LANES)
        # a shorter prompt than the capacity holds ends earlier
        needed = (length_ref[0] - 1) // jnp.uint32(layout.per_counter * _LANES) + 1
        last = jnp.clip(needed.astype(jnp.int32) - start, 0, turns)

        def turn(i: Array, sums: _Summary) -> _Summary:
            counter = ((start + i) * _LANES).astype(jnp.uint32) + lane
            tokens = _drawn(words, prompt, counter, sigma_ref[0], length_ref[0], layout)
            top = sums.top
            for token in tokens:
                top = jnp.maximum(top, token.top)
            sums = sums.rescaled(top)
            for token in tokens:
                weight = jnp.exp(token.top - top)
                sums = _Summary(
                    top,
                    [s + weight * c for s, c in zip(sums.first, token.first, strict=True)],
                    [
                        s + weight * weight * c
                        for s, c in zip(sums.second, token.second, strict=True)
                    ],
                )
            return sums

        zero = jnp.zeros(_LANES, jnp.float32)
        empty = _Summary(zero + _NOTHING, [zero] * layout.first, [zero] * layout.second)
        total = jax.lax.fori_loop(jnp.int32(0), last, turn, empty).total(0)
        for place, value in enumerate((total.top, *total.first, *total.second)):
            out_ref[0, 0, place] = value

    out = pl.pallas_call(
        kernel,
        grid=(n, parts),
        in_specs=[
            pl.BlockSpec((2,), lambda r, c: (0,)),
            *(pl.BlockSpec((1,), lambda r, c: (r,)) for _ in range(3)),
        ],
        out_specs=pl.BlockSpec((1, 1, widths), lambda r, c: (r, c, 0)),
        out_shape=jax.ShapeDtypeStruct((n, parts, widths), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=interpret,
    )(key, prompts, sigma, L)
    columns = list(jnp.moveaxis(out, -1, 0))
    found = _Summary(columns[0], columns[1 : 1 + layout.first], columns[1 + layout.first :])
    total = found.total(1)
    return jnp.stack(total.first, -1), jnp.stack(total.second, -1)
