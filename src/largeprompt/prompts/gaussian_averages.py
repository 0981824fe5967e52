"""Averages for Gaussian tokens as sums over features of the query times functions of (S, L).

With S = z'U'GUz, the variance of the scores at the query z, every average of `gaussian_tokens` has
the form constant + sum_f q_f(z) c_f(S, L), q_f a polynomial of the query divided by a power of S.
So its average over queries needs only the law of S, weighted by the q_f.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._linalg import covariance_root
from ..attention import AbstractHead
from ..measures import Gaussian
from ..participation import Along, gradient_moments_along, participation_along
from .quadratic_form import Feature


class Decomposition(NamedTuple):
    """An average over prompts, split so that it can be averaged over queries.

    Entry k of the value is constant[k] + sum_f mix[k, f] q_f(z) c_f(S, L), where S = |factor z|^2.
    """

    factor: np.ndarray
    features: list[Feature]
    coefficients: Callable[[np.ndarray, np.ndarray], Along]  # (S, L) -> c_f and dc_f/dL
    mix: np.ndarray
    shape: tuple[int, ...]
    # (mean, second moment) of the query -> its average at L = infinity
    constant: Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Parts(NamedTuple):
    """The matrices of a head and a Gaussian law in float64."""

    V: np.ndarray
    G: np.ndarray
    m: np.ndarray
    U: np.ndarray

    @property
    def pull(self) -> np.ndarray:
        return self.G @ self.U

    @property
    def factor(self) -> np.ndarray:
        return covariance_root(self.G).T @ self.U


def _parts(head: AbstractHead, mu: Gaussian) -> _Parts:
    arrays = (head.V, mu.covariance, mu.centre, head.U)
    return _Parts(*(np.asarray(a, np.float64) for a in arrays))


def output(head: AbstractHead, mu: Gaussian) -> Decomposition:
    """E T_L = V m + V G U z - P_2 V G U z."""
    parts = _parts(head, mu)
    slope = parts.V @ parts.pull
    count = len(slope)

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        p = participation_along(np.sqrt(S)[:, None], L)
        return p.combine([[-1, 0, 0]] * count)

    def constant(mean: np.ndarray, second: np.ndarray) -> np.ndarray:
        return parts.V @ parts.m + slope @ mean

    features = [Feature(linear=row) for row in slope]
    return Decomposition(parts.factor, features, coefficients, np.eye(count), (count,), constant)


def second_moment(head: AbstractHead, mu: Gaussian) -> Decomposition:
    """E T_L T_L' = (a + b)(a + b)' + P_2 (VGV' - ab' - ba') - (P_2 + 6 P_3 - 6 P_22) bb', where
    a = V m and b = V G U z.
    """
    parts = _parts(head, mu)
    a, slope, cov = parts.V @ parts.m, parts.V @ parts.pull, parts.V @ parts.G @ parts.V.T
    m = len(a)
    upper = [(i, j) for i in range(m) for j in range(i, m)]
    features = [Feature(), *(Feature(linear=row) for row in slope)]
    features += [Feature((_symmetric(np.outer(slope[i], slope[j])),)) for i, j in upper]
    table = [[1, 0, 0], *[[-1, 0, 0]] * m, *[[-1, -6, 6]] * len(upper)]
    mix = np.zeros((m, m, len(features)))
    mix[:, :, 0] = cov
    for i in range(m):
        for j in range(m):
            mix[i, j, 1 + j] += a[i]
            mix[i, j, 1 + i] += a[j]
            mix[i, j, 1 + m + upper.index((min(i, j), max(i, j)))] = 1.0

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        return participation_along(np.sqrt(S)[:, None], L).combine(table)

    def constant(mean: np.ndarray, second: np.ndarray) -> np.ndarray:
        cross = np.outer(a, slope @ mean)
        return (np.outer(a, a) + cross + cross.T + slope @ second @ slope.T).ravel()

    return Decomposition(
        parts.factor, features, coefficients, mix.reshape(m * m, -1), (m, m), constant
    )


def output_error(head: AbstractHead, mu: Gaussian) -> Decomposition:
    """E |T_L - T|^2 = tr(V G V') P_2 + |V G U z|^2 (P_2 - 6 P_3 + 6 P_22)."""
    parts = _parts(head, mu)
    return _squared(parts, parts.V.T @ parts.V, 1)


def gradient_error_V(head: AbstractHead, mu: Gaussian) -> Decomposition:
    """E |dT_L/dV - dT/dV|^2: the squared error of the mean token, once for each row of V."""
    parts = _parts(head, mu)
    return _squared(parts, np.eye(len(parts.G)), len(parts.V))


def _squared(parts: _Parts, W: np.ndarray, copies: int) -> Decomposition:
    trace = float(np.trace(W @ parts.G))

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        p = participation_along(np.sqrt(S)[:, None], L)
        return p.combine([[copies * trace, 0, 0], [copies, -6 * copies, 6 * copies]])

    features = [Feature(), Feature((_symmetric(parts.pull.T @ W @ parts.pull),))]
    return Decomposition(parts.factor, features, coefficients, np.ones((1, 2)), (), _nothing)


def linear_error(head: AbstractHead, mu: Gaussian) -> Decomposition:
    """E |T_L - T_lin|^2 = E |T_L - T|^2 + |gap|^2 - 2 P_2 <V G U z, gap>, where the gap T - T_lin
    is V m - V m m'U z.
    """
    parts = _parts(head, mu)
    own = output_error(head, mu)
    start = parts.V @ parts.m
    along = -np.outer(start, parts.m @ parts.U)
    slope = parts.V @ parts.pull

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        p = participation_along(np.sqrt(S)[:, None], L)
        trace = float(np.trace(parts.V @ parts.G @ parts.V.T))
        return p.combine([[trace, 0, 0], [1, -6, 6], [-2, 0, 0], [-2, 0, 0]])

    def constant(mean: np.ndarray, second: np.ndarray) -> np.ndarray:
        square = start @ start + 2 * start @ along @ mean + np.trace(along @ second @ along.T)
        return np.array([square])

    features = [
        *own.features,
        Feature(linear=start @ slope),
        Feature((_symmetric(slope.T @ along),)),
    ]
    return Decomposition(own.factor, features, coefficients, np.ones((1, 4)), (), constant)


def gradient_error_U(head: AbstractHead, mu: Gaussian) -> Decomposition:
    """`gaussian_tokens.gradient_error_U` multiplied out in a = g'Wg, b = g'g, e = g'GWg, where
    g = Gu/sigma.
    """
    parts = _parts(head, mu)
    pull, G, W = parts.pull, parts.G, parts.V.T @ parts.V
    A, B = _symmetric(pull.T @ W @ pull), _symmetric(pull.T @ pull)
    E = _symmetric(pull.T @ G @ W @ pull)
    square = np.eye(parts.U.shape[1])  # |z|^2
    features = [
        Feature((square,)),
        Feature((square, A), 1),
        Feature((square, B), 1),
        Feature((square, E), 1),
        Feature((square, A, B), 2),
    ]
    tr_G, tr_WG, tr_WGG = (float(np.trace(X)) for X in (G, W @ G, W @ G @ G))
    # columns: p2, p3, p22, variance_error, dispersion, coupling; with distinct = p2 - 2 p3 + p22
    distinct = np.array([1, -2, 1, 0, 0, 0])
    p22, variance_error, dispersion, coupling = np.eye(6)[2:]
    table = np.stack(
        [
            tr_WGG * p22 + (tr_WG * tr_G + tr_WGG) * distinct,
            tr_G * (dispersion - distinct),
            tr_WG * (dispersion - distinct),
            2 * (dispersion - p22 - distinct - coupling),
            variance_error - 4 * dispersion + p22 + 2 * distinct + 2 * coupling,
        ]
    )

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        return gradient_moments_along(np.sqrt(S)[:, None], L).combine(table)

    return Decomposition(parts.factor, features, coefficients, np.ones((1, 5)), (), _nothing)


def _nothing(mean: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.zeros(1)


def _symmetric(A: np.ndarray) -> np.ndarray:
    return (A + A.T) / 2
