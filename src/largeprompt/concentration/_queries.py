"""The law of the query as a rule: exact atoms, a convergent quadrature with its own error, or
scrambled points.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from .. import _checks
from .._typing import KeyInput
from ..measures import (
    AbstractMeasure,
    AffineImage,
    Dirac,
    Empirical,
    Gaussian,
    Mixture,
    Rademacher,
    Sphere,
    Uniform,
)
from ..prompts.quasi import representative
from ._quadratic_form import Average, Feature, gaussian_average, inverse_powers

REPLICATES = 8  # independent scramblings
_EXPONENT = 12  # 2^12 scrambled points each
_MOST_SIGNS = 10  # coordinates of a Rademacher law that are enumerated
_AXIS = {
    1: 32,
    2: 16,
    3: 8,
}  # Gauss points an axis at level 0, for boxes and spheres of few dimensions
_DROP = 42.0  # densities are followed until they fall to e^-42 of their peak
_DIRECT = 200  # atoms whose variances are used as they are; more are interpolated


def finite_support(law: AbstractMeasure) -> Empirical | None:
    """The law as finitely many weighted points, exactly, or None."""
    match law:
        case Dirac():
            return Empirical(law.point[None])
        case Empirical():
            return law
        case Rademacher() if law.dim <= _MOST_SIGNS:
            signs = jnp.array(list(itertools.product((-1.0, 1.0), repeat=law.dim)), law.dtype)
            return Empirical(signs, jax.nn.softmax(signs @ law.natural))
        case Sphere() if law.dim == 1:
            ends = law.radius * jnp.array([[-1.0], [1.0]], law.dtype)
            return Empirical(ends, jax.nn.softmax(ends @ law.natural))
        case AffineImage():
            inner = finite_support(law.measure)
            return None if inner is None else _mapped(inner, law)
        case Mixture():
            parts = [finite_support(part) for part in law.components]
            kept = [part for part in parts if part is not None]
            if len(kept) < len(parts):
                return None
            weights = [w * part.weights for w, part in zip(law.weights, kept, strict=True)]
            return Empirical(
                jnp.concatenate([part.points for part in kept]), jnp.concatenate(weights)
            )
    return None


def quadrature(law: AbstractMeasure, level: int = 0) -> Empirical | None:
    """Points whose sums converge geometrically to averages of smooth functions as `level` grows,
    or None.

    Each level has twice the points of the one before along every axis; the difference of two
    levels is an error of the lower one.
    """
    match law:
        case Uniform() if law.dim in _AXIS:
            return _box(law, int(_AXIS[law.dim] * 2**level))
        case Sphere() if law.dim in (2, 3):
            return _sphere(law, int(_AXIS[2] * 2**level))
        case AffineImage():
            inner = quadrature(law.measure, level)
            return None if inner is None else _mapped(inner, law)
    return None


def _mapped(points: Empirical, law: AffineImage) -> Empirical:
    moved = jnp.matmul(points.points, law.A.T, precision="highest") + law.b
    return Empirical(moved, points.weights)


def _gauss(low: np.ndarray, high: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [low, high], shape (..., count)."""
    x, w = np.polynomial.legendre.leggauss(count)
    middle, half = (low + high) / 2, (high - low) / 2
    return middle[..., None] + half[..., None] * x, half[..., None] * w


def _box(law: Uniform, count: int) -> Empirical:
    """Gauss points in each coordinate, over the part of the interval where its density e^{natural
    x} lives.
    """
    natural, a = np.asarray(law.natural, np.float64), float(law.half_width)
    reach = np.minimum(2 * a, _DROP / np.maximum(np.abs(natural), 1e-300))
    low = np.where(natural < 0, -a, a - reach)
    x, w = _gauss(low, low + reach, count)
    w = w * np.exp(natural[:, None] * x - np.abs(natural[:, None]) * a)
    points = np.stack(np.meshgrid(*x, indexing="ij"), -1).reshape(-1, law.dim)
    weights = np.prod(np.stack(np.meshgrid(*w, indexing="ij"), -1), -1).ravel()
    return Empirical(jnp.asarray(points, law.dtype), weights)


def _sphere(law: Sphere, count: int) -> Empirical:
    """In polar coordinates about the mean direction, with density e^{kappa cos(angle)}."""
    natural, radius = np.asarray(law.natural, np.float64), float(law.radius)
    size = float(np.linalg.norm(natural))
    kappa = radius * size
    around = np.pi * np.arange(4 * count) / (2 * count)
    if law.dim == 2 and kappa > _DROP:
        # 2 sin(angle/2) = r / sqrt(kappa) makes the density exactly e^{-r^2/2}
        r = math.sqrt(2 * _DROP) * (2 * np.arange(2 * count) + 1 - 2 * count) / (2 * count)
        angle = 2 * np.arcsin(r / (2 * math.sqrt(kappa)))
        height, across = np.cos(angle)[:, None], np.sin(angle)[:, None]
        weights = np.exp(-(r**2) / 2) / np.cos(angle / 2)
    elif law.dim == 2:
        height, across = np.cos(around)[:, None], np.sin(around)[:, None]
        weights = np.exp(kappa * (height[:, 0] - 1))
    else:
        depth, w = _gauss(np.array(0.0), np.array(min(2.0, _DROP / max(kappa, 1e-300))), 2 * count)
        h, a = (g.ravel() for g in np.meshgrid(depth, around, indexing="ij"))
        flat = np.sqrt(h * (2 - h))
        height, across = 1 - h[:, None], np.stack([flat * np.cos(a), flat * np.sin(a)], -1)
        weights = np.repeat(w, len(around)) * np.exp(-kappa * h)
    axis = natural / size if size > 0 else np.eye(law.dim)[0]
    # the axis and an orthonormal basis of its complement
    frame = np.linalg.svd(axis[None], full_matrices=True)[2]
    points = radius * (height * axis + across @ frame[1:])
    return Empirical(jnp.asarray(points, law.dtype), weights)


def scrambled(law: AbstractMeasure, key: KeyInput | None, exponent: int) -> list[Empirical]:
    """Independent quasi-random representatives of the law."""
    return [representative(k, law, exponent) for k in replicate_keys(law, key)]


def replicate_keys(law: AbstractMeasure, key: KeyInput | None) -> Key[Array, " replicates"]:
    """One key for each representative of the law, or an error that asks for a key."""
    if key is None:
        raise ValueError(
            _checks.message(
                f"averaging over a {type(law).__name__} in dimension {law.dim} uses randomised points and needs a key",
                "key=None",
                "pass key=jax.random.key(0)",
            )
        )
    return jax.random.split(_checks.key(key), REPLICATES)


def two_keys(key: KeyInput | None) -> tuple[KeyInput | None, KeyInput | None]:
    """One key for the tokens and one for the queries: with a common one their points would coincide."""
    if key is None:
        return None, None
    first, second = jax.random.split(_checks.key(key))
    return first, second


def averages(
    law: AbstractMeasure,
    factor: np.ndarray,
    features: list[Feature],
    log_length: float,
    key: KeyInput | None,
    level: int = 0,
) -> list[Average]:
    """Rules for E[q(z) h(|factor z|^2)] under the law of z: one where the rule is deterministic,
    otherwise one for each scrambling.
    """
    if isinstance(law, Gaussian):
        mean, cov = (np.asarray(a, np.float64) for a in (law.centre, law.covariance))
        return [gaussian_average(mean, cov, factor, features, log_length, level)]
    atoms = finite_support(law)
    if atoms is not None:
        return [_average_of_points(atoms, atoms, factor, features)]
    points, fewer = quadrature(law, level), quadrature(law, level - 1)
    if points is not None and fewer is not None:
        return [_average_of_points(points, fewer, factor, features)]
    if isinstance(law, Mixture):
        parts = [
            averages(part, factor, features, log_length, key, level) for part in law.components
        ]
        count = max(map(len, parts))
        repeated = [part * count if len(part) == 1 else part for part in parts]
        return [
            _mix(np.asarray(law.weights, np.float64), rules)
            for rules in zip(*repeated, strict=True)
        ]
    rules = []
    for points in scrambled(law, key, _EXPONENT):
        rule = _average_of_points(points, points, factor, features)
        rules.append(rule._replace(points=_weighted(points, factor, features)))
    return rules


def _mix(weights: np.ndarray, rules: tuple[Average, ...]) -> Average:
    return Average(
        np.concatenate([rule.variances for rule in rules]),
        np.concatenate([w * rule.weights for w, rule in zip(weights, rules, strict=True)], axis=1),
        np.concatenate([w * rule.coarse for w, rule in zip(weights, rules, strict=True)], axis=1),
        max(rule.gap for rule in rules),
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
    values = np.stack(
        [
            np.prod([np.ones(len(z)), *(np.sum((z @ Q) * z, axis=1) for Q in f.factors)], axis=0)
            for f in features
        ]
    )
    return S, weights * values * inverse_powers(S, features)


def _interpolated(
    S: np.ndarray,
    weighted: np.ndarray,
    few_S: np.ndarray,
    few_weighted: np.ndarray,
    geometric: bool,
) -> Average:
    """Many atoms as few: h is replaced by its Chebyshev interpolant in x = sqrt(1 + S), whose values the weights multiply.

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
