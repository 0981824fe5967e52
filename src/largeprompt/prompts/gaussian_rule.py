"""Quadrature over standard normal vectors: radius by radius, and rule by rule on the sphere.

With xi = r theta, r^2/2 has a gamma law: its Gauss rule (generalised Laguerre) is exact for
polynomials of r^2. On the sphere: equidistant angles for d = 2, a product rule for d = 3, and for
more dimensions the fully symmetric rules of Genz (2003), exact to degree 2m + 1. Functions that
depend on xi through |xi| need one point of the sphere, and have a radial rule of their own; the
closer other functions are to that, the better.
"""

import itertools
import math
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import gammaln, roots_genlaguerre

# which functions a rule averages: any; even ones; those even in every coordinate
Symmetry = Literal["none", "even", "coordinates"]
_MOST_DIRECTIONS = 2500
_NEGLIGIBLE = 1e-10  # weight of a radius
_TAIL, _ROUNDING = 7.5, 1e-16  # of radii around sqrt(d), and of their weights


class GaussianRule(NamedTuple):
    """Points xi of shape (n, d) and weights that sum to one."""

    points: np.ndarray
    weights: np.ndarray


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
    order = 2 * level
    while order > 1 and _count(d, order, symmetry) > _MOST_DIRECTIONS:
        order -= 1
    return _signed(*_symmetric_rule(d, order), symmetry)


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
