"""Rules that average functions of the score variance over the law of the query.

A rule is exact for finitely many atoms, converges geometrically for Gaussian laws, boxes and
spheres of few dimensions, and uses scrambled points for other laws.
"""

import math

import numpy as np

from ..measures import AbstractMeasure, Empirical
from .quadratic_form import Average, Feature, gaussian_average, inverse_powers
from .quasi import Scrambling, scrambled

_POINTS = 2**12  # scrambled queries
_DIRECT = 200  # atoms whose variances are used as they are; more are interpolated


def averages(
    law: AbstractMeasure,
    factor: np.ndarray,
    features: list[Feature],
    log_length: float,
    scrambling: Scrambling | None,
    level: int = 0,
) -> list[Average]:
    """Rules for E[q(z) h(|factor z|^2)] under the law of z: one where the rule is deterministic,
    otherwise one for each scrambling.
    """
    normal = law.as_gaussian()
    if normal is not None:
        mean, cov = (np.asarray(a, np.float64) for a in (normal.centre, normal.covariance))
        return [gaussian_average(mean, cov, factor, features, log_length, level)]
    atoms = law.atoms()
    if atoms is not None:
        return [_average_of_points(atoms, atoms, factor, features)]
    points, fewer = law.quadrature(level), law.quadrature(level - 1)
    if points is not None and fewer is not None:
        return [_average_of_points(points, fewer, factor, features)]
    weights, components = law.mixture()
    if len(components) > 1:
        parts = [
            averages(part, factor, features, log_length, scrambling, level) for part in components
        ]
        count = max(map(len, parts))
        repeated = [part * count if len(part) == 1 else part for part in parts]
        shares = np.asarray(weights, np.float64)
        return [_mix(shares, rules) for rules in zip(*repeated, strict=True)]
    rules = []
    for points in scrambled(law, scrambling, _POINTS, "queries"):
        rule = _average_of_points(points, points, factor, features)
        rules.append(rule._replace(points=_weighted(points, factor, features)))
    return rules


def _mix(weights: np.ndarray, rules: tuple[Average, ...]) -> Average:
    return Average(
        np.concatenate([rule.variances for rule in rules]),
        np.concatenate([w * rule.weights for w, rule in zip(weights, rules, strict=True)], axis=1),
        np.concatenate([w * rule.coarse for w, rule in zip(weights, rules, strict=True)], axis=1),
        np.max([np.broadcast_to(rule.gap, len(rule.weights)) for rule in rules], axis=0),
        all(rule.geometric for rule in rules),
        _mixed_points(weights, rules),
    )


def _mixed_points(
    weights: np.ndarray, rules: tuple[Average, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    parts = [(w, rule.points) for w, rule in zip(weights, rules, strict=True) if rule.points]
    if not parts:
        return None
    return (
        np.concatenate([S for _, (S, _) in parts]),
        np.concatenate([w * weighted for w, (_, weighted) in parts], axis=1),
    )


def _average_of_points(
    law: Empirical, fewer: Empirical, factor: np.ndarray, features: list[Feature]
) -> Average:
    """Sums over the points of `law`, with sums over `fewer` points as the coarse rule; the same
    points mean an exact law.
    """
    S, weighted = _weighted(law, factor, features)
    few_S, few_weighted = (S, weighted) if fewer is law else _weighted(fewer, factor, features)
    if len(S) > _DIRECT:
        return _interpolated(S, weighted, few_S, few_weighted, geometric=fewer is law)
    if fewer is law:
        return Average(S, weighted, weighted)
    nothing, less = np.zeros_like(few_weighted), np.zeros_like(weighted)
    return Average(
        np.concatenate([S, few_S]),
        np.concatenate([weighted, nothing], axis=1),
        np.concatenate([less, few_weighted], axis=1),
    )


def _weighted(
    law: Empirical, factor: np.ndarray, features: list[Feature]
) -> tuple[np.ndarray, np.ndarray]:
    """S at every point, and the weight of the point times every feature."""
    z, weights = np.asarray(law.points, np.float64), np.asarray(law.weights, np.float64)
    weights = weights / weights.sum()
    S = np.sum((z @ factor.T) ** 2, axis=1)
    values = np.stack([feature.at(z) for feature in features])
    return S, weights * values * inverse_powers(S, features)


def _interpolated(
    S: np.ndarray,
    weighted: np.ndarray,
    few_S: np.ndarray,
    few_weighted: np.ndarray,
    geometric: bool,
) -> Average:
    """Many atoms as few: h is replaced by its Chebyshev interpolant in x = sqrt(1 + S), whose
    values the weights multiply.

    The coarse rule has every other Chebyshev point, the interpolant of half the degree.
    """
    x, few_x = np.sqrt(1 + S), np.sqrt(1 + few_S)
    low, high = min(x.min(), few_x.min()), max(x.max(), few_x.max())
    if high - low < 1e-12 * high:
        total, less = (w.sum(axis=1, keepdims=True) for w in (weighted, few_weighted))
        return Average(np.array([S.mean()]), total, less)
    # the functions of interest change over distances of about 1/4 in x
    degree = 2 ** math.ceil(math.log2(min(max(32 * (high - low), 16), 512)))

    def weights(at: np.ndarray, weighted: np.ndarray, n: int) -> np.ndarray:
        position = np.clip((2 * at - low - high) / (high - low), -1, 1)
        moments = np.zeros((len(weighted), n + 1))
        for start in range(0, len(at), 4096):
            block = slice(start, start + 4096)
            moments += weighted[:, block] @ np.polynomial.chebyshev.chebvander(position[block], n)
        k = np.arange(n + 1)
        halves = np.where((k == 0) | (k == n), 0.5, 1.0)
        modes = np.cos(np.pi * np.outer(k, k) / n) * halves[:, None] * halves
        return 2 / n * moments @ modes

    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * np.arange(degree + 1) / degree)
    fine = weights(x, weighted, degree)
    coarse = np.zeros_like(fine)
    coarse[:, ::2] = weights(few_x, few_weighted, degree // 2)
    return Average(np.maximum(nodes**2 - 1, 0.0), fine, coarse, geometric=geometric)
