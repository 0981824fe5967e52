"""Mean spectral density of real Wishart matrices, for averages over the inputs of a prompt.

The eigenvalues of X'X, X of shape (n, N) with standard normal entries and n >= N, have the joint
density prod_{i<k} |l_i - l_k| prod_i l_i^{(n-N-1)/2} e^{-l_i/2}. With l = v^2 and functions
psi_j(v) = p_j(v^2) v^{n-N} e^{-v^2/2} of polynomials p_j of degree j < N, de Bruijn's formula for
E prod_i (1 + f(l_i)) is the Pfaffian of

    A_jk = int int psi_j(x) psi_k(y) sign(y - x) (1 + f(x^2)) (1 + f(y^2)) dx dy,

bordered by the integrals of psi_j (1 + f) where N is odd. Its derivative in f at f = 0 is the
density rho(v) = sum_jk (A^-1)_kj psi_j(v) int sign(y - v) psi_k(y) dy. Laguerre polynomials make
the psi_j orthonormal, so that A is well conditioned.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from .._arrays import to_numpy
from ._exact_risk import Problem
from .many_head_risk import scalar_of

_MARGIN = 8.0  # deviations beyond the edges of the spectrum of sqrt(l)
_WIDTH, _ORDER = 0.5, 16  # of the panels of the quadrature over v
_LONG = 1e8  # tokens for each dimension from which on eigenvalues are L to second order


class Spectrum(NamedTuple):
    """E sum_i f(l_i) over all eigenvalues is `weights @ f(values)`."""

    values: np.ndarray
    weights: np.ndarray


def wishart_spectrum(d: int, L: int | float) -> Spectrum:
    """Quadrature rule for the mean spectrum of sum_i x_i x_i', i = 1..L, x_i ~ N(0, I_d).

    The law continues to real L >= d; below d tokens L must be whole.

    >>> from largeprompt.icl.wishart import wishart_spectrum
    >>> values, weights = wishart_spectrum(3, 10)
    >>> print(f"{weights.sum():.10f} {weights @ values:.8f} {weights @ values**2:.7f}")
    3.0000000000 30.00000000 420.0000000
    """
    N, n = (d, L) if d <= L else (int(L), d)
    v, steps, integral = _panels(
        max(0.0, math.sqrt(n) - math.sqrt(N) - _MARGIN), math.sqrt(n) + math.sqrt(N) + _MARGIN
    )
    psi = _laguerre(v, N, n - N - 0.5)
    total = psi @ steps
    beyond = total[:, None] - 2 * integral(psi)
    A = (psi * steps) @ beyond.T
    if N % 2:
        A = np.block([[A, total[:, None]], [-total, np.zeros(1)]])
        beyond = np.vstack([beyond, np.ones_like(v)])
    inverse = np.linalg.inv((A - A.T) / 2)
    density = np.sum(psi * (inverse[:, :N].T @ beyond), axis=0)
    return Spectrum(np.append(0.0, v**2), np.append(d - N, steps * density))


def isotropic_bayes_risk(problem: Problem, L: int) -> float | None:
    """Risk of ridge regression, 1/2 (tau^2 + E tr(Sig_q Cov(w | prompt))).

    None unless all covariances are multiples of the identity.
    """
    cov, root, task_cov, noise = to_numpy(problem)
    found = [scalar_of(matrix) for matrix in (cov, root, task_cov)]
    if any(scalar is None for scalar in found):
        return None
    s, query, t = (float(scalar or 0.0) for scalar in found)
    if s * t == 0:  # nothing is seen, or there is nothing to know
        left = float(len(cov))
    elif len(cov) * _LONG <= L:
        left = _left_by_long(len(cov), float(L), float(noise) / (s * t))
    else:
        values, weights = wishart_spectrum(len(cov), L)
        penalty = float(noise) / (s * t)
        seen = values > 0
        left = float(np.sum(weights[~seen]) + weights[seen] @ (penalty / (penalty + values[seen])))
    return 0.5 * (float(noise) + query**2 * t * left)


def _left_by_long(d: int, L: float, penalty: float) -> float:
    """E sum_i p / (p + l_i) of a long prompt, to a relative error of order (d / L)^2.

    To second order at l = L, where E sum_i (l_i - L)^2 = L d (d + 1).
    """
    share = penalty / (penalty + L)
    return d * share * (1 + (d + 1) * (L / (penalty + L)) / (penalty + L))


def _laguerre(v: np.ndarray, count: int, alpha: float) -> np.ndarray:
    """Functions v^{alpha + 1/2} e^{-v^2/2} L_j(v^2), orthonormal up to one common factor."""
    peak = math.sqrt(max(alpha + 0.5, 1.0))
    power = (alpha + 0.5) * np.log(v / peak) if alpha > -0.5 else 0.0
    rows = [np.exp(power - (v - peak) * (v + peak) / 2)]
    before = np.zeros_like(v)
    for j in range(count - 1):
        ahead = (2 * j + 1 + alpha - v**2) * rows[-1] - math.sqrt(j * (j + alpha)) * before
        before = rows[-1]
        rows.append(ahead / math.sqrt((j + 1) * (j + 1 + alpha)))
    return np.stack(rows)


def _panels(
    low: float, high: float
) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Gauss points on panels of [low, high], their weights, and the integral from `low` on."""
    count = math.ceil((high - low) / _WIDTH)
    x, w = legendre.leggauss(_ORDER)
    half = (high - low) / count / 2
    v = low + half * (2 * np.arange(count)[:, None] + 1 + x)
    # integrals of the interpolating polynomial from the left end of a panel to its points
    modes = np.linalg.inv(legendre.legvander(x, _ORDER - 1))
    inside = half * legendre.legval(x, legendre.legint(modes, lbnd=-1, axis=0)).T

    def integral(rows: np.ndarray) -> np.ndarray:
        parts = rows.reshape(len(rows), count, _ORDER)
        whole = half * parts @ w
        return (np.cumsum(whole, 1) - whole)[..., None] + parts @ inside.T

    return (
        v.ravel(),
        np.tile(half * w, count),
        lambda rows: integral(rows).reshape(len(rows), -1),
    )
