"""Tables of the moments of two softmaxes at one prompt length, for averages over many queries.

Five functions of the deviations sigma_a and sigma_b of the two scores and their correlation rho
decide the outputs of two heads (`prompts.many_heads`). With p, q, A_2, B_2 and C_kl as in
`pair_moments`,

    c = E C_11,  alpha = 2 E[A_2 C_11 - C_21],  beta = 2 E[B_2 C_11 - C_12],
    delta = E[C_11 - C_21 - C_12 + C_11^2],     both = E[A_2 B_2].

As functions of the covariances S_a = sigma_a^2, S_b and S_ab = rho sigma_a sigma_b of the scores,
alpha = 2 dc/dS_a, beta = 2 dc/dS_b and delta = dc/dS_ab (Price's theorem).

A table holds Chebyshev coefficients in asinh sigma_a, asinh sigma_b and rho. All its pairs share
one lattice of scores, so a pair takes a millisecond instead of the twenty of `pair_moments`. A
table of parallel scores holds rho = -1 and rho = 1 only. `table_error` compares a table with
`pair_moments` between its nodes.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from .._arrays import to_numpy
from ._laplace import laplace_window, stretched_lattice
from .pair_moments import PROBES, log_of_phi, pair_moments, powers, reach_of

FUNCTIONS = 5
_FINE, _NARROW = 0.33, 0.9  # steps of the scores: see `pair_moments.score_nodes`
_ORDERS = 5  # rows of `powers`: 1 - e^{-z}, and z^l e^{-z} for l = 0..3
_LEAST = 1e-4  # derivatives in the covariances are taken at least this part of the range from 0
MANY = 64  # pairs from which on a table is made
_PARALLEL = 1e-12
_MARGIN = 4.0  # how many times the largest gap seen the errors of a table are taken to be
_LEVELS = 8  # of deviations, at which they are measured
# deviations up to which a table is made sooner than many pairs one by one
_LARGEST_PARALLEL, _LARGEST_GENERAL = 12.0, 4.0
# deviations up to which tables are made
_RANGES = tuple(0.25 * 2 ** (k / 2) for k in range(12))


class Covariances(NamedTuple):
    """Derivatives in S_a, S_b and S_ab."""

    a: np.ndarray
    b: np.ndarray
    ab: np.ndarray


class PairTable(NamedTuple):
    """Chebyshev coefficients of the five functions, up to deviations `largest`.

    With `parallel` the last axis has the values at rho = -1 and rho = 1 instead.
    """

    coefficients: np.ndarray  # (sigma_a, function, sigma_b, rho)
    largest: float
    parallel: bool

    def values(self, sigma_a: np.ndarray, sigma_b: np.ndarray, rho: np.ndarray) -> np.ndarray:
        """The five functions on a leading axis; deviations are clipped to the range."""
        bases = self._bases(sigma_a), self._bases(sigma_b)
        return self._contracted(bases[0][0], bases[1][0], self._in_rho(rho)[0])

    def slopes(self, sigma_a: np.ndarray, sigma_b: np.ndarray, rho: np.ndarray) -> Covariances:
        """Derivatives of the functions in the covariances of the scores.

        Along parallel scores S_ab follows from S_a and S_b: its share is in their derivatives.
        """
        least = _LEAST * self.largest
        sigma_a, sigma_b = np.maximum(sigma_a, least), np.maximum(sigma_b, least)
        (a, da), (b, db) = self._bases(sigma_a), self._bases(sigma_b)
        r, dr = self._in_rho(rho)
        by_a = self._contracted(da, b, r) / (2 * sigma_a)
        by_b = self._contracted(a, db, r) / (2 * sigma_b)
        if self.parallel:
            return Covariances(by_a, by_b, np.zeros_like(by_a))
        by_rho = self._contracted(a, b, dr)
        return Covariances(
            by_a - rho / (2 * sigma_a**2) * by_rho,
            by_b - rho / (2 * sigma_b**2) * by_rho,
            by_rho / (sigma_a * sigma_b),
        )

    def _bases(self, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chebyshev polynomials of asinh sigma, and their derivatives in sigma."""
        inside = np.minimum(sigma, self.largest)
        scale = 2 / math.asinh(self.largest)
        slope = np.where(sigma <= self.largest, scale / np.sqrt(1 + inside**2), 0.0)
        values, slopes = _chebyshev(scale * np.arcsinh(inside) - 1, len(self.coefficients))
        return values, slope[..., None] * slopes

    def _in_rho(self, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.parallel:
            return np.stack([rho < 0, rho >= 0], axis=-1) + 0.0, np.zeros((*rho.shape, 2))
        return _chebyshev(rho, self.coefficients.shape[-1])

    def _contracted(self, a: np.ndarray, b: np.ndarray, r: np.ndarray) -> np.ndarray:
        n, *rest = self.coefficients.shape
        table = (a @ self.coefficients.reshape(n, -1)).reshape(len(a), *rest)
        return np.moveaxis(((table @ r[:, None, :, None])[..., 0] @ b[..., None])[..., 0], -1, 0)


def _chebyshev(x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """T_0(x), .., T_{count - 1}(x) on a last axis, and their derivatives."""
    values = chebyshev.chebvander(x, count - 1)
    return values, values[..., :-1] @ chebyshev.chebder(np.eye(count), axis=0)


def tabulated(
    sigma_a: np.ndarray, sigma_b: np.ndarray, rho: np.ndarray, L: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """The five functions of many pairs, and bounds on their errors, from a table.

    None where single pairs by `pair_moments` are the shorter way.
    """
    if not math.isfinite(L) or len(sigma_a) < MANY:
        return None
    largest = range_for(float(max(np.max(sigma_a), np.max(sigma_b))))
    parallel = bool(np.all(np.abs(rho) > 1 - _PARALLEL))
    if largest is None or largest > (_LARGEST_PARALLEL if parallel else _LARGEST_GENERAL):
        return None
    table = pair_table(L, largest, parallel)
    value = table.values(sigma_a, sigma_b, rho)
    return value, table_error(L, largest, parallel)(sigma_a, sigma_b)


def range_for(deviation: float) -> float | None:
    """The smallest range of a table that has this deviation; None if it is beyond all."""
    return next((largest for largest in _RANGES if deviation <= largest), None)


@lru_cache(maxsize=32)
def pair_table(L: float, largest: float, parallel: bool) -> PairTable:
    """The table at one length 1 <= L < infinity, for deviations up to `largest`."""
    sigma = _deviations(_points(_count(largest, parallel)), largest)
    rhos = _points(2 if parallel else _correlations(largest))
    values = pair_functions(sigma, rhos, L)  # (function, a, b, rho)
    for axis in (1, 2) if parallel else (1, 2, 3):
        values = np.moveaxis(np.tensordot(_modes(values.shape[axis]), values, (1, axis)), 0, axis)
    return PairTable(np.ascontiguousarray(np.moveaxis(values, 0, 1)), largest, parallel)


def _count(largest: float, parallel: bool) -> int:
    """Nodes of a table in each deviation."""
    growth = 12 if parallel and largest < 6 else 8  # larger tables take seconds
    return math.ceil(7 + growth * math.asinh(largest))


def _correlations(largest: float) -> int:
    """Nodes of a table in the correlation."""
    return math.ceil(5 + 6 * largest**0.75)


def _deviations(points: np.ndarray, largest: float) -> np.ndarray:
    return np.sinh(math.asinh(largest) * (points + 1) / 2)


class TableError(NamedTuple):
    """Errors of the five functions for pairs whose larger deviation is at most that of a level."""

    levels: np.ndarray
    errors: np.ndarray  # (function, level), increasing

    def __call__(self, sigma_a: np.ndarray, sigma_b: np.ndarray) -> np.ndarray:
        """Errors of the five functions on a leading axis."""
        level = np.searchsorted(self.levels, np.maximum(sigma_a, sigma_b))
        return self.errors[:, np.minimum(level, len(self.levels) - 1)]


@lru_cache(maxsize=32)
def table_error(L: float, largest: float, parallel: bool) -> TableError:
    """Errors of the `pair_table` with these arguments, measured.

    The largest gaps to `pair_moments` at pairs half way between the nodes, with a margin, plus its
    own errors.
    """
    nodes = _points(_count(largest, parallel))
    middle = _deviations((nodes[1:] + nodes[:-1]) / 2, largest)
    levels = np.linspace(len(middle) // 4, len(middle) - 1, _LEVELS).astype(int)
    second = np.stack([levels, levels - 1, levels // 2, levels // 2])
    rho = np.array([1.0, -1.0, 1.0, -1.0])
    if not parallel:
        rhos = _points(_correlations(largest))
        rho = ((rhos[1:] + rhos[:-1]) / 2)[[-1, 0, len(rhos) // 2, -2]]
    sigma_a, sigma_b, rho = np.broadcast_arrays(middle[levels], middle[second], rho[:, None])
    sigma_a, sigma_b, rho = sigma_a.ravel(), sigma_b.ravel(), rho.ravel()
    found = pair_table(L, largest, parallel).values(sigma_a, sigma_b, rho)
    m = to_numpy(pair_moments(sigma_a, sigma_b, rho, L))
    value, size = np.array(m.functions())
    gap = _MARGIN * np.abs(found - value) + m.error * size
    gap[1] = gap[2] = np.maximum(gap[1], gap[2])  # alpha and beta change places with the heads
    worst = np.max(gap.reshape(FUNCTIONS, *second.shape), axis=1)
    ends = np.append(middle[levels[:-1]], largest)
    return TableError(ends, np.maximum.accumulate(worst, axis=1))


def _points(count: int) -> np.ndarray:
    """Chebyshev points from -1 to 1, both ends included, exactly."""
    points = -np.cos(np.pi * np.arange(count) / (count - 1))
    points[[0, -1]] = -1.0, 1.0
    return points


def _modes(count: int) -> np.ndarray:
    """The matrix that turns values at the points into Chebyshev coefficients."""
    return np.linalg.inv(chebyshev.chebvander(_points(count), count - 1))


def pair_functions(sigma: np.ndarray, rhos: np.ndarray, L: float) -> np.ndarray:
    """The five functions for all pairs of deviations and all correlations.

    Shape (functions, deviations, deviations, correlations). Correlations must be -1, 1, or far
    enough from both for the lattice of the scores to resolve their density.
    """
    lengths, largest = np.full(len(sigma), float(L)), float(np.max(sigma))
    reach = float(np.max(reach_of(sigma, lengths)))
    step = min(_FINE / max(largest, 1e-3), _NARROW / math.sqrt(1 + largest * reach))
    x = np.linspace(-reach, reach, math.ceil(2 * reach / step) + 1)
    normal = np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    window = laplace_window(sigma, lengths, PROBES)
    first, steps = [], []
    for i, s in enumerate(sigma):
        one = slice(i, i + 1)
        placed = type(window)(*(part[one] for part in window))
        nodes = math.ceil(68 + 10 * s)
        tau, step = stretched_lattice(sigma[one], lengths[one], placed, nodes)
        first.append(powers(tau[0][:, None] + s * x))
        steps.append(step[0])
    found = np.zeros((FUNCTIONS, len(sigma), len(sigma), len(rhos)))
    for r, rho in enumerate(rhos):
        density = _conditional(x, rho) * normal[:, None] if abs(rho) < 1 else None
        for b, rows in enumerate(first):
            if density is not None:
                second = density @ rows.reshape(-1, len(x)).T
            else:
                second = normal[:, None] * rows[:, :, :: int(rho)].reshape(-1, len(x)).T
            for a in range(b + 1):
                c, alpha, beta, delta, both = _one_pair(
                    first[a], second, normal, steps[a][:, None] * steps[b], L
                )
                found[:, b, a, r] = c, beta, alpha, delta, both
                found[:, a, b, r] = c, alpha, beta, delta, both
    return found


def _conditional(x: np.ndarray, rho: float) -> np.ndarray:
    """Weights of r on the lattice (columns) given s (rows), in units of their deviations."""
    square = 1 - rho**2
    distance = (x - rho * x[:, None]) ** 2 / square
    return (x[1] - x[0]) / math.sqrt(2 * math.pi * square) * np.exp(-0.5 * distance)


def _one_pair(
    first: np.ndarray, second: np.ndarray, normal: np.ndarray, step: np.ndarray, L: float
) -> tuple[Any, ...]:
    """The five functions, from `first` (order, t, s) and `second` (s, order and w)."""
    width = step.shape[1]

    def phi(k: int, *orders: int) -> list[np.ndarray]:
        """phi_kl for consecutive l; l = -1 is 1 - e^{-z} in place of z^l e^{-z}."""
        columns = slice((orders[0] + 1) * width, (orders[-1] + 2) * width)
        return np.split(first[k + 1] @ second[:, columns], len(orders), axis=1)

    tail, p00, _, p02 = phi(0, -1, 0, 1, 2)
    p11, p12, p13 = phi(1, 1, 2, 3)
    p20, p21, p22 = phi(2, 0, 1, 2)
    (p31,) = phi(3, 1)
    # 1 - e^{-z-z'} = (1 - e^{-z}) + e^{-z} (1 - e^{-z'}): no digits are lost at small t and w
    log_phi, good = log_of_phi((first[0] @ normal)[:, None] + tail, p00)
    scale = np.where(good, np.exp(math.log(L) - log_phi), 0.0)
    once = np.where(good, step * np.exp(L * log_phi), 0.0) * scale
    twice = once * scale * (1 - 1 / L)
    c11, c21, c12, c22 = (float(np.vdot(once, p)) for p in (p11, p21, p12, p22))
    a2c11 = 0.5 * (np.vdot(twice, p20 * p11) + np.vdot(once, p31))
    b2c11 = 0.5 * (np.vdot(twice, p02 * p11) + np.vdot(once, p13))
    both = np.vdot(twice, p20 * p02) + c22
    square = np.vdot(twice, p11 * p11) + c22
    delta = c11 - c21 - c12 + square
    return c11, 2 * (a2c11 - c21), 2 * (b2c11 - c12), delta, both
