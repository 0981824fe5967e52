"""The law of the query: exact or spectral atoms where it has them, scrambled points otherwise."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

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
from ..prompts.quasi import representative, transport
from ._quadratic_form import Average, Feature, gaussian_average, inverse_powers

REPLICATES = 8  # independent scramblings
_EXPONENT = 12  # 2^12 scrambled points each
_MOST_SIGNS = 10  # coordinates of a Rademacher law that are enumerated
_CUBE = {1: 64, 2: 32, 3: 16}  # Gauss points an axis, for boxes and spheres of few dimensions
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


def few_points(law: AbstractMeasure) -> Empirical | None:
    """The law as finitely many weighted points, exactly or to spectral accuracy for smooth functions, or None."""
    exact = finite_support(law)
    if exact is not None:
        return exact
    match law:
        case Uniform() if law.dim in _CUBE:
            x, w = np.polynomial.legendre.leggauss(_CUBE[law.dim])
            grid = np.stack(np.meshgrid(*[(x + 1) / 2] * law.dim, indexing="ij"), -1)
            weights = np.prod(np.stack(np.meshgrid(*[w / 2] * law.dim, indexing="ij"), -1), -1)
            points = transport(law, jnp.asarray(grid.reshape(-1, law.dim), law.dtype))
            return Empirical(points, weights.ravel())
        case Sphere() if law.dim <= 3:
            return _sphere(law)
        case AffineImage():
            inner = few_points(law.measure)
            return None if inner is None else _mapped(inner, law)
    return None


def _mapped(points: Empirical, law: AffineImage) -> Empirical:
    moved = jnp.matmul(points.points, law.A.T, precision="highest") + law.b
    return Empirical(moved, points.weights)


def _sphere(law: Sphere) -> Empirical:
    """Trapezoidal in the angle, Gauss in the height: spectral on the circle and on the sphere."""
    angle = 2 * np.pi * np.arange(2 * _CUBE[2]) / (2 * _CUBE[2])
    if law.dim == 1:
        points, weights = np.array([[-1.0], [1.0]]), np.ones(2)
    elif law.dim == 2:
        points, weights = np.stack([np.cos(angle), np.sin(angle)], -1), np.ones(len(angle))
    else:
        height, w = np.polynomial.legendre.leggauss(_CUBE[2])
        h, a = (g.ravel() for g in np.meshgrid(height, angle, indexing="ij"))
        radius = np.sqrt(1 - h**2)
        points = np.stack([radius * np.cos(a), radius * np.sin(a), h], -1)
        weights = np.repeat(w, len(angle))
    points = float(law.radius) * points
    tilt = points @ np.asarray(law.natural, np.float64)
    return Empirical(jnp.asarray(points, law.dtype), weights * np.exp(tilt - tilt.max()))


def scrambled(law: AbstractMeasure, key: KeyInput | None, exponent: int) -> list[Empirical]:
    """Independent quasi-random representatives of the law."""
    if key is None:
        raise ValueError(
            _checks.message(
                f"averaging over a {type(law).__name__} in dimension {law.dim} uses randomised points and needs a key",
                "key=None",
                "pass key=jax.random.key(0)",
            )
        )
    return [
        representative(k, law, exponent) for k in jax.random.split(_checks.key(key), REPLICATES)
    ]


def two_keys(key: KeyInput | None) -> tuple[KeyInput | None, KeyInput | None]:
    """One key for the tokens and one for the queries: with a common one their points would coincide."""
    if key is None:
        return None, None
    first, second = jax.random.split(_checks.key(key))
    return first, second


def averages(
    law: AbstractMeasure,
    M: np.ndarray,
    features: list[Feature],
    log_length: float,
    key: KeyInput | None,
) -> list[Average]:
    """Rules for E[q(z) h(z'Mz)] under the law of z: one where the rule is deterministic, otherwise one for each scrambling."""
    if isinstance(law, Gaussian):
        mean, cov = (np.asarray(a, np.float64) for a in (law.centre, law.covariance))
        return [gaussian_average(mean, cov, M, features, log_length)]
    points = few_points(law)
    if points is not None:
        return [_average_of_points(points, M, features)]
    if isinstance(law, Mixture):
        parts = [averages(part, M, features, log_length, key) for part in law.components]
        count = max(map(len, parts))
        spread = [part * count if len(part) == 1 else part for part in parts]
        return [
            _mix(np.asarray(law.weights, np.float64), rules) for rules in zip(*spread, strict=True)
        ]
    return [_average_of_points(points, M, features) for points in scrambled(law, key, _EXPONENT)]


def _mix(weights: np.ndarray, rules: tuple[Average, ...]) -> Average:
    return Average(
        np.concatenate([rule.variances for rule in rules]),
        np.concatenate([w * rule.weights for w, rule in zip(weights, rules, strict=True)], axis=1),
        np.concatenate([w * rule.coarse for w, rule in zip(weights, rules, strict=True)], axis=1),
    )


def _average_of_points(law: Empirical, M: np.ndarray, features: list[Feature]) -> Average:
    z, weights = np.asarray(law.points, np.float64), np.asarray(law.weights, np.float64)
    weights = weights / weights.sum()
    S = np.maximum(np.sum((z @ M) * z, axis=1), 0.0)
    values = np.stack(
        [
            np.prod([np.ones(len(z)), *(np.sum((z @ Q) * z, axis=1) for Q in f.factors)], axis=0)
            for f in features
        ]
    )
    weighted = weights * values * inverse_powers(S, features)
    if len(z) <= _DIRECT:
        return Average(S, weighted, weighted)
    return _interpolated(S, weighted)


def _interpolated(S: np.ndarray, weighted: np.ndarray) -> Average:
    """Many atoms as few: h is replaced by its Chebyshev interpolant in x = sqrt(1 + S), whose values the weights multiply.

    The rule with every other Chebyshev point is the one of half the degree.
    """
    x = np.sqrt(1 + S)
    low, high = x.min(), x.max()
    if high - low < 1e-12 * high:
        total = weighted.sum(axis=1, keepdims=True)
        return Average(np.array([S.mean()]), total, total)
    # the functions of interest change over distances of about 1/4 in x
    degree = 2 ** math.ceil(math.log2(min(max(32 * (high - low), 16), 512)))
    position = np.clip((2 * x - low - high) / (high - low), -1, 1)
    moments = np.zeros((len(weighted), degree + 1))
    for start in range(0, len(x), 4096):
        block = slice(start, start + 4096)
        moments += weighted[:, block] @ np.polynomial.chebyshev.chebvander(position[block], degree)

    def weights(n: int) -> np.ndarray:
        k = np.arange(n + 1)
        halves = np.where((k == 0) | (k == n), 0.5, 1.0)
        modes = np.cos(np.pi * np.outer(k, k) / n) * halves[:, None] * halves
        return 2 / n * moments[:, : n + 1] @ modes

    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * np.arange(degree + 1) / degree)
    coarse = np.zeros_like(moments)
    coarse[:, ::2] = weights(degree // 2)
    return Average(np.maximum(nodes**2 - 1, 0.0), weights(degree), coarse)
