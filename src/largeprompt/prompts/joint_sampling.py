"""Outputs of several heads on one prompt of Gaussian tokens, sampled exactly in law from scores.

The centred scores of a token for the H heads are s_i = F g_i, g_i standard normal in R^H, F F' the
covariance of the scores. Given them the token is x_i = m + D g_i + residual, D = G W'F^+ with the
tilts in the rows of W, and the residual N(0, R), R = G - D D', is independent of all scores. So

    sum_h V_h sum_i p_i^h x_i = sum_h V_h (m + D sum_i p_i^h g_i) + N(0, sum_hk C_hk V_h R V_k'),

with C_hk = sum_i p_i^h p_i^k: a prompt costs L H normals instead of L d. The sums are streamed over
blocks of tokens: memory does not depend on L.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from .._linalg import psd_sqrt
from .._softmax_sums import NO_WEIGHT
from ..attention.softmax import tilts_of
from .normals import Words, counters, normal_pairs, words

_BLOCK = 2**12  # tokens drawn at once
_NUMBERS = 2**20  # normals in memory at once

# per head: largest score, sum of w, sums of w g; for pairs of heads: sums of w w'
_Sums = tuple[Float[Array, " H"], Float[Array, " H"], Float[Array, "H H"], Float[Array, "H H"]]


def joint_outputs(
    shared: tuple, prompts: UInt32[Array, " n"], *, capacity: int
) -> Float[Array, "n m"]:
    """Outputs of the prompts named; `capacity` pairs of tokens hold the prompt."""
    key, head, mu, z, L = shared
    V = jnp.stack([one.V.astype(mu.dtype) for one in head.heads])
    tilts = jnp.concatenate([tilts_of(one, mu, z[None]) for one in head.heads])
    pull = _product(tilts, mu.covariance)
    sizes, axes = jnp.linalg.eigh(_product(pull, tilts.T))
    present = sizes > 8 * len(V) * jnp.finfo(mu.dtype).eps * jnp.max(jnp.abs(sizes))
    roots = jnp.sqrt(jnp.where(present, sizes, 1.0))
    to_scores = axes * jnp.where(present, roots, 0.0)  # F
    along = _product(pull.T, axes * jnp.where(present, 1 / roots, 0.0))  # D
    residual_root = psd_sqrt(mu.covariance - _product(along, along.T))
    streams = [words(jax.random.fold_in(key, i)) for i in range(1 + (len(V) + 1) // 2)]
    for_rest, for_tokens = streams[0], streams[1:]
    block = min(_BLOCK, 2 * capacity)

    def one(prompt: UInt32[Array, ""]) -> Float[Array, " m"]:
        total, first, second = _sums(for_tokens, prompt, to_scores, L, block)
        means = first / total[:, None]
        shares = second / (total[:, None] * total)
        noise, _ = normal_pairs(for_rest, prompt, counters((len(V), mu.dim)), mu.dtype)
        noise = _product(_product(psd_sqrt(shares), noise), residual_root)
        tokens = mu.centre + _product(means, along.T) + noise  # the mean token of every head
        return jnp.einsum("hmd,hd->m", V, tokens, precision="highest")

    at_once = max(1, _NUMBERS // (block * len(V)))
    if len(prompts) <= at_once:
        return jax.vmap(one)(prompts)
    return jax.lax.map(one, prompts, batch_size=at_once)


def _sums(
    streams: Sequence[Words], prompt: Array, to_scores: Float[Array, "H H"], L: Array, block: int
) -> tuple[Float[Array, " H"], Float[Array, "H H"], Float[Array, "H H"]]:
    """Sums of w, of w g and of products w w' over the tokens of a prompt, w = e^{s - largest}."""
    H, dtype = len(to_scores), to_scores.dtype

    def of_block(index: Array) -> _Sums:
        token = index * jnp.uint32(block) + jax.lax.iota(jnp.uint32, block)
        drawn = [part for key in streams for part in normal_pairs(key, prompt, token, dtype)]
        g = jnp.stack(drawn[:H], axis=1)
        scores = jnp.where((token < L)[:, None], _product(g, to_scores.T), NO_WEIGHT)
        top = jnp.max(scores, axis=0)
        w = jnp.exp(scores - top)
        return top, jnp.sum(w, axis=0), _product(w.T, g), _product(w.T, w)

    def merged(index: Array, sums: _Sums) -> _Sums:
        other = of_block(index)
        top = jnp.maximum(sums[0], other[0])
        totals = []
        for part, weight in ((part, jnp.exp(part[0] - top)) for part in (sums, other)):
            column = weight[:, None]
            totals.append((weight * part[1], column * part[2], column * weight * part[3]))
        return top, *(a + b for a, b in zip(*totals, strict=True))

    blocks = (L - 1) // jnp.uint32(block) + 1
    return jax.lax.fori_loop(jnp.uint32(1), blocks, merged, of_block(jnp.uint32(0)))[1:]


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
