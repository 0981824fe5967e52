"""Quadrature over standard normal vectors: radius by radius, and rule by rule on the sphere.

With xi = r theta, r^2/2 has a gamma law: its Gauss rule (generalised Laguerre) is exact for
polynomials of r^2. On the sphere: equidistant angles for d = 2, a product rule for d = 3, and for
more dimensions the fully symmetric rules of Genz (2003), exact to degree 2m + 1. Functions that
depend on xi through |xi| need one point of the sphere, and have a radial rule of their own; the
closer other functions are to that, the better.

In more than three dimensions functions of quadratic forms (variances of scores) may vary along a
few axes only. `fitted_rule` tries products of a rule for the one, two or three strongest axes with
a coarser one for the others. A rule is certified by E S^j e^{tS}, j = 0, 1, which is known in
closed form for every form S: moments of polynomials of low degree do not show that all directions
of a rule miss a strong axis.
"""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import gammaln, roots_genlaguerre

# which functions a rule averages: any; even ones; those even in every coordinate
Symmetry = Literal["none", "even", "coordinates"]
_MOST_DIRECTIONS = 2500
_MOST_POINTS, _MOST_NUMBERS = 40_000, 2**23  # of a rule; the numbers are points times dimensions
_STRONG = 3  # axes that may have a rule of their own
_NEGLIGIBLE = 1e-10  # weight of a radius
_TAIL, _ROUNDING = 7.5, 1e-16  # of radii around sqrt(d), and of their weights


class GaussianRule(NamedTuple):
    """Points xi of shape (n, d) and weights that sum to one."""

    points: np.ndarray
    weights: np.ndarray


class Form(NamedTuple):
    """S = xi'matrix xi + 2 linear'xi + constant."""

    matrix: np.ndarray
    linear: np.ndarray
    constant: float

    @staticmethod
    def of_square(factor: np.ndarray, offset: np.ndarray) -> "Form":
        """|factor xi + offset|^2."""
        return Form(factor.T @ factor, factor.T @ offset, float(offset @ offset))

    def at(self, points: np.ndarray) -> np.ndarray:
        """S at points of shape (n, d)."""
        return np.sum((points @ self.matrix + 2 * self.linear) * points, axis=1) + self.constant

    def deviations(self) -> float:
        """E S and two standard deviations."""
        variance = 2 * np.sum(self.matrix**2) + 4 * self.linear @ self.linear
        return float(np.trace(self.matrix) + self.constant + 2 * math.sqrt(variance))

    def tilted(self, t: float) -> tuple[float, float]:
        """E e^{tS} and E S e^{tS}, for t below 1/2 over the largest eigenvalue."""
        stretch = np.eye(len(self.matrix)) - 2 * t * self.matrix
        moved = 2 * t * np.linalg.solve(stretch, self.linear)
        log = t * (self.constant + self.linear @ moved) - np.linalg.slogdet(stretch)[1] / 2
        mean = np.trace(np.linalg.solve(stretch, self.matrix)) + self.constant
        mean += 2 * self.linear @ moved + moved @ self.matrix @ moved
        return math.exp(log), math.exp(log) * float(mean)


class FittedRule(NamedTuple):
    """A rule, and its largest relative error on the averages that certify it."""

    points: np.ndarray
    weights: np.ndarray
    gap: float


def fitted_rule(
    forms: Sequence[Form], level: int, symmetry: Symmetry, log_length: float
) -> FittedRule:
    """The rule of a level that serves functions of these forms best.

    `log_length` is that of the prompt: moments of softmaxes change by a factor of L at most, which
    bounds the exponents t. With symmetry "coordinates" the matrices of the forms are diagonal. The
    gap is infinite where no rule has a reasonable size.
    """
    d = len(forms[0].matrix)
    exponents = [_largest_exponent(form, log_length) for form in forms]
    strengths, axes = _principal_axes(
        sum((form.matrix for form in forms), start=np.zeros((d, d))), symmetry
    )
    seen = strengths > 1e-14 * strengths.max(initial=0.0)
    if not any(np.any(form.linear) for form in forms) or symmetry != "none":
        axes = axes[:, seen] if seen.any() else axes[:, :1]
    best = FittedRule(np.zeros((1, d)), np.ones(1), math.inf)
    for strong in range(min(_STRONG, axes.shape[1] - 1) + 1 if axes.shape[1] > 3 else 1):
        rule = _split_rule(axes.shape[1], strong, level, symmetry)
        if rule is None:
            continue
        points = rule.points @ axes.T
        gaps = [
            _gap(form, t, points, rule.weights) for form, t in zip(forms, exponents, strict=True)
        ]
        if not max(gaps) >= best.gap:
            best = FittedRule(points, rule.weights, max(gaps))
    return best


def _largest_exponent(form: Form, log_length: float) -> float:
    top = float(np.linalg.eigvalsh(form.matrix)[-1])
    limits = [1.0, 0.25 / max(top, 1e-300), max(log_length, 1.0) / max(form.deviations(), 1e-300)]
    return min(limits)


def _principal_axes(matrix: np.ndarray, symmetry: Symmetry) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and axes, the strongest first; the coordinate axes of a diagonal matrix."""
    if symmetry == "coordinates":
        strengths, axes = np.diag(matrix), np.eye(len(matrix))
    else:
        strengths, axes = np.linalg.eigh(matrix)
    order = np.argsort(-strengths, kind="stable")
    return strengths[order], axes[:, order]


def _gap(form: Form, exponent: float, points: np.ndarray, weights: np.ndarray) -> float:
    """The largest error on E S^j e^{tS}, relative to the average or to that for t = 0."""
    S, worst = form.at(points), 0.0
    still = (1.0, form.tilted(0.0)[1])
    for t in (-exponent, exponent / 2, exponent):
        weighted = weights * np.exp(t * S)
        found = weighted.sum(), weighted @ S
        for value, known, scale in zip(found, form.tilted(t), still, strict=True):
            worst = max(worst, float(abs(value - known)) / max(abs(known), scale, 1e-300))
    return worst


@lru_cache(maxsize=16)
def _split_rule(d: int, strong: int, level: int, symmetry: Symmetry) -> GaussianRule | None:
    """The product of `gaussian_rule` for the first axes and a coarser rule for the others; None if
    it has too many points.
    """
    if strong == 0:
        order = _order(d, level, symmetry)
        count = (8 + 4 * level) * (_count(d, order, symmetry) if d > 3 else 1)
        return None if count * d > _MOST_NUMBERS else gaussian_rule(d, level, symmetry)
    first = gaussian_rule(strong, level, symmetry)
    rest = symmetry if symmetry == "coordinates" else "none"
    most = min(_MOST_POINTS, _MOST_NUMBERS // d) // len(first.weights)
    for order in range(level + 1, 0, -1):
        if (order + 1) * _count(d - strong, order, rest) <= most:
            break
    else:
        return None
    radii, by_radius = radial_rule(d - strong, order + 1)
    directions, by_direction = _signed(*_symmetric_rule(d - strong, order), rest)
    others = (radii[:, None, None] * directions).reshape(-1, d - strong)
    points = np.concatenate(
        [np.repeat(first.points, len(others), 0), np.tile(others, (len(first.points), 1))], axis=1
    )
    weights = np.multiply.outer(first.weights, np.outer(by_radius, by_direction)).ravel()
    return GaussianRule(points, weights)


@lru_cache(maxsize=64)
def gaussian_rule(d: int, level: int, symmetry: Symmetry) -> GaussianRule:
    """The rule of a level, from 1 on; higher levels are more exact."""
    radii, by_radius = radial_rule(d, 8 + 4 * level)
    directions, by_direction = _sphere(d, level, symmetry)
    points = radii[:, None, None] * directions
    weights = by_radius[:, None] * by_direction
    return GaussianRule(points.reshape(-1, d), weights.ravel())


@lru_cache(maxsize=64)
def radial_rule(d: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Radii r and weights that average functions of |xi|^2, xi standard normal in R^d."""
    halves, weights = roots_genlaguerre(count, d / 2 - 1)
    weights = weights / weights.sum()
    kept = weights > _NEGLIGIBLE
    return np.sqrt(2 * halves[kept]), weights[kept] / weights[kept].sum()


@lru_cache(maxsize=64)
def isotropic_rule(d: int, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Radii and weights for any smooth function of |xi|, xi standard normal in R^d.

    Gauss and Legendre's rule on the radii that matter. Unlike `radial_rule` it converges fast for
    functions that are far from polynomials of |xi|^2, such as those that tend to a limit.
    """
    nodes, weights = np.polynomial.legendre.leggauss(16 + 32 * level)
    low, high = max(0.0, math.sqrt(d) - _TAIL), math.sqrt(d) + _TAIL
    radii = low + (high - low) * (nodes + 1) / 2
    density = (d - 1) * np.log(radii) - radii**2 / 2
    weights = weights * np.exp(density - density.max())
    kept = weights > _ROUNDING * weights.sum()
    return radii[kept], weights[kept] / weights[kept].sum()


def _sphere(d: int, level: int, symmetry: Symmetry) -> tuple[np.ndarray, np.ndarray]:
    """Directions and weights."""
    if d == 1:
        points, weights = np.ones((1, 1)), np.ones(1)
        return _signed(points, weights, symmetry)
    if d == 2:
        count = 2 + 3 * level  # on a quarter of the circle
        angles = (np.arange(count) + 0.5) * math.pi / (2 * count)
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return _signed(points, np.full(count, 1 / count), symmetry)
    if d == 3:
        height, by_height = np.polynomial.legendre.leggauss(4 + 3 * level + level % 2)
        upper = height > 0
        angles, by_angle = _sphere(2, level, "coordinates")
        flat = np.sqrt(1 - height[upper, None, None] ** 2) * angles
        tall = np.broadcast_to(height[upper, None, None], (*flat.shape[:2], 1))
        points = np.concatenate([flat, tall], axis=2).reshape(-1, 3)
        return _signed(points, np.outer(by_height[upper], by_angle).ravel(), symmetry)
    return _signed(*_symmetric_rule(d, _order(d, level, symmetry)), symmetry)


def _order(d: int, level: int, symmetry: Symmetry) -> int:
    """The order of a symmetric rule: one less for every level, so that directions differ."""
    largest = 2 * level
    while largest > 1 and _count(d, largest, symmetry) > _MOST_DIRECTIONS:
        largest -= 1
    if level > 1:
        return largest
    return max(1, min(largest, _order(d, 2, symmetry) - 1))


def _signed(
    points: np.ndarray, weights: np.ndarray, symmetry: Symmetry
) -> tuple[np.ndarray, np.ndarray]:
    """All changes of sign of the coordinates; for even functions half of them."""
    if symmetry == "coordinates":
        return points, weights
    found, shares = [], []
    for point, weight in zip(points, weights, strict=True):
        present = np.flatnonzero(point)
        free = present[1:] if symmetry == "even" else present
        for signs in itertools.product((1.0, -1.0), repeat=len(free)):
            signed = point.copy()
            signed[free] *= signs
            found.append(signed)
            shares.append(weight / 2 ** len(free))
    return np.array(found), np.array(shares)


def _count(d: int, order: int, symmetry: Symmetry) -> int:
    """Directions of a symmetric rule."""
    total = 0
    for parts in range(1, min(d, order) + 1):
        signs = {"none": 2**parts, "even": 2 ** (parts - 1), "coordinates": 1}[symmetry]
        total += math.comb(d, parts) * math.comb(order - 1, parts - 1) * signs
    return total


def _symmetric_rule(d: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The rule of Genz on the points sqrt(p/order), p whole numbers >= 0 that sum to `order`.

    The weight of p is the average over the sphere of prod_i prod_{j < p_i} (x_i - j/order) /
    ((p_i - j)/order), x_i the squares of the coordinates, and depends on the parts of p only.
    """
    weights = {}
    points, found = [], []
    for p in _compositions(order, d):
        parts = tuple(sorted((part for part in p if part), reverse=True))
        if parts not in weights:
            weights[parts] = _weight(parts, d, order)
        points.append(np.sqrt(np.array(p) / order))
        found.append(weights[parts])
    return np.array(points), np.array(found)


def _weight(parts: tuple[int, ...], d: int, order: int) -> float:
    polynomials = []
    for part in parts:
        polynomial = np.ones(1)
        for j in range(part):
            polynomial = np.convolve(polynomial, np.array([-j, order]) / (part - j))
        polynomials.append(polynomial)  # of x, constant first
    total = 0.0
    for powers in itertools.product(*(range(len(polynomial)) for polynomial in polynomials)):
        factor = math.prod(c[k] for c, k in zip(polynomials, powers, strict=True))
        if factor:
            total += factor * _moment(powers, d)
    return total


def _moment(powers: tuple[int, ...], d: int) -> float:
    """The average of prod_i x_i^{k_i} over the sphere."""
    logs = sum(gammaln(k + 0.5) - gammaln(0.5) for k in powers)
    return math.exp(logs + gammaln(d / 2) - gammaln(sum(powers) + d / 2))


def _compositions(total: int, parts: int):
    """All tuples of whole numbers >= 0 with this sum."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)
