"""Token laws made of atoms and Gaussians, seen from one query as atoms with independent noise.

A token of a Gaussian component N(m, G) has a score s = <u, x> of deviation sigma, sigma^2 = u'Gu;
given its score it is linear in it, plus noise that no softmax sees:

    x = m + g (s - <u, m>)/sigma + n,    g = G u / sigma,    n ~ N(0, R),    R = G - g g'.

Finite-prompt averages integrate analytic functions of the score against its normal density, so the
trapezoidal rule over s converges geometrically: a component becomes a lattice of atoms that share
the noise covariance R. A point mass is an atom without noise, and a component with sigma = 0 a
lattice whose scores coincide; what is averaged over it has derivatives NaN there.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._arrays import Values, fixed, library, to_numpy
from .._float64 import is_traced
from .._linalg import safe_sqrt, without_slope
from ..measures import AbstractMeasure, Empirical, Gaussian

DROP = 37.0  # what has less than e^-37 of the weight is left out
_ABSENT = 44.0  # a prompt of L tokens has none of an atom with less than e^-44 / L^2 of the weight
_STEP, _DENSITY_STEP = 0.2, 0.6  # of the scores: absolute, and relative to sigma
_FEW, _MOST = 32, 4096  # scores of a component, where sigma is known
TRACED = 512  # and where it is not: steps of 0.2 up to sigma = 5
_EPSILON = 2.0**-52


class TokenLaw(eqx.Module):
    """Atoms and Gaussian components, with their normalised weights; either may be missing."""

    points: Values  # (n, d)
    point_weights: Values  # (n,)
    means: Values  # (k, d)
    covariances: Values  # (k, d, d)
    weights: Values  # (k,)

    @property
    def dim(self) -> int:
        return self.points.shape[-1]

    def tilted_mean(self, tilt: Values) -> Values:
        """Mean of the law tilted by u: that of the infinite prompt."""
        xp = library(self, tilt)
        pull = self.covariances @ tilt
        exponents = [self.points @ tilt, self.means @ tilt + pull @ tilt / 2]
        weights = xp.concatenate([self.point_weights, self.weights])
        values = xp.concatenate([self.points, self.means + pull])
        exponent = xp.where(weights > 0, xp.concatenate(exponents), -xp.inf)
        gate = weights * xp.exp(exponent - xp.max(exponent))
        return gate @ values / xp.sum(gate)

    def widest_scores(self, tilts: np.ndarray) -> float:
        """The largest difference of the scores of atoms, or of the ends of a Gaussian, at any
        tilt; for known numbers.
        """
        scores = np.concatenate([self.points[self.point_weights > 0], self.means]) @ tilts.T
        variance = np.einsum("qi,kij,qj->kq", tilts, self.covariances, tilts)
        return float(np.max(np.ptp(scores, axis=0)) + 16 * np.sqrt(np.max(variance, initial=0.0)))


def token_law(mu: AbstractMeasure) -> TokenLaw | None:
    """The atoms and Gaussians that mu is made of, as its methods declare; None if it has others.

    In NumPy if the numbers are known.
    """
    parts = _parts(mu, 1.0)
    if parts is None:
        return None
    traced = is_traced(parts)
    xp = jnp if traced else np
    points, point_weights, means, covariances, weights = [], [], [], [], []
    for weight, atoms, normal in parts if traced else to_numpy(parts):
        if atoms is not None:
            size = atoms.points.shape[0]
            log_weights = atoms.log_weights
            each = xp.full(size, 1 / size) if log_weights is None else xp.exp(log_weights)
            points.append(atoms.points)
            # weights that were stored in 32 bits add up to 1 in those only
            point_weights.append(weight * each / xp.sum(each))
        if normal is not None:
            means.append(normal.centre)
            covariances.append(normal.covariance)
            weights.append(weight)
    d = mu.dim
    none = [xp.zeros(shape) for shape in ((0, d), (0,), (0, d), (0, d, d), (0,))]
    points = xp.concatenate([none[0], *points])
    point_weights = xp.concatenate([none[1], *point_weights])
    means, covariances, weights = (
        xp.stack(arrays) if arrays else empty
        for arrays, empty in zip((means, covariances, weights), none[2:], strict=True)
    )
    total = xp.sum(point_weights) + xp.sum(weights)
    return TokenLaw(points, point_weights / total, means, covariances, weights / total)


class _Part(NamedTuple):
    """A component of a mixture: its weight, and its atoms or its Gaussian."""

    weight: Values
    atoms: Empirical | None
    normal: Gaussian | None


def _parts(mu: AbstractMeasure, weight: Values) -> list[_Part] | None:
    """The atoms and Gaussians of mu; None if a component is neither."""
    atoms = mu.atoms()
    normal = None if atoms is not None else mu.as_gaussian()
    if atoms is not None or normal is not None:
        return [_Part(weight, atoms, normal)]
    shares, components = mu.mixture()
    if len(components) == 1:
        return None
    shares = shares if is_traced(shares) else np.asarray(shares, np.float64)
    found: list[_Part] = []
    for share, component in zip(shares, components, strict=True):
        below = _parts(component, weight * share)
        if below is None:
            return None
        found += below
    return found


class NoisyAtoms(NamedTuple):
    """The law of one token, seen from one query: atoms, then the lattices of the components."""

    weights: Values  # (atoms,)
    growth: Values  # (atoms,) e^s; a common shift of the scores changes no softmax
    least: Values  # smallest growth
    points: Values  # (atoms, d) E[x | s]
    centred: Values  # (atoms, d) points less x_inf, the mean token of the infinite prompt
    noise: Values  # (k, d, d) covariance of x given s, in each component
    lattice: int  # atoms of each component; they come last
    rounding: Values  # of the scores
    step: Values  # relative error of the sums over scores

    @property
    def plain(self) -> int:
        """Number of atoms without noise."""
        return self.weights.shape[0] - self.noise.shape[0] * self.lattice

    def of_noise(self, numbers: Values) -> Values:
        """Numbers (..., k) of the components as numbers (..., atoms), 0 for atoms without noise."""
        xp = library(self.weights)
        spread = xp.repeat(numbers, self.lattice, axis=-1)
        return xp.concatenate([xp.zeros((*numbers.shape[:-1], self.plain)), spread], axis=-1)

    def mean_noise(self, weights: Values) -> Values:
        """Sum over atoms of weights (..., atoms) times the covariance of the noise."""
        k = self.noise.shape[0]
        each = weights[..., self.plain :].reshape(*weights.shape[:-1], k, self.lattice).sum(-1)
        return library(self.weights).tensordot(each, self.noise, axes=1)

    def through_noise(self, matrices: Values, vectors: Values) -> Values:
        """M_k v for vectors (..., atoms, d) and a matrix for each component; 0 for plain atoms."""
        xp, shape = library(self.weights), vectors.shape
        k, d = self.noise.shape[:2]
        mine = vectors[..., self.plain :, :].reshape(*shape[:-2], k, self.lattice, d)
        moved = (mine @ matrices.mT).reshape(*shape[:-2], k * self.lattice, matrices.shape[-2])
        nothing = xp.zeros((*shape[:-2], self.plain, matrices.shape[-2]))
        return xp.concatenate([nothing, moved], axis=-2)


def lattice_size(law: TokenLaw, tilts: np.ndarray, longest: float) -> int:
    """Number of scores of each component that resolves them all, for known numbers."""
    if not law.means.shape[0]:
        return 0
    variance = np.einsum("qi,kij,qj->qk", tilts, law.covariances, tilts)
    sigma = np.sqrt(np.maximum(variance, 0.0))
    reach = math.sqrt(2 * DROP) + reach_of_scores(sigma, longest)
    count = 1 + np.max(reach * np.sqrt((sigma / _STEP) ** 2 + 1 / _DENSITY_STEP**2))
    return int(np.clip(math.ceil(count), _FEW, _MOST))


def reach_of_scores(sigma: Values, longest: Values) -> Values:
    """Largest (s - mean)/sigma that matters to prompts of up to `longest` tokens, and to their
    limit.

    Moments of order K <= 4 see the law tilted up to 4 times; but a score that no prompt has matters
    to the limit alone, which is tilted once.
    """
    xp = library(sigma, longest)
    tail = math.sqrt(2 * DROP)
    seen = xp.maximum(xp.sqrt(2 * (DROP + 2 * xp.log(longest))), sigma + tail)
    return xp.minimum(4 * sigma + tail, seen)


def noisy_atoms(law: TokenLaw, tilt: Values, longest: Values, lattice: int) -> NoisyAtoms:
    """The law of one token seen from a query, for prompts of up to `longest` tokens."""
    xp = library(law, tilt, longest)
    k, d = law.means.shape
    scores, points, weights = law.points @ tilt, law.points, law.point_weights
    present = weights > 0
    largest = xp.max(xp.where(present, xp.sum(points**2, axis=1), 0.0), initial=0.0)
    rounding, step = xp.sqrt(largest * xp.sum(tilt**2)), xp.zeros(())
    noise = law.covariances
    if k:
        pull = law.covariances @ tilt
        sigma = safe_sqrt(xp.maximum(pull @ tilt, 0.0))[:, None]
        positive = sigma > 0
        along = xp.where(positive, pull / xp.where(positive, sigma, 1.0), 0.0)
        noise = noise - along[:, :, None] * along[:, None, :]
        ends = fixed(reach_of_scores(sigma, longest)), -math.sqrt(2 * DROP)
        x = ends[1] + (ends[0] - ends[1]) * np.linspace(0.0, 1.0, lattice)
        normal = xp.exp(-(x**2) / 2)
        normal = law.weights[:, None] * normal / xp.sum(normal, axis=1, keepdims=True)
        centres = law.means @ tilt
        tokens = law.means[:, None, :] + x[..., None] * along[:, None, :]
        of_tokens = centres[:, None] + sigma * x
        if xp is jnp:
            # a lattice along one direction says nothing about the others
            spread = jnp.trace(law.covariances, axis1=1, axis2=2)[:, None] > 0
            of_tokens = without_slope(of_tokens, jnp.any(spread & (sigma == 0)))
        scores = xp.concatenate([scores, of_tokens.ravel()])
        points = xp.concatenate([points, tokens.reshape(-1, d)])
        weights = xp.concatenate([weights, normal.ravel()])
        far = xp.sqrt(xp.sum(law.means**2, axis=1) * xp.sum(tilt**2)) + (sigma * ends[0])[:, 0]
        rounding = xp.maximum(rounding, xp.max(far))
        step = lattice_error(sigma, x[:, 1:2] - x[:, :1], 4)
    present = weights > math.exp(-_ABSENT) / longest**2
    top = fixed(xp.max(xp.where(present, scores, -xp.inf)))
    growth = xp.exp(xp.where(weights != 0, scores - top, 0.0))
    limit = weights * growth
    from_heaviest = points - points[xp.argmax(fixed(limit))]
    centred = from_heaviest - limit @ from_heaviest / xp.sum(limit)
    return NoisyAtoms(
        weights,
        growth,
        fixed(xp.min(growth)),
        points,
        centred,
        noise,
        lattice,
        fixed(_EPSILON * rounding),
        fixed(step),
    )


def lattice_error(sigma: Values, step: Values, order: int) -> Values:
    """Relative error of sums over scores, for a Laplace integral of order K.

    The step is relative to sigma. At the frequency f = 2 pi / (sigma step) the function z^K e^-z of
    ln z has |Gamma(K + i f)| left of its integral, and the normal density e^{-sigma^2 f^2/2}; their
    product has what is left at the best split of f between them.
    """
    xp = library(sigma, step)
    sigma = xp.maximum(sigma, 1e-3)
    f = 2 * math.pi / (sigma * step)
    of_normal = xp.minimum(math.pi / (2 * sigma**2), f)
    normal = xp.exp(-((sigma * of_normal) ** 2) / 2)
    return xp.max(gamma_decay(f - of_normal, order) * normal)


def gamma_decay(w: Values, order: int) -> Values:
    """2 |Gamma(K + i w)| / Gamma(K): trapezoidal error of t^K e^-t with step 2 pi / w in ln t."""
    xp = library(w)
    w = xp.maximum(w, 1e-9)
    factors = [xp.log1p((w / j) ** 2) for j in range(1, order)]
    log_sinh = math.pi * w + xp.log(-xp.expm1(-2 * math.pi * w) / 2)
    return 2 * xp.exp((xp.log(math.pi * w) - log_sinh + sum(factors)) / 2)
