"""Errors of very short and very long prompts in plain NumPy, to test the package's error curves.

Short prompts of finitely many atoms are enumerated. For long prompts the delta method gives the
limit of L times the mean squared error, from the squared influence of one token.
"""

import itertools
from typing import Literal, NamedTuple

import numpy as np

ErrorOf = Literal["output", "gradient_U", "gradient_V"]


class Atoms(NamedTuple):
    """A law of finitely many points."""

    points: np.ndarray
    weights: np.ndarray


def gauss_hermite(nodes: int, d: int) -> Atoms:
    """Gauss-Hermite points and weights of N(0, I), which are also a 1-sub-Gaussian law.

    Sums over them are exact for polynomials of degree 2 nodes - 1 in each coordinate.
    """
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.stack(np.meshgrid(*[places] * d, indexing="ij"), -1).reshape(-1, d)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * d, indexing="ij"), -1).reshape(-1, d), 1)
    return Atoms(points, mass / mass.sum())


def _squared(
    quantity: ErrorOf, y: np.ndarray, C: np.ndarray, V: np.ndarray, z: np.ndarray
) -> np.ndarray:
    """Squared norm of the quantity for a change `y` of the mean and `C` of the covariance.

    The output and the V-gradient depend on `y` only, the U-gradient on `C` only.
    """
    if quantity == "output":
        return np.sum((y @ V.T) ** 2, -1)
    if quantity == "gradient_V":
        return len(V) * np.sum(y**2, -1)
    return np.sum((V @ C) ** 2, (-1, -2)) * np.sum(z**2, -1)


def _outer(y: np.ndarray) -> np.ndarray:
    return y[..., :, None] * y[..., None, :]


def _tilted(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of points (..., n, d) under normalised weights (..., n)."""
    mean = np.einsum("...n,...nd->...d", weights, x)
    centred = x - mean[..., None, :]
    return mean, np.einsum("...n,...nd,...ne->...de", weights, centred, centred)


def enumerated_error(
    quantity: ErrorOf, U: np.ndarray, V: np.ndarray, law: Atoms, queries: Atoms, L: int
) -> float:
    """Mean squared error of `quantity`, by enumeration of all prompts of L atoms."""
    chosen = np.array(list(itertools.product(range(len(law.points)), repeat=L)))
    x, mass = law.points[chosen], np.prod(law.weights[chosen], axis=1)
    total = 0.0
    for z, weight in zip(*queries, strict=True):
        scores = x @ U @ z
        terms = np.exp(scores - scores.max(1, keepdims=True))
        mean, C = _tilted(x, terms / terms.sum(1, keepdims=True))
        limit = law.weights * np.exp(law.points @ U @ z)
        m, full = _tilted(law.points, limit / limit.sum())
        total += weight * mass @ _squared(quantity, mean - m, C - full, V, z)
    return float(total)


def limit_of_atoms(
    quantity: ErrorOf, U: np.ndarray, V: np.ndarray, law: Atoms, queries: Atoms
) -> float:
    """Limit of L times the mean squared error for a discrete law, by the delta method.

    The influence of a token is w(x) (x - m_u), where w is the density of the tilted law.
    """
    total = 0.0
    for z, weight in zip(*queries, strict=True):
        density = np.exp(law.points @ U @ z)
        density = density / (law.weights @ density)
        m, C = _tilted(law.points, law.weights * density)
        y = law.points - m
        found = _squared(quantity, y, _outer(y) - C, V, z)
        total += weight * law.weights @ (density**2 * found)
    return float(total)


def limit_of_gaussian(quantity: ErrorOf, U: np.ndarray, V: np.ndarray, G: np.ndarray) -> float:
    """The same limit for tokens N(0, G) and queries N(0, I), |U'GU| < 1/2.

    Under the squared density, of mass e^S with S = u'Gu, x - m_u is N(Gu, G).
    """
    d = len(G)
    inverse = np.linalg.inv(np.eye(d) - 2 * U.T @ G @ U)  # e^S makes this the covariance of queries
    outer, inner = gauss_hermite(5, d), gauss_hermite(4, d)
    total = 0.0
    for z, weight in zip(outer.points @ np.linalg.cholesky(inverse).T, outer.weights, strict=True):
        y = G @ U @ z + inner.points @ np.linalg.cholesky(G).T
        total += weight * inner.weights @ _squared(quantity, y, _outer(y) - G, V, z)
    return float(np.sqrt(np.linalg.det(inverse)) * total)
