"""Sums over the tokens of sampled prompts, weighted by e^{score}, without holding the tokens.

For prompts r = 0, 1, ... of L tokens with standard normal coordinates (g_i, ...) and scores
sigma g_i the sums are

    sum_i w_i f_a f_b   and   sum_i w_i^2 f_a f_b,       w_i = e^{sigma g_i - M},

M any number (it cancels in ratios), for some pairs (a, b) of functions f_a of a token.

The numbers of a token depend on (key, prompt, counter) alone (see normals.py), so a prompt is the
same on every device and in every batch. There are three implementations: blocks of tokens in XLA
with a running maximum, and kernels that keep numbers, weights and sums in registers, one for GPUs
(below) and one for CPUs (_native). They differ by rounding, in float32 about 1e-6 relative.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.backend import backends
from jaxtyping import Float, UInt32

from .. import _native
from .._message import error
from .._softmax_sums import NO_WEIGHT, SoftmaxSums
from .._typing import Array
from .normals import Words, normal_pairs

_LONGEST = 2**32 - 1  # tokens and lengths are 32-bit numbers
_BLOCK = 2**13  # counters of a prompt taken at once by XLA
_NUMBERS = 2**18  # counters in memory at once, over prompts
_LANES = 256  # counters a program of the kernel takes at once
_WARPS = 1  # of a program: fastest of 1, 2 and 4 for long prompts
_TURNS = 256  # the most turns of a program: a lane adds no more than 512 numbers in float32
_PROGRAMS = 2**13  # programs that fill a large GPU

Pairs = tuple[tuple[int, int], ...]
Scales = tuple[Float[Array, "#n"], ...]


class Layout(NamedTuple):
    """What a pair of normals stands for, and what is summed."""

    # (normal, normal, further scales of the prompt) -> for each token the normal g of its score,
    # and its functions f_a
    tokens: Callable[..., Sequence[tuple[Array, Sequence[Array]]]]
    per_counter: int  # tokens made of one pair
    first: Pairs  # (a, b) of the sums of w f_a f_b
    second: Pairs  # and of w^2 f_a f_b
    native: bool = False  # whether the CPU's kernel knows it


def weighted_sums(
    key: UInt32[Array, " 2"],
    prompts: UInt32[Array, " n"],
    scales: Scales,
    L: UInt32[Array, "#n"],
    capacity: int,
    layout: Layout,
) -> tuple[Float[Array, "n first"], Float[Array, "n second"]]:
    """The sums for the given prompts; `capacity` counters hold the longest.

    Each prompt has its own length and scales: the deviation sigma of its scores, then the further
    arguments of the layout's `tokens`.
    """
    L, *rest = (jnp.broadcast_to(a, prompts.shape) for a in (L, *scales))
    return _fastest(key, prompts, tuple(rest), L, capacity, layout)


@partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def _fastest(
    key: Array, prompts: Array, scales: Scales, L: Array, capacity: int, layout: Layout
) -> tuple[Array, Array]:
    by_blocks = partial(_by_blocks, capacity=capacity, layout=layout)
    kernels = {}
    if scales[0].dtype == jnp.float32:
        if jax.default_backend() == "gpu":
            kernels["cuda"] = partial(fused_sums, capacity=capacity, layout=layout)
        if layout.native and _native.available():
            kernels["cpu"] = partial(_on_cpu, layout=layout)
    if "cpu" in kernels and set(backends()) == {"cpu"}:
        return kernels["cpu"](key, prompts, scales, L)  # no other branch to trace
    return jax.lax.platform_dependent(key, prompts, scales, L, **kernels, default=by_blocks)


@_fastest.defjvp
def _fastest_jvp(capacity: int, layout: Layout, primals: tuple, tangents: tuple) -> tuple:
    """A kernel has no derivative of its own."""
    return jax.jvp(partial(_by_blocks, capacity=capacity, layout=layout), primals, tangents)


def _on_cpu(
    key: Array, prompts: Array, scales: Scales, L: Array, *, layout: Layout
) -> tuple[Array, Array]:
    widths = len(layout.first), len(layout.second)
    return _native.weighted_sums(key, prompts, L, jnp.stack(scales), widths)


def has_kernel(layout: Layout) -> bool:
    """Whether the default device has a kernel for float32 prompts.

    A kernel draws as many tokens as each prompt has, whatever the capacity.
    """
    device = jax.default_backend()
    return device == "gpu" or (device == "cpu" and layout.native and _native.available())


def capacity_for(L: int, layout: Layout) -> int:
    """Counters that hold L tokens, rounded up to three leading bits.

    So few programs serve all lengths, and at most an eighth of the counters is wasted.
    """
    if L > _LONGEST:
        raise error(
            f"a sampled prompt has at most 2^32 - 1 = {_LONGEST} tokens",
            f"L = {L}",
            "use an exact average, whose cost does not depend on L",
        )
    pairs = -(-L // layout.per_counter)
    grain = 2 ** max(0, pairs.bit_length() - 4)
    return -(-pairs // grain) * grain


def _drawn(
    key: Words, prompt: Array, counter: Array, scales: tuple[Array, ...], L: Array, layout: Layout
) -> list[tuple[Array, Sequence[Array]]]:
    """Score and functions of every token of the counters, elementwise."""
    found = []
    pair = normal_pairs(key, prompt, counter, scales[0].dtype)
    for place, (g, functions) in enumerate(layout.tokens(*pair, *scales[1:])):
        index = counter * jnp.uint32(layout.per_counter) + jnp.uint32(place)
        # a token beyond L has weight e^{-inf}; no finite score is as low
        score = jnp.where(index < L, scales[0] * g, jnp.asarray(NO_WEIGHT, g.dtype))
        found.append((score, functions))
    return found


def _by_blocks(
    key: Array, prompts: Array, scales: Scales, L: Array, *, capacity: int, layout: Layout
) -> tuple[Array, Array]:
    blocks = -(-capacity // _BLOCK)
    block = -(-capacity // blocks)  # equal blocks: the last one is not mostly empty

    def of_token(top: Array, score: Array, functions: Sequence[Array]) -> SoftmaxSums:
        weight = jnp.exp(score - top)
        weighted = [weight * f for f in functions]
        first = tuple(_dot(weighted[a], functions[b]) for a, b in layout.first)
        second = tuple(_dot(weighted[a], weighted[b]) for a, b in layout.second)
        return SoftmaxSums(top, first, second)

    def of_block(prompt: Array, scales: tuple[Array, ...], L: Array, index: Array) -> SoftmaxSums:
        counter = index.astype(jnp.uint32) * jnp.uint32(block) + jax.lax.iota(jnp.uint32, block)
        tokens = _drawn(key, prompt, counter, scales, L, layout)
        top = jnp.max(jnp.stack([jnp.max(score) for score, _ in tokens]))
        return reduce(SoftmaxSums.add, [of_token(top, *token) for token in tokens])

    def one(prompt: tuple[Array, tuple[Array, ...], Array]) -> tuple[Array, Array]:
        summary = of_block(*prompt, jnp.uint32(0))
        if capacity > block:
            used = (prompt[2] - 1) // jnp.uint32(layout.per_counter * block) + 1
            summary = jax.lax.fori_loop(
                jnp.uint32(1), used, lambda i, sums: sums.merge(of_block(*prompt, i)), summary
            )
        return jnp.stack(summary.first), jnp.stack(summary.second)

    at_once = max(1, _NUMBERS // block)
    if len(prompts) <= at_once:
        return jax.vmap(one)((prompts, scales, L))
    return jax.lax.map(one, (prompts, scales, L), batch_size=at_once)


def _dot(weights: Array, column: Array) -> Array:
    """Dot product by matmul: inside a loop XLA would run a sum of products on one core,
    unvectorised.
    """
    return jnp.matmul(weights, column, precision="highest")


def fused_sums(
    key: Array,
    prompts: Array,
    scales: Scales,
    L: Array,
    *,
    capacity: int,
    layout: Layout,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """The same sums by one GPU kernel.

    Program (prompt, part) takes `turns` times `_LANES` counters and keeps sums for each lane.
    """
    from jax.experimental import pallas as pl  # imported only where it is used
    from jax.experimental.pallas import triton

    n, tiles = len(prompts), -(-capacity // _LANES)
    turns = min(_TURNS, max(1, n * tiles // _PROGRAMS), tiles)
    parts = -(-tiles // turns)
    widths = 1 + len(layout.first) + len(layout.second)

    def kernel(key_ref, prompt_ref, length_ref, *refs) -> None:
        words, prompt = (key_ref[0], key_ref[1]), prompt_ref[0]
        scales, out_ref = tuple(ref[0] for ref in refs[:-1]), refs[-1]
        start = pl.program_id(1) * turns
        lane = jax.lax.iota(jnp.uint32, _LANES)
        # a shorter prompt than the capacity holds ends earlier
        needed = (length_ref[0] - 1) // jnp.uint32(layout.per_counter * _LANES) + 1
        last = jnp.clip(needed.astype(jnp.int32) - start, 0, turns)

        def turn(i: Array, sums: SoftmaxSums) -> SoftmaxSums:
            counter = ((start + i) * _LANES).astype(jnp.uint32) + lane
            tokens = _drawn(words, prompt, counter, scales, length_ref[0], layout)
            top = sums.top
            for score, _ in tokens:
                top = jnp.maximum(top, score)
            sums = sums.rescaled(top)
            for score, f in tokens:
                weight = jnp.exp(score - top)
                first = tuple(weight * (f[a] * f[b]) for a, b in layout.first)
                second = tuple(weight * weight * (f[a] * f[b]) for a, b in layout.second)
                sums = sums.add(SoftmaxSums(top, first, second))
            return sums

        zero = jnp.zeros(_LANES, jnp.float32)
        nothing = [(zero,) * len(pairs) for pairs in (layout.first, layout.second)]
        empty = SoftmaxSums(zero + NO_WEIGHT, *nothing)
        total = jax.lax.fori_loop(jnp.int32(0), last, turn, empty).total(0)
        for place, value in enumerate((total.top, *total.first, *total.second)):
            out_ref[0, 0, place] = value

    out = pl.pallas_call(
        kernel,
        grid=(n, parts),
        in_specs=[
            pl.BlockSpec((2,), lambda r, c: (0,)),
            *(pl.BlockSpec((1,), lambda r, c: (r,)) for _ in range(2 + len(scales))),
        ],
        out_specs=pl.BlockSpec((1, 1, widths), lambda r, c: (r, c, 0)),
        out_shape=jax.ShapeDtypeStruct((n, parts, widths), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=interpret,
    )(key, prompts, L, *scales)
    columns = tuple(jnp.moveaxis(out, -1, 0))
    ends = 1 + len(layout.first)
    found = SoftmaxSums(columns[0], columns[1:ends], columns[ends:])
    total = found.total(1)
    return jnp.stack(total.first, -1), jnp.stack(total.second, -1)
