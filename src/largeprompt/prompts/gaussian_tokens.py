"""Exact finite-prompt averages for Gaussian tokens at given queries, from participation moments.

Tokens x_i iid N(m, G), u = U z, sigma^2 = u'Gu, p = softmax of the scores. Gaussian integration by
parts gives, for every L >= 1, every d, singular G and any m,

    E T_L                = V m + (1 - P_2) V G u
    E |T_L - T|^2        = tr(V G V') P_2 + |V G u|^2 (P_2 - 6 P_3 + 6 P_22)

and the gradient errors below. No prompt is sampled, and the cost does not depend on L. The
functions here are the algebra around the moments of the scores.

Each function returns the value and a bound on its numerical error.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax
import numpy as np

from .._arrays import Values, fixed, library, to_jax, to_numpy
from .._float64 import is_traced
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import Gaussian
from ..participation import (
    GradientMoments,
    Participation,
    gradient_moments_at,
    participation_at,
)
from .pairs import pairs

_NARROW = 0.1  # deviation of scores up to which their direction is multiplied out
_EPSILON = 4e-16  # relative rounding error of the algebra around the moments


class Bounded(NamedTuple):
    """A value and a bound on its numerical error, of the same shape."""

    value: Any
    error: Any


class Scores(NamedTuple):
    """Scores of Gaussian tokens at a tilt u."""

    variance: Values  # of a score
    pull: Values  # G u


def scores_of(mu: Gaussian, tilts: Values) -> Scores:
    """Variance of the scores and pull at each tilt."""
    pull = tilts @ mu.covariance
    variance = (tilts * pull).sum(-1)
    # rounding is clipped from the value, not from the derivatives
    return Scores(variance + fixed(library(tilts).maximum(-variance, 0.0)), pull)


def by_library(function: Callable, head: AbstractHead, mu: Gaussian, *arrays: Values) -> Any:
    """`function(head, mu, *arrays)`, by NumPy if all numbers are known and by JAX otherwise."""
    if is_traced(head, mu, *arrays):
        with jax.default_matmul_precision("highest"):
            return function(head, mu, *to_jax(arrays))
    return function(*to_numpy((head, mu, *arrays)))


def like(array: Values, tree: Any) -> Any:
    """A tree of JAX arrays, in NumPy if `array` is in NumPy."""
    return to_numpy(tree) if library(array) is np else tree


def _of_moments(moments: Callable) -> Callable[[Callable[..., Bounded]], Callable[..., Bounded]]:
    """Make a function of (head, mu, z, L) from one of (head, mu, scores, moments of them, z)."""

    def decorated(function: Callable[..., Bounded]) -> Callable[..., Bounded]:
        def of_arrays(
            head: AbstractHead, mu: Gaussian, queries: Values, tilts: Values, L: Values
        ) -> Bounded:
            scores = scores_of(mu, tilts)
            found = like(tilts, moments(scores.variance, L))
            return function(head, mu, scores, found, queries)

        @wraps(function)
        def at(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
            return by_library(of_arrays, head, mu, *pairs(head, mu, z, L))

        return at

    return decorated


@_of_moments(participation_at)
def mean(head: AbstractHead, mu: Gaussian, scores: Scores, p: Participation, _: Values) -> Bounded:
    """E T_L = V m + (1 - P_2) V G u."""
    along = scores.pull @ head.V.T
    centre = head.V @ mu.centre
    value = centre + (1 - p.p2)[..., None] * along
    rounding = _EPSILON * (abs(centre) + abs(along))
    return Bounded(value, rounding + (p.error * p.p2)[..., None] * abs(along))


@_of_moments(participation_at)
def second_moment(
    head: AbstractHead, mu: Gaussian, scores: Scores, p: Participation, _: Values
) -> Bounded:
    """E T_L T_L' = aa' + (1 - P_2)(ab' + ba') + (1 - P_2 - 6P_3 + 6P_22) bb' + P_2 V G V',
    with a = V m and b = V G u.
    """
    a, b = head.V @ mu.centre, scores.pull @ head.V.T
    constant = a[:, None] * a
    cross = a[:, None] * b[..., None, :]
    cross = cross + cross.mT
    square = b[..., :, None] * b[..., None, :]
    cov = head.V @ mu.covariance @ head.V.T

    def weight(x: Values) -> Values:
        return x[..., None, None]

    value = (
        constant
        + weight(1 - p.p2) * cross
        + weight(1 - p.p2 - 6 * p.p3 + 6 * p.p22) * square
        + weight(p.p2) * cov
    )
    sizes = abs(constant) + abs(cross) + abs(square) + abs(cov)
    shares = weight(p.p2 + 6 * p.p3 + 6 * p.p22)
    return Bounded(value, (_EPSILON + weight(p.error) * shares) * sizes)


@_of_moments(participation_at)
def output_error(
    head: AbstractHead, mu: Gaussian, scores: Scores, p: Participation, _: Values
) -> Bounded:
    """E |T_L - T|^2 = tr(V G V') P_2 + |V G u|^2 (P_2 - 6 P_3 + 6 P_22)."""
    square = ((scores.pull @ head.V.T) ** 2).sum(-1)
    trace = (head.V @ mu.covariance @ head.V.T).trace()
    value = trace * p.p2 + square * (p.p2 - 6 * p.p3 + 6 * p.p22)
    terms = trace * p.p2 + square * (p.p2 + 6 * p.p3 + 6 * p.p22)
    return Bounded(value, (_EPSILON + p.error) * terms)


def gradient_error_V(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |dT_L/dV - dT/dV|^2: m times the squared error of the mean token."""
    found = output_error(head.reading_tokens(), mu, z, L)
    return Bounded(head.out_dim * found.value, head.out_dim * found.error)


@_of_moments(gradient_moments_at)
def gradient_error_U(
    head: AbstractHead, mu: Gaussian, scores: Scores, moments: GradientMoments, z: Values
) -> Bounded:
    """E |dT_L/dU - dT/dU|^2, with g = G u / sigma, R = G - g g', W = V'V, all moments reduced by
    Stein's lemma.

    Where sigma is small the formula is multiplied out, so that no direction g is left.
    """
    xp, narrow = library(scores), scores.variance < _NARROW**2
    g = scores.pull / xp.sqrt(xp.where(narrow, 1.0, scores.variance))[..., None]
    R = mu.covariance - g[..., :, None] * g[..., None, :]
    W = head.V.T @ head.V

    def form(left: Values, matrix: Values, right: Values) -> Values:
        return xp.einsum("...i,...ij,...j->...", left, matrix, right)

    WR = W @ R
    g_g, g_W_g, g_RW_g = (g * g).sum(-1), form(g, W, g), form(g, WR.mT, g)
    tr_R, tr_WR = R.trace(axis1=-2, axis2=-1), WR.trace(axis1=-2, axis2=-1)
    tr_WRR = xp.einsum("...ij,...ji->...", WR, R)
    distinct = moments.p2 - 2 * moments.p3 + moments.p22
    mixed = g_W_g * tr_R + tr_WR * g_g + 2 * g_RW_g
    per_query = (
        g_W_g * g_g * moments.variance_error
        + moments.dispersion * mixed
        + moments.p22 * tr_WRR
        + distinct * (tr_WR * tr_R + tr_WRR)
        - 2 * g_RW_g * moments.coupling
    )

    def size(moment: Values) -> Values:  # `error` is relative to the larger of it and P_22
        return xp.maximum(abs(moment), moments.p22)

    terms = (
        abs(g_W_g * g_g) * size(moments.variance_error)
        + size(moments.dispersion) * abs(mixed)
        + moments.p22 * abs(tr_WRR)
        + (moments.p2 + 2 * moments.p3 + moments.p22) * (abs(tr_WR * tr_R) + abs(tr_WRR))
        + 2 * abs(g_RW_g) * size(moments.coupling)
    )
    found = _gradient_error_U_at_narrow_scores(mu.covariance, W, scores.pull, moments)
    per_query, terms = (
        xp.where(narrow, new, old) for new, old in zip(found, (per_query, terms), strict=True)
    )
    square = (z * z).sum(-1)
    return Bounded(square * per_query, square * terms * (moments.error + 2 * _EPSILON))


def _gradient_error_U_at_narrow_scores(
    G: Values, W: Values, pull: Values, moments: GradientMoments
) -> tuple[Values, Values]:
    """E |dT_L/dU - dT/dU|^2 / |z|^2 multiplied out in a = Gu, and the size of its terms:

    P_22 tr WGG + distinct (tr WG tr G + tr WGG) + linear (tr G a'Wa + tr WG a'a)
        + 2 crossed a'GWa + quadratic a'Wa a'a.
    """
    WG = W @ G
    tr_G, tr_WG, tr_WGG = G.trace(), WG.trace(), (WG @ G).trace()
    a_a, a_W_a, a_GW_a = (((pull @ M) * pull).sum(-1) for M in (np.eye(len(G)), W, G @ W))
    constant = tr_WG * tr_G + tr_WGG
    linear, quadratic = tr_G * a_W_a + tr_WG * a_a, a_W_a * a_a
    value = (
        moments.p22 * tr_WGG
        + (moments.p2 - 2 * moments.p3 + moments.p22) * constant
        + moments.linear * linear
        + 2 * moments.crossed * a_GW_a
        + moments.quadratic * quadratic
    )
    # coefficients of `quotients` in absolute value, all moments at most P_2
    sizes = 4 * constant + tr_WGG + 132 * linear + 440 * abs(a_GW_a) + 10403 * quadratic
    return value, moments.p2 * sizes
