"""Several heads on one prompt of Gaussian tokens: covariances of their outputs, exactly.

Tokens x_i iid N(m, G); heads a and b with u = U_a z and u' = U_b z' at queries z and z', p and q
the softmaxes of their scores, A_2 = sum p_i^2, B_2 = sum q_i^2, C_kl = sum p_i^k q_i^l. Gaussian
integration by parts, twice, gives for every L >= 1, every d, singular G and any m

    Cov(T_a, T_b) = V_a { E[C_11] G + 2 E[A_2 C_11 - C_21] a a' + 2 E[B_2 C_11 - C_12] b b'
                + Cov(A_2, B_2) a b' + E[C_11 - C_21 - C_12 + C_11^2] b a' } V_b',

where a = G u and b = G u'. The moments are those of `pair_moments`. For one head and one query they
are participation moments, and the braces add up to P_2 G + (P_2 - P_2^2 - 6 P_3 + 6 P_22) a a'.
Sums over pairs of heads give second moments and errors of a `MultiHead`. Many queries at one length
share a `pair_table`. Each function returns the value and a bound on its numerical error.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._arrays import Values, fixed, library
from .._typing import ArrayInput
from ..attention import AbstractHead, Head
from ..measures import Gaussian
from ..participation import MANY, correlation, pair_moments_at, participation_at, tabulated
from .gaussian_tokens import Bounded, Scores, by_library, like, scores_of
from .pairs import pairs

_EPSILON = 4e-16


class _At(NamedTuple):
    """One head at its tilts: read-out, scores, and V G u."""

    V: Values
    tilts: Values
    scores: Scores
    along: Values


def _at(head: Head, mu: Gaussian, tilts: Values) -> _At:
    scores = scores_of(mu, tilts)
    return _At(head.V, tilts, scores, scores.pull @ head.V.T)


def covariance_of_two(
    heads: tuple[Head, Head], mu: Gaussian, tilts: Values, tilts2: Values, L: Values
) -> Bounded:
    """Cov(T_a, T_b) of two heads, each at its own tilts."""
    first, second = _at(heads[0], mu, tilts), _at(heads[1], mu, tilts2)
    found = _functions(*covariances(tilts, first.scores, second.scores), L)
    ones = [_p2(at.scores.variance, L) for at in (first, second)]
    a, b = first.along, second.along
    # the pull of one head's scores, read by the other head
    a_by_2, b_by_1 = first.scores.pull @ second.V.T, second.scores.pull @ first.V.T
    matrices = (
        first.V @ mu.covariance @ second.V.T,
        _outer(a, a_by_2),
        _outer(b_by_1, b),
        _outer(b_by_1, a_by_2),
        _outer(a, b),
    )
    product = ones[0].value * ones[1].value
    c, alpha, beta, delta, both = found.value
    factors = (c, alpha, beta, delta, both - product)
    less = ones[0].error * ones[1].value + ones[0].value * ones[1].error
    errors = (*found.error[:4], found.error[4] + less)
    value = sum(_weight(f) * matrix for f, matrix in zip(factors, matrices, strict=True))
    error = sum(_weight(e) * abs(matrix) for e, matrix in zip(errors, matrices, strict=True))
    return Bounded(value, error)


def _functions(variance_a: Values, variance_b: Values, covariance: Values, L: Values) -> Bounded:
    """The five functions of `pair_table`, from a table where many pairs have one length."""
    args = (variance_a, variance_b, covariance)
    known = library(*args, L) is np
    if known and any(np.ndim(each) for each in args):
        a, b, c, L = np.broadcast_arrays(*args, L)
        sigma_a, sigma_b, rho = np.sqrt(a), np.sqrt(b), correlation(a, b, c)
        value, error = np.zeros((2, 5, *np.shape(sigma_a)))
        for length in np.unique(L):
            at = length == L
            found = tabulated(sigma_a[at], sigma_b[at], rho[at], float(length))
            if found is None:
                found = _from_moments(a[at], b[at], c[at], L[at])
            value[:, at], error[:, at] = found
        return Bounded(value, error)
    return _from_moments(*args, L)


def _from_moments(variance_a: Values, variance_b: Values, covariance: Values, L: Values) -> Bounded:
    m = like(variance_a, pair_moments_at(variance_a, variance_b, covariance, L))
    value, size = map(library(m).stack, m.functions())
    return Bounded(value, (m.error + _EPSILON) * size)


def _covariance_of_one(head: Head, mu: Gaussian, tilts: Values, L: Values) -> Bounded:
    """Cov(T_L, T_L) of one head."""
    at = _at(head, mu, tilts)
    if _are_many(at.scores.variance):
        return covariance_of_two((head, head), mu, tilts, tilts, L)
    p = like(tilts, participation_at(at.scores.variance, L))
    parts = (head.V @ mu.covariance @ head.V.T, _outer(at.along, at.along))
    along = p.p2 - p.p2**2 - 6 * p.p3 + 6 * p.p22
    value = _weight(p.p2) * parts[0] + _weight(along) * parts[1]
    sizes = _weight(p.p2) * abs(parts[0]) + _weight(2 * p.p2 + 6 * p.p3 + 6 * p.p22) * abs(parts[1])
    return Bounded(value, _weight(p.error + _EPSILON) * sizes)


def _p2(variance: Values, L: Values) -> Bounded:
    """P_2 and the error of it."""
    if _are_many(variance):
        found = _functions(variance, variance, variance, L)
        return Bounded(found.value[0], found.error[0])
    p = like(variance, participation_at(variance, L))
    return Bounded(p.p2, p.error * p.p2)


def _are_many(variance: Values) -> bool:
    return library(variance) is np and np.size(variance) >= MANY


def covariance(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """Cov(T_L, T_L) at one query: the sum over pairs of heads."""

    def of_arrays(head: AbstractHead, mu: Gaussian, L: Values, *tilts: Values) -> Bounded:
        each = [
            _covariance_of_one(one, mu, at, L) for one, at in zip(head.heads, tilts, strict=True)
        ]
        both = itertools.combinations(zip(head.heads, tilts, strict=True), 2)
        for (first, at), (second, at2) in both:
            found = covariance_of_two((first, second), mu, at, at2, L)
            each += [found, Bounded(found.value.mT, found.error.mT)]
        return _sum(each)

    return _by_library(of_arrays, head, mu, z, L)


def _by_library(
    function: Callable, head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput
) -> Bounded:
    """`function(head, mu, L, *tilts)`, with the tilts of every head."""
    each = [pairs(one, mu, z, L) for one in head.heads]
    return by_library(function, head, mu, each[0][2], *(tilts for _, tilts, _ in each))


def mean_shift(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L - T = -sum_h P_2^h V_h G u_h."""

    def of_arrays(head: AbstractHead, mu: Gaussian, L: Values, *tilts: Values) -> Bounded:
        each = []
        for one, tilt in zip(head.heads, tilts, strict=True):
            at = _at(one, mu, tilt)
            p2, error = _p2(at.scores.variance, L)
            rounding = error + _EPSILON * p2
            each.append(Bounded(-p2[..., None] * at.along, rounding[..., None] * abs(at.along)))
        return _sum(each)

    return _by_library(of_arrays, head, mu, z, L)


def mean(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L = T + its shift."""

    def limit(head: AbstractHead, mu: Gaussian, L: Values, *tilts: Values) -> Bounded:
        each = [
            one.V @ mu.centre + _at(one, mu, tilt).along
            for one, tilt in zip(head.heads, tilts, strict=True)
        ]
        return _sum([Bounded(value, _EPSILON * abs(value)) for value in each])

    return _sum([_by_library(limit, head, mu, z, L), mean_shift(head, mu, z, L)])


def second_moment(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L T_L' = Cov T_L + E T_L E T_L'."""
    found, centre = covariance(head, mu, z, L), mean(head, mu, z, L)
    crossed = _outer(abs(centre.value), centre.error)
    error = found.error + crossed + crossed.mT
    return Bounded(found.value + _outer(centre.value, centre.value), error)


def output_error(head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |T_L - T|^2 = tr Cov T_L + |E T_L - T|^2."""
    found, shift = covariance(head, mu, z, L), mean_shift(head, mu, z, L)
    value = found.value.trace(axis1=-2, axis2=-1) + (shift.value**2).sum(-1)
    # heads that cancel leave rounding of either sign
    value = value + fixed(library(value).maximum(-value, 0.0))
    error = found.error.trace(axis1=-2, axis2=-1)
    return Bounded(value, error + 2 * (abs(shift.value) * shift.error).sum(-1))


def _sum(parts: list[Bounded]) -> Bounded:
    values, errors = zip(*parts, strict=True)
    return Bounded(sum(values[1:], start=values[0]), sum(errors[1:], start=errors[0]))


def _outer(left: Values, right: Values) -> Values:
    return left[..., :, None] * right[..., None, :]


def _weight(factor: Values) -> Values:
    return factor[..., None, None]


def covariances(tilts: Values, first: Scores, second: Scores) -> tuple[Values, Values, Values]:
    """Variances of the two scores of a token, and their covariance."""
    return first.variance, second.variance, (tilts * second.pull).sum(-1)
