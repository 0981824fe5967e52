"""Outputs of several heads on one prompt of Gaussian tokens, and their gradients, sampled exactly
in law from scores and values alone.

The centred scores of a token for the H heads are s_i = F g_i, g_i standard normal in R^H, F F' the
covariance of the scores. Given them the token is x_i = m + D g_i + residual, D = G W'F^+ with the
tilts in the rows of W, and the residual N(0, R), R = G - D D', is independent of all scores. So

    sum_h V_h sum_i p_i^h x_i = sum_h V_h (m + D sum_i p_i^h g_i) + N(0, sum_hk C_hk V_h R V_k'),

with C_hk = sum_i p_i^h p_i^k: a prompt costs L H normals instead of L d. Gradients of <y, T> also
need the values v_i^h = <y, V_h x_i>: 2H normals a token, for scores and values together, and

    d<y, T>/dU_h = (sum_i p_i^h (v_i^h - v^h) x_i) z',    d<y, T>/dV_h = y (sum_i p_i^h x_i)',

v^h the mean value; the residuals enter all these sums as one Gaussian, whose covariance is R times
the Gram matrix of the coefficients p_i^h and p_i^h (v_i^h - v^h). The sums are streamed over blocks
of tokens: memory does not depend on L.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, UInt32

from .._linalg import psd_sqrt, triangular_root, without_slope
from .._softmax_sums import NO_WEIGHT
from .._typing import Array
from ..attention import AbstractHead
from ..attention.softmax import tilts_of
from ..measures import Gaussian
from .normals import Words, counters, normal_pairs, words

_BLOCK = 2**12  # tokens drawn at once
_NUMBERS = 2**20  # normals in memory at once

# per head: largest score, sum of w; of the rows w (and w v): sums of row g, and of products of rows
_Sums = tuple[Float[Array, " H"], Float[Array, " H"], Float[Array, "R K"], Float[Array, "R R"]]


class _Frame(NamedTuple):
    """Functionals of a token, <w_j, x - m> = (F g)_j, and the token given them, m + D g + noise."""

    functionals: Float[Array, "K K"]  # F
    along: Float[Array, "d K"]  # D
    noise_root: Float[Array, "d d"]  # of R = G - D D'


def _frame(mu: Gaussian, directions: Float[Array, "K d"]) -> _Frame:
    """The frame of the functionals whose directions w_j are the rows; they may be dependent.

    Derivatives where one of them does not vary are NaN.
    """
    variances = jnp.sum(_product(directions, mu.covariance) * directions, axis=1)
    flat = jnp.any(variances <= 0) & (jnp.trace(mu.covariance) > 0)
    directions = without_slope(directions, jax.lax.stop_gradient(flat))
    pull = _product(directions, mu.covariance)
    sizes, axes = jnp.linalg.eigh(_product(pull, directions.T))
    least = 8 * len(directions) * jnp.finfo(mu.dtype).eps * jnp.max(jnp.abs(sizes))
    present = sizes > least
    roots = jnp.sqrt(jnp.where(present, sizes, 1.0))
    along = _product(pull.T, axes * jnp.where(present, 1 / roots, 0.0))
    root = psd_sqrt(mu.covariance - _product(along, along.T))
    return _Frame(axes * jnp.where(present, roots, 0.0), along, root)


def _tilts(head: AbstractHead, mu: Gaussian, z: Float[Array, " k"]) -> Float[Array, "H d"]:
    return jnp.concatenate([tilts_of(one, mu, z[None]) for one in head.heads])


def _streams(key: Array, normals: int) -> tuple[Words, Sequence[Words]]:
    """Random words for the rest of a prompt, and for as many normals a token."""
    streams = [words(jax.random.fold_in(key, i)) for i in range(1 + (normals + 1) // 2)]
    return streams[0], streams[1:]


def joint_outputs(
    shared: tuple, prompts: UInt32[Array, " n"], *, capacity: int
) -> Float[Array, "n m"]:
    """Outputs of the prompts named; `capacity` pairs of tokens hold the prompt."""
    key, head, mu, z, L = shared
    V = jnp.stack([one.V.astype(mu.dtype) for one in head.heads])
    frame = _frame(mu, _tilts(head, mu, z))
    for_rest, for_tokens = _streams(key, len(V))
    block = min(_BLOCK, 2 * capacity)

    def one(prompt: UInt32[Array, ""]) -> Float[Array, " m"]:
        total, first, second = _sums(for_tokens, prompt, frame.functionals, None, L, block)
        means = first / total[:, None]
        shares = second / (total[:, None] * total)
        noise, _ = normal_pairs(for_rest, prompt, counters((len(V), mu.dim)), mu.dtype)
        noise = _product(_product(triangular_root(shares), noise), frame.noise_root)
        tokens = mu.centre + _product(means, frame.along.T) + noise  # the mean token of every head
        return jnp.einsum("hmd,hd->m", V, tokens, precision="highest")

    return _mapped(one, prompts, block * len(V))


def joint_gradients(
    shared: tuple, prompts: UInt32[Array, " n"], *, capacity: int
) -> tuple[Float[Array, "n H d k"], Float[Array, "n H m d"]]:
    """Gradients of <y, T> in U_h and V_h for the prompts named."""
    key, head, mu, z, y, L = shared
    H = len(head.heads)
    readers = jnp.stack([_product(y, one.V.astype(mu.dtype)) for one in head.heads])
    frame = _frame(mu, jnp.concatenate([_tilts(head, mu, z), readers]))
    to_scores, to_values = frame.functionals[:H], frame.functionals[H:]
    for_rest, for_tokens = _streams(key, 2 * H)
    block = min(_BLOCK, 2 * capacity)

    def one(prompt: UInt32[Array, ""]) -> tuple[Array, Array]:
        total, first, second = _sums(for_tokens, prompt, to_scores, to_values, L, block)
        each = jnp.concatenate([total, total])
        rows, gram = first / each[:, None], second / (each[:, None] * each)
        value = jnp.sum(rows[:H] * to_values, axis=1)  # the mean value of every head
        # rows of p v less the mean value times those of p
        centred = (
            jnp.eye(2 * H, dtype=gram.dtype).at[jnp.arange(H, 2 * H), jnp.arange(H)].set(-value)
        )
        gram = _product(_product(centred, gram), centred.T)
        noise, _ = normal_pairs(for_rest, prompt, counters((2 * H, mu.dim)), mu.dtype)
        noise = _product(_product(triangular_root(gram), noise), frame.noise_root)
        moved = _product(_product(centred, rows), frame.along.T) + noise
        tokens = mu.centre + moved[:H]
        return moved[H:, :, None] * z, y[:, None] * tokens[:, None, :]

    return _mapped(one, prompts, 2 * block * H)


def _mapped(one: Callable[[Array], Any], prompts: UInt32[Array, " n"], numbers: int) -> Any:
    """One prompt after the other, or many at once where all their normals fit."""
    at_once = max(1, _NUMBERS // numbers)
    if len(prompts) <= at_once:
        return jax.vmap(one)(prompts)
    return jax.lax.map(one, prompts, batch_size=at_once)


def _sums(
    streams: Sequence[Words],
    prompt: Array,
    to_scores: Float[Array, "H K"],
    to_values: Float[Array, "H K"] | None,
    L: Array,
    block: int,
) -> tuple[Float[Array, " H"], Float[Array, "R K"], Float[Array, "R R"]]:
    """Sums of w over the tokens of a prompt, w = e^{s - largest} for every head; of the rows w, and
    w v if there are values, times the normals g; and of products of two rows.
    """
    K, dtype = to_scores.shape[1], to_scores.dtype

    def of_rows(factor: Array) -> Array:
        return factor if to_values is None else jnp.concatenate([factor, factor])

    def of_block(index: Array) -> _Sums:
        token = index * jnp.uint32(block) + jax.lax.iota(jnp.uint32, block)
        drawn = [part for key in streams for part in normal_pairs(key, prompt, token, dtype)]
        g = jnp.stack(drawn[:K], axis=1)
        scores = jnp.where((token < L)[:, None], _product(g, to_scores.T), NO_WEIGHT)
        top = jnp.max(scores, axis=0)
        w = jnp.exp(scores - top)
        rows = w
        if to_values is not None:
            rows = jnp.concatenate([w, w * _product(g, to_values.T)], axis=1)
        return top, jnp.sum(w, axis=0), _product(rows.T, g), _product(rows.T, rows)

    def merged(index: Array, sums: _Sums) -> _Sums:
        other = of_block(index)
        top = jnp.maximum(sums[0], other[0])
        totals = []
        for part, weight in ((part, jnp.exp(part[0] - top)) for part in (sums, other)):
            row = of_rows(weight)
            column = row[:, None]
            totals.append((weight * part[1], column * part[2], column * row * part[3]))
        return top, *(a + b for a, b in zip(*totals, strict=True))

    blocks = (L - 1) // jnp.uint32(block) + 1
    return jax.lax.fori_loop(jnp.uint32(1), blocks, merged, of_block(jnp.uint32(0)))[1:]


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
