"""Measures on which every property is tested; a new entry inherits all tests of this folder."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

import largeprompt as lp

from ..oracles import measures as oracle


class Triangular(lp.AbstractAutodiffMeasure):
    """A custom measure with log_mgf and sample only: the sum of two uniforms on [-a/2, a/2]."""

    dim: int = 2
    a: float = eqx.field(static=True, default=1.6)

    def log_mgf(self, u):
        return 2 * lp.Uniform(self.dim, self.a / 2).log_mgf(u)

    def sample(self, key, n):
        draws = jax.random.uniform(key, (2, n, self.dim), minval=-self.a / 2, maxval=self.a / 2)
        return lp.Empirical(draws[0] + draws[1])


class Case(NamedTuple):
    """A measure, its cumulant function in mpmath, and what it does not support."""

    make: Callable[[], lp.AbstractMeasure]
    psi: oracle.Psi
    samples: bool = True
    has_proxy: bool = True
    small_increments: bool = True  # keeps relative accuracy in psi for tiny u


MEAN = np.array([0.7, -1.2, 0.4])
COV = np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])
FACTOR = np.array([[1.0], [-0.5], [2.0]])
POINTS = np.array([[0.3, -1.0], [1.5, 0.2], [-0.8, 0.9], [0.1, 2.0], [40.0, 40.0]])
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.25, 0.0])
A = np.array([[1.0, 0.5], [-0.3, 2.0], [0.0, 1.1]])
B = np.array([0.2, -0.4, 1.0])
AT = np.array([0.6, -1.1])
AT3 = np.array([0.6, -1.1, 0.8])

CASES: dict[str, Case] = {
    "dirac": Case(lambda: lp.Dirac(MEAN), oracle.dirac(MEAN)),
    "gaussian": Case(lambda: lp.Gaussian(MEAN, COV), oracle.gaussian(MEAN, COV)),
    "gaussian-centred-1d": Case(
        lambda: lp.Gaussian([0.0], [[1.7]]), oracle.gaussian([0.0], [[1.7]])
    ),
    "gaussian-singular": Case(
        lambda: lp.Gaussian(MEAN, FACTOR @ FACTOR.T), oracle.gaussian(MEAN, FACTOR @ FACTOR.T)
    ),
    "gaussian-rank-0": Case(
        lambda: lp.Gaussian(MEAN, np.zeros((3, 3))), oracle.gaussian(MEAN, np.zeros((3, 3)))
    ),
    "empirical": Case(lambda: lp.Empirical(POINTS[:4]), oracle.discrete(POINTS[:4], [1, 1, 1, 1])),
    "empirical-weighted": Case(
        lambda: lp.Empirical(POINTS, WEIGHTS), oracle.discrete(POINTS[:4], WEIGHTS[:4])
    ),
    "empirical-one-token": Case(lambda: lp.Empirical(POINTS[:1]), oracle.discrete(POINTS[:1], [1])),
    "key-values": Case(
        lambda: lp.KeyValues(POINTS[:, :1], POINTS[:, 1:], [0.0, 1.0, -1.0, 2.0, -np.inf]),
        oracle.discrete(POINTS[:4], np.exp([0.0, 1.0, -1.0, 2.0])),
    ),
    "rademacher": Case(lambda: lp.Rademacher(2), oracle.rademacher()),
    "rademacher-tilted": Case(
        lambda: lp.Rademacher(2).tilt(AT), oracle.tilted(oracle.rademacher(), AT)
    ),
    "uniform": Case(lambda: lp.Uniform(2, 1.4), oracle.uniform(1.4)),
    "uniform-tilted": Case(
        lambda: lp.Uniform(2, 1.4).tilt(AT), oracle.tilted(oracle.uniform(1.4), AT)
    ),
    "sphere-1": Case(lambda: lp.Sphere(1, 1.3), oracle.sphere(1, 1.3)),
    "sphere-2": Case(lambda: lp.Sphere(2, 0.7), oracle.sphere(2, 0.7)),
    "sphere-3": Case(lambda: lp.Sphere(3, 2.0), oracle.sphere(3, 2.0)),
    "sphere-5": Case(lambda: lp.Sphere(5, 1.0), oracle.sphere(5, 1.0)),
    "von-mises-fisher": Case(
        lambda: lp.Sphere(3, 2.0).tilt(AT3), oracle.tilted(oracle.sphere(3, 2.0), AT3)
    ),
    "mixture": Case(
        lambda: lp.Mixture(
            [1.0, 3.0],
            [lp.Gaussian(MEAN[:2], COV[:2, :2]), lp.Rademacher(2).affine(np.eye(2), AT)],
        ),
        oracle.mixture(
            [1.0, 3.0],
            [
                oracle.gaussian(MEAN[:2], COV[:2, :2]),
                oracle.affine(oracle.rademacher(), np.eye(2), AT),
            ],
        ),
    ),
    "affine": Case(lambda: lp.Rademacher(2).affine(A, B), oracle.affine(oracle.rademacher(), A, B)),
    "affine-of-affine": Case(
        lambda: lp.Uniform(2, 1.4).affine(A, B).affine(A.T),
        oracle.affine(oracle.affine(oracle.uniform(1.4), A, B), A.T, np.zeros(2)),
    ),
    "affine-empirical": Case(
        lambda: lp.Empirical(POINTS, WEIGHTS).affine(A, B),
        oracle.affine(oracle.discrete(POINTS[:4], WEIGHTS[:4]), A, B),
    ),
    "sum": Case(
        lambda: lp.Uniform(3, 1.4) + lp.Gaussian(MEAN, COV),
        oracle.independent_sum(oracle.uniform(1.4), oracle.gaussian(MEAN, COV)),
    ),
    "custom": Case(
        Triangular,
        oracle.independent_sum(oracle.uniform(0.8), oracle.uniform(0.8)),
        has_proxy=False,
    ),
    "custom-tilted": Case(
        lambda: Triangular().tilt(AT),
        oracle.tilted(oracle.independent_sum(oracle.uniform(0.8), oracle.uniform(0.8)), AT),
        samples=False,
        has_proxy=False,
        small_increments=False,
    ),
}

DIRECTIONS = np.array([0.8, -0.45, 0.3, 0.1, -0.7])


def direction(d: int) -> np.ndarray:
    """A fixed asymmetric unit vector."""
    return DIRECTIONS[:d] / np.linalg.norm(DIRECTIONS[:d])
