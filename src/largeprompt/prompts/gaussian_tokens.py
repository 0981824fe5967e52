"""Exact finite-prompt averages for Gaussian tokens at given queries, from participation moments.

Tokens x_i iid N(m, G), u = U z, sigma^2 = u'Gu, p = softmax of the scores. Gaussian integration by
parts gives, for every L >= 1, every d, singular G and any m,

    E T_L                = V m + (1 - P_2) V G u
    E |T_L - T|^2        = tr(V G V') P_2 + |V G u|^2 (P_2 - 6 P_3 + 6 P_22)

and the gradient errors below. No prompt is sampled, and the cost does not depend on L. The
functions here are the algebra around the moments of the scores: those are the expensive part to
compile, and one program serves every shape.

Each function returns the value and a bound on its numerical error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._linalg import safe_sqrt
from .._typing import ArrayInput
from ..attention import Head
from ..measures import Gaussian
from ..participation import GradientMoments, Participation, gradient_moments, participation
from .pairs import pairs

_EPSILON = 4e-16  # relative rounding error of the algebra around the moments


class Bounded(NamedTuple):
    """A value and a bound on its numerical error, of the same shape."""

    value: Any
    error: Any


class Scores(NamedTuple):
    """Scores of Gaussian tokens at a tilt u."""

    sigma: Float[Array, "*shape"]  # standard deviation of a score
    pull: Float[Array, "*shape d"]  # G u


def scores_of(mu: Gaussian, tilts: Float[Array, "*shape d"]) -> Scores:
    """Deviation and pull at each tilt."""
    pull = jnp.matmul(tilts, mu.covariance, precision="highest")
    variance = jnp.maximum(jnp.sum(tilts * pull, axis=-1), 0.0)
    return Scores(safe_sqrt(variance), pull)


@eqx.filter_jit
def _compiled(function: Callable, *args: Any) -> Any:
    """One compiled program per function and shapes: values never recompile."""
    return function(*args)


def mean(head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L = V m + (1 - P_2) V G u."""
    return _from_participation(_mean, head, mu, z, L)


def mean_shift(head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L - T = -P_2 V G u."""
    return _from_participation(_mean_shift, head, mu, z, L)


def second_moment(head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L T_L' = aa' + (1 - P_2)(ab' + ba') + (1 - P_2 - 6P_3 + 6P_22) bb' + P_2 V G V',
    with a = V m and b = V G u.
    """
    return _from_participation(_second_moment, head, mu, z, L)


def output_error(head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |T_L - T|^2 = tr(V G V') P_2 + |V G u|^2 (P_2 - 6 P_3 + 6 P_22)."""
    return _from_participation(_output_error, head, mu, z, L)


def gradient_error_U(head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |dT_L/dU - dT/dU|^2, with g = G u / sigma, R = G - g g', W = V'V, all moments reduced by
    Stein's lemma.

    At sigma = 0 the formula does not depend on the direction of g; g = 0 is used.
    """
    queries, tilts, lengths = pairs(head, mu, z, L)
    scores = _compiled(scores_of, mu, tilts)
    moments = gradient_moments(scores.sigma, lengths)
    return _compiled(_gradient_error_U, head, mu, scores, moments, queries)


def gradient_error_V(head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |dT_L/dV - dT/dV|^2: m times the squared error of the mean token."""
    found = output_error(head.reading_tokens(), mu, z, L)
    return Bounded(head.out_dim * found.value, head.out_dim * found.error)


def _from_participation(
    function: Callable, head: Head, mu: Gaussian, z: ArrayInput, L: ArrayInput
) -> Bounded:
    _, tilts, lengths = pairs(head, mu, z, L)
    scores = _compiled(scores_of, mu, tilts)
    return _compiled(function, head, mu, scores, participation(scores.sigma, lengths))


def _mean(head: Head, mu: Gaussian, scores: Scores, p: Participation) -> Bounded:
    along = jnp.matmul(scores.pull, head.V.T, precision="highest")
    centre = jnp.matmul(head.V, mu.centre, precision="highest")
    value = centre + (1 - p.p2)[..., None] * along
    rounding = _EPSILON * (jnp.abs(centre) + jnp.abs(along))
    return Bounded(value, rounding + (p.error * p.p2)[..., None] * jnp.abs(along))


def _mean_shift(head: Head, mu: Gaussian, scores: Scores, p: Participation) -> Bounded:
    along = p.p2[..., None] * jnp.matmul(scores.pull, head.V.T, precision="highest")
    return Bounded(-along, (_EPSILON + p.error)[..., None] * jnp.abs(along))


def _second_moment(head: Head, mu: Gaussian, scores: Scores, p: Participation) -> Bounded:
    a = jnp.matmul(head.V, mu.centre, precision="highest")
    b = jnp.matmul(scores.pull, head.V.T, precision="highest")
    cross = a[:, None] * b[..., None, :]
    cross = cross + jnp.swapaxes(cross, -1, -2)
    square = b[..., :, None] * b[..., None, :]
    cov = _read_out_cov(head, mu)

    def weight(x: Array) -> Array:
        return x[..., None, None]

    value = (
        jnp.outer(a, a)
        + weight(1 - p.p2) * cross
        + weight(1 - p.p2 - 6 * p.p3 + 6 * p.p22) * square
        + weight(p.p2) * cov
    )
    sizes = jnp.abs(jnp.outer(a, a)) + jnp.abs(cross) + jnp.abs(square) + jnp.abs(cov)
    shares = weight(p.p2 + 6 * p.p3 + 6 * p.p22)
    return Bounded(value, (_EPSILON + weight(p.error) * shares) * sizes)


def _output_error(head: Head, mu: Gaussian, scores: Scores, p: Participation) -> Bounded:
    limit = jnp.matmul(scores.pull, head.V.T, precision="highest")
    square = jnp.sum(limit**2, axis=-1)
    trace = jnp.trace(_read_out_cov(head, mu))
    value = trace * p.p2 + square * (p.p2 - 6 * p.p3 + 6 * p.p22)
    terms = trace * p.p2 + square * (p.p2 + 6 * p.p3 + 6 * p.p22)
    return Bounded(value, (_EPSILON + p.error) * terms)


def _gradient_error_U(
    head: Head,
    mu: Gaussian,
    scores: Scores,
    moments: GradientMoments,
    z: Float[Array, "*shape d"],
) -> Bounded:
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
    mixed = g_W_g * tr_R + tr_WR * g_g + 2 * g_RW_g
    per_query = (
        g_W_g * g_g * moments.variance_error
        + moments.dispersion * mixed
        + moments.p22 * tr_WRR
        + distinct * (tr_WR * tr_R + tr_WRR)
        - 2 * g_RW_g * moments.coupling
    )

    def size(moment: Array) -> Array:  # `error` is relative to the larger of the moment and P_22
        return jnp.maximum(jnp.abs(moment), moments.p22)

    terms = (
        jnp.abs(g_W_g * g_g) * size(moments.variance_error)
        + size(moments.dispersion) * jnp.abs(mixed)
        + moments.p22 * jnp.abs(tr_WRR)
        + (moments.p2 + 2 * moments.p3 + moments.p22) * (jnp.abs(tr_WR * tr_R) + jnp.abs(tr_WRR))
        + 2 * jnp.abs(g_RW_g) * size(moments.coupling)
    )
    square = jnp.sum(z * z, axis=-1)
    return Bounded(square * per_query, square * terms * (moments.error + 2 * _EPSILON))


def _read_out_cov(head: Head, mu: Gaussian) -> Float[Array, "m m"]:
    """V G V'."""
    left = jnp.matmul(head.V, mu.covariance, precision="highest")
    return jnp.matmul(left, head.V.T, precision="highest")
