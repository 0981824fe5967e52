"""Prompts of Gaussian tokens, sampled exactly in law from their scores alone.

The output of one head at one query needs only the scores: given standardised scores g_i = (s_i - <u, m>)/sigma the tokens are
x_i = m + (G u / sigma) g_i + residual, the residual N(0, R) with R = G - G u u'G / sigma^2 independent of the scores. So the
weighted sum of the residuals is one Gaussian of covariance (sum p_i^2) R, and a prompt costs L scalar normals instead of L d.
Scores are drawn in blocks and summed with a running maximum: memory does not depend on L.

Random numbers: replicate i uses `fold_in(key, i)`, block b of its tokens `fold_in(., b)`, so a draw depends on the key and its
index, not on how many are drawn or how they are batched.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .. import _checks
from .._typing import ArrayInput, KeyInput
from ..attention import Head
from ..attention.softmax import queries_of, tilts_of
from ..measures import AbstractMeasure, Gaussian
from ..measures.gaussian import psd_sqrt
from ._arguments import whole_length
from .gaussian import safe_sqrt

_BLOCK = 2**18  # tokens drawn at once for one replicate: part of what defines the random stream
_SCORES = 2**20  # scores held at once, over replicates


def sample_outputs(
    key: KeyInput, head: Head, mu: AbstractMeasure, z: ArrayInput, L: int, n: int
) -> Float[Array, "n m"]:
    """N independent draws of T[mu_L](z) for Gaussian tokens, exact in law, in the precision of the measure.

    **Arguments:** one query `z` of shape (d,), a whole number `L` of tokens (1e8 is fine), the number `n` of prompts.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> lp.sample_outputs(jax.random.key(0), head, mu, jnp.ones(2), L=1000, n=5).shape
    (5, 2)
    """
    mu, z, L, n = _one_query("sample_outputs", head, mu, z, L, n)
    return _sample_outputs(_checks.key(key), head, mu, z, L, n)


class GradientSamples(NamedTuple):
    """Draws of d<y, T>/dU, shape (n, d, d), and d<y, T>/dV, shape (n, m, d)."""

    U: Float[Array, "n d d"]
    V: Float[Array, "n m d"]


def sample_gradients(
    key: KeyInput,
    head: Head,
    mu: AbstractMeasure,
    z: ArrayInput,
    L: int,
    n: int,
    cotangent: ArrayInput,
) -> GradientSamples:
    """N independent draws of the gradient of <y, T[mu_L](z)> in (U, V), y the `cotangent` of shape (m,), exact in law.

    d<y,T>/dU = (sum_i p_i (v_i - v) x_i) z' with v_i = <y, V x_i>, v = sum_i p_i v_i, and d<y,T>/dV = y (sum_i p_i x_i)'. Two
    normals a token: its score, and v_i given the score; the rest is one Gaussian a prompt.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> draws = lp.sample_gradients(jax.random.key(0), head, mu, jnp.ones(2), 100, 5, cotangent=jnp.ones(2))
    >>> (draws.U.shape, draws.V.shape)
    ((5, 2, 2), (5, 2, 2))
    """
    mu, z, L, n = _one_query("sample_gradients", head, mu, z, L, n)
    y = _checks.shaped("cotangent", _checks.finite("cotangent", cotangent), (head.out_dim,))
    return _sample_gradients(_checks.key(key), head, mu, z, y.astype(mu.dtype), L, n)


def _one_query(
    name: str, head: Head, mu: AbstractMeasure, z: ArrayInput, L: int, n: int
) -> tuple[Gaussian, Float[Array, " d"], int, int]:
    queries, batch = queries_of(head, mu, z)
    if not isinstance(mu, Gaussian):
        raise ValueError(
            _checks.message(
                f"{name} draws scores of Gaussian tokens",
                f"a {type(mu).__name__}",
                "use estimate(key, quantity, ..., route='tokens'), which samples whole tokens of any measure",
            )
        )
    if batch:
        raise ValueError(
            _checks.message(
                f"{name} takes one query of shape ({head.dim},)",
                f"z of shape {(*batch, head.dim)}",
                "use jax.vmap over the queries, with one key each",
            )
        )
    return mu, queries[0].astype(mu.dtype), whole_length(L), _checks.count("n", n)


def _score_direction(head: Head, mu: Gaussian, z: Float[Array, " d"]) -> tuple[Array, Array]:
    """(sigma, G u / sigma): the deviation of a score, and how a token moves with its standardised score."""
    tilt = tilts_of(head, mu, z[None])[0]
    pull = jnp.matmul(mu.covariance, tilt, precision="highest")
    sigma = safe_sqrt(jnp.maximum(tilt @ pull, 0.0))
    return sigma, jnp.where(sigma > 0, pull / jnp.where(sigma > 0, sigma, 1.0), 0.0)


def _weighted_sums(
    key: Key[Array, ""], sigma: Float[Array, ""], L: int, per_token: int, features
) -> list[Float[Array, " sums"]]:
    """[sum_i w_i f(g_i), sum_i w_i^2 f(g_i)] for w_i = e^{sigma g_i - max}, f = `features` of `per_token` normals a token.

    The second normal of a token (if asked for) does not enter its score. Streams over blocks of tokens with a running maximum.
    """
    dtype = sigma.dtype

    def block(index: Array | int, size: int) -> tuple[Array, Array, Array]:
        keys = jax.random.split(jax.random.fold_in(key, index), per_token)
        # one array per normal: a joint draw that is sliced afterwards compiles to slower code
        g = [jax.random.normal(k, (size,), dtype) for k in keys]
        top = jnp.max(sigma * g[0])
        weights = jnp.exp(sigma * g[0] - top)
        columns = features(*g)
        first = jnp.stack([jnp.sum(weights * c) for c in columns])
        second = jnp.stack([jnp.sum(weights**2 * c) for c in columns])
        return top, first, second

    def merge(a: tuple, b: tuple) -> tuple:
        top = jnp.maximum(a[0], b[0])
        left, right = jnp.exp(a[0] - top), jnp.exp(b[0] - top)
        return top, left * a[1] + right * b[1], left**2 * a[2] + right**2 * b[2]

    whole, rest = divmod(L, _BLOCK)
    if whole == 0:
        return list(block(0, rest)[1:])
    total = block(0, _BLOCK)
    if whole > 1:
        total = jax.lax.fori_loop(1, whole, lambda i, sums: merge(sums, block(i, _BLOCK)), total)
    if rest:
        total = merge(total, block(whole, rest))
    return list(total[1:])


def _replicates(one, key: Key[Array, ""], L: int, n: int):
    """`one` over n replicate keys, as many at a time as `_SCORES` allows."""
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(n))
    return jax.lax.map(one, keys, batch_size=max(1, _SCORES // min(L, _BLOCK)))


@partial(jax.jit, static_argnames=("L", "n"))
def _sample_outputs(
    key: Key[Array, ""], head: Head, mu: Gaussian, z: Float[Array, " d"], L: int, n: int
) -> Float[Array, "n m"]:
    sigma, direction = _score_direction(head, mu, z)
    V = head.V.astype(mu.dtype)
    along = jnp.matmul(V, direction, precision="highest")
    residual = mu.covariance - jnp.outer(direction, direction)
    root = psd_sqrt(
        jnp.matmul(jnp.matmul(V, residual, precision="highest"), V.T, precision="highest")
    )
    centre = jnp.matmul(V, mu.centre, precision="highest")

    def one(key: Key[Array, ""]) -> Float[Array, " m"]:
        for_scores, for_rest = jax.random.split(key)
        first, second = _weighted_sums(for_scores, sigma, L, 1, lambda g: [jnp.ones_like(g), g])
        mean_score, y2 = first[1] / first[0], second[0] / first[0] ** 2
        noise = jax.random.normal(for_rest, (V.shape[0],), mu.dtype)
        return centre + along * mean_score + jnp.sqrt(y2) * (root @ noise)

    return _replicates(one, key, L, n)


@partial(jax.jit, static_argnames=("L", "n"))
def _sample_gradients(
    key: Key[Array, ""],
    head: Head,
    mu: Gaussian,
    z: Float[Array, " d"],
    y: Float[Array, " m"],
    L: int,
    n: int,
) -> GradientSamples:
    sigma, direction = _score_direction(head, mu, z)
    covector = jnp.matmul(y, head.V.astype(mu.dtype), precision="highest")  # v_i = <covector, x_i>
    residual = mu.covariance - jnp.outer(direction, direction)
    pull = residual @ covector
    beta = safe_sqrt(jnp.maximum(covector @ pull, 0.0))  # deviation of v_i given its score
    second_direction = jnp.where(beta > 0, pull / jnp.where(beta > 0, beta, 1.0), 0.0)
    root = psd_sqrt(residual - jnp.outer(second_direction, second_direction))
    alpha = covector @ direction

    def one(key: Key[Array, ""]) -> tuple[Array, Array]:
        for_scores, for_rest = jax.random.split(key)
        # v_i - <covector, m> = alpha g_i + beta e_i with g_i, e_i independent normals
        sums = _weighted_sums(
            for_scores, sigma, L, 2, lambda g, e: [jnp.ones_like(g), g, e, g * g, g * e, e * e]
        )
        total = sums[0][0]
        _, g, e, gg, ge, ee = sums[0] / total
        q, qg, qe, qgg, qge, qee = sums[1] / total**2
        v = alpha * g + beta * e
        # sum p (v_i - v) x_i along the two directions, and sum p x_i
        cov_g, cov_e = (
            alpha * (gg - g * g) + beta * (ge - g * e),
            alpha * (ge - g * e) + beta * (ee - e * e),
        )
        # the residuals enter both with covariance [[sum p^2 (v_i-v)^2, sum p^2 (v_i-v)], [., sum p^2]] times theirs
        q1 = alpha * qg + beta * qe - v * q
        q2 = (
            alpha**2 * qgg
            + 2 * alpha * beta * qge
            + beta**2 * qee
            - 2 * v * (alpha * qg + beta * qe)
            + v**2 * q
        )
        noise = jax.random.normal(for_rest, (2, mu.dim), mu.dtype) @ root
        by_mean = jnp.sqrt(q)
        slope = q1 / by_mean
        rest = jnp.sqrt(jnp.maximum(q2 - slope**2, 0.0))
        mean = mu.centre + g * direction + e * second_direction + by_mean * noise[0]
        moved = cov_g * direction + cov_e * second_direction + slope * noise[0] + rest * noise[1]
        return jnp.outer(moved, z), jnp.outer(y, mean)

    return GradientSamples(*_replicates(one, key, L, n))
