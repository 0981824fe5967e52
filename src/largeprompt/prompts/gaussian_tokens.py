"""Exact finite-prompt quantities for Gaussian tokens, from participation moments.

Tokens x_i iid N(m, G), u = U z, sigma^2 = u'Gu, p = softmax of the scores. Gaussian integration by parts gives, for every
L >= 1, every d, singular G and any m,

    E T_L                = V m + (1 - P_2) V G u
    E |T_L - T_inf|^2    = tr(V G V') P_2 + |V G u|^2 (P_2 - 6 P_3 + 6 P_22)

and the gradient errors below. No prompt is sampled, and nothing depends on L in cost. The functions here are the algebra
around the moments of the scores: those are the expensive part to compile, and one program of theirs serves every shape.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._linalg import safe_sqrt
from ..attention import Head
from ..measures import Gaussian
from ..participation import GradientMoments, Participation


class GradientError(NamedTuple):
    """E |dT_L/dU - dT_inf/dU|^2 and E |dT_L/dV - dT_inf/dV|^2, squared Frobenius norms."""

    U: Float[Array, "*shape"]
    V: Float[Array, "*shape"]


class Scores(NamedTuple):
    """What the scores of Gaussian tokens look like from the query's tilt u."""

    sigma: Float[Array, "*shape"]  # standard deviation of a score
    pull: Float[Array, "*shape d"]  # G u


def scores_of(mu: Gaussian, tilts: Float[Array, "*shape d"]) -> Scores:
    """Deviation and pull at each tilt."""
    pull = jnp.matmul(tilts, mu.covariance, precision="highest")
    variance = jnp.maximum(jnp.sum(tilts * pull, axis=-1), 0.0)
    return Scores(safe_sqrt(variance), pull)


def mean(head: Head, mu: Gaussian, scores: Scores, p: Participation) -> Float[Array, "*shape m"]:
    """E T_L = V m + (1 - P_2) V G u."""
    shrunk = (1 - p.p2)[..., None] * scores.pull
    return jnp.matmul(mu.centre + shrunk, head.V.T, precision="highest")


def second_moment(
    head: Head, mu: Gaussian, scores: Scores, p: Participation
) -> Float[Array, "*shape m m"]:
    """E T_L T_L' = aa' + (1 - P_2)(ab' + ba') + (1 - P_2 - 6P_3 + 6P_22) bb' + P_2 V G V', a = V m, b = V G u."""
    a = jnp.matmul(head.V, mu.centre, precision="highest")
    b = jnp.matmul(scores.pull, head.V.T, precision="highest")
    cross = a[:, None] * b[..., None, :]
    cross = cross + jnp.swapaxes(cross, -1, -2)
    weight_cross = (1 - p.p2)[..., None, None]
    weight_square = (1 - p.p2 - 6 * p.p3 + 6 * p.p22)[..., None, None]
    square = b[..., :, None] * b[..., None, :]
    return (
        jnp.outer(a, a)
        + weight_cross * cross
        + weight_square * square
        + p.p2[..., None, None] * _read_out_cov(head, mu)
    )


def output_error(
    head: Head, mu: Gaussian, scores: Scores, p: Participation
) -> Float[Array, "*shape"]:
    """E |T_L - T_inf|^2 = tr(V G V') P_2 + |V G u|^2 (P_2 - 6 P_3 + 6 P_22)."""
    limit = jnp.matmul(scores.pull, head.V.T, precision="highest")
    return _squared_error(jnp.trace(_read_out_cov(head, mu)), limit, p)


def gradient_error(
    head: Head,
    mu: Gaussian,
    scores: Scores,
    moments: GradientMoments,
    z: Float[Array, "*shape d"],
) -> GradientError:
    """The squared errors of dT/dU and dT/dV, with g = G u / sigma, R = G - g g', W = V'V, all moments Stein-reduced.

    At sigma = 0 the formula does not depend on the direction of g; g = 0 is used.
    """
    positive = (scores.sigma > 0)[..., None]
    g = jnp.where(positive, scores.pull / jnp.where(positive, scores.sigma[..., None], 1.0), 0.0)
    R = mu.covariance - g[..., :, None] * g[..., None, :]
    W = jnp.matmul(head.V.T, head.V, precision="highest")

    def form(left: Array, matrix: Array, right: Array) -> Array:
        return jnp.einsum("...i,...ij,...j->...", left, matrix, right, precision="highest")

    WR = jnp.matmul(W, R, precision="highest")
    g_g, g_W_g, g_RW_g = jnp.sum(g * g, -1), form(g, W, g), form(g, jnp.swapaxes(WR, -1, -2), g)
    tr_R, tr_WR = jnp.trace(R, axis1=-2, axis2=-1), jnp.trace(WR, axis1=-2, axis2=-1)
    tr_WRR = jnp.einsum("...ij,...ji->...", WR, R, precision="highest")
    distinct = moments.p2 - 2 * moments.p3 + moments.p22
    per_query = (
        g_W_g * g_g * moments.variance_error
        + moments.spread * (g_W_g * tr_R + tr_WR * g_g + 2 * g_RW_g)
        + moments.p22 * tr_WRR
        + distinct * (tr_WR * tr_R + tr_WRR)
        - 2 * g_RW_g * moments.coupling
    )
    by_U = jnp.sum(z * z, axis=-1) * per_query
    by_V = head.out_dim * _squared_error(jnp.trace(mu.covariance), scores.pull, moments)
    return GradientError(by_U, by_V)


def _read_out_cov(head: Head, mu: Gaussian) -> Float[Array, "m m"]:
    """V G V'."""
    left = jnp.matmul(head.V, mu.covariance, precision="highest")
    return jnp.matmul(left, head.V.T, precision="highest")


def _squared_error(spread: Array, limit: Array, p) -> Array:
    """Spread P_2 + |limit|^2 (P_2 - 6 P_3 + 6 P_22): the squared error of a weighted mean of Gaussian vectors."""
    return spread * p.p2 + jnp.sum(limit**2, axis=-1) * (p.p2 - 6 * p.p3 + 6 * p.p22)
