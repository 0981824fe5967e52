"""The Gaussian for all tokens but the atoms: expansion at the mean query, then least squares."""

from typing import NamedTuple

import numpy as np

from .compression_problem import Problem
from .draft import Draft
from .gaussian_tail import best_axes, factor_of, low_rank, query_metric
from .token_blocks import tilted_moments

_PRIOR = 0.3  # queries that the expansion at the mean query counts for, for each coefficient
_LOWEST_CURVATURE = 0.01
_LITTLE = 0.5  # weight of the tail below which its sums are not those of all tokens less the atoms


def with_tail(
    problem: Problem, index: np.ndarray, rank: int | None, literal: bool = False
) -> Draft:
    """Atoms of these indices, and a Gaussian for the others (None: dropped)."""
    weightless = problem.log_weights is not None and np.all(
        np.delete(problem.log_masses, index) == -np.inf
    )
    if rank is None or len(index) == problem.n or weightless:  # nothing else has any weight
        return problem.kept(index)
    keys, queries = problem.keys, problem.queries.astype(np.float64)
    tilt = np.zeros(keys.shape[1]) if literal else queries.mean(axis=0)
    steps = queries - tilt
    log_mass, mean_key, mean_value, key_cov, cross = _moments_of_others(problem, index, tilt)
    root, inverse = query_metric(steps, keys.shape[1])
    key_cov, cross = root.T @ key_cov @ root, root.T @ cross
    seen = _SeenTail.of(problem, index)
    if literal:
        factor = low_rank(key_cov, cross, seen.gap, rank, inverse)
        mean = np.concatenate([mean_key, mean_value])
        return problem.kept(index, problem.tail(tilt, log_mass, mean, factor))
    axes = best_axes(key_cov, cross, seen.gap, rank)
    directions, curvature, slopes = inverse @ axes, axes.T @ key_cov @ axes, cross.T @ axes
    # least squares over the queries, shrunk towards the expansion
    along = steps @ directions
    shift, turn = _shrunk(along, seen.value - mean_value - along @ slopes.T, seen.value_weight)
    square = np.einsum("qi,ij,qj->q", along, curvature, along) / 2
    scale = max(float(square.std()), 1e-300)
    features = np.column_stack([along, square / scale])
    gap = seen.log_mass - log_mass - steps @ mean_key - square
    lift, bend = _shrunk(features, gap[:, None], seen.mass_weight)
    bent = max(1 + float(bend[-1, 0]) / scale, _LOWEST_CURVATURE) if square.std() > 0 else 1.0
    mean_key = mean_key + directions @ bend[:-1, 0]
    factor = factor_of(curvature * bent, slopes + turn.T, directions)
    mean = np.concatenate([mean_key, mean_value + shift])
    return problem.kept(index, problem.tail(tilt, log_mass + float(lift[0]), mean, factor))


def _moments_of_others(
    problem: Problem, index: np.ndarray, tilt: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log mass, mean key, mean value, Cov(k, k), Cov(k, v) of all tokens but these, at a tilt."""
    others = problem.log_masses.copy()
    others[index] = -np.inf
    return tilted_moments(problem.keys, problem.values, others, tilt.astype(others.dtype))


class _SeenTail(NamedTuple):
    """The tokens of the tail as the queries see them."""

    log_mass: np.ndarray  # (q,)
    value: np.ndarray  # (q, v) their own output
    value_weight: np.ndarray  # (q,) squared derivative of the output in `value`
    mass_weight: np.ndarray  # (q,) squared derivative of the output in `log_mass`
    gap: float

    @classmethod
    def of(cls, problem: Problem, atoms: np.ndarray) -> "_SeenTail":
        """The tokens that are not atoms."""
        attention = problem.attention
        p = attention.weights(atoms).astype(np.float64)
        of_atoms = p @ problem.values[atoms]
        share = 1 - p.sum(axis=1)
        sums = attention.outputs - of_atoms
        log_normaliser = attention.log_normaliser
        few = share < _LITTLE  # the difference has no digits left
        if np.any(few):
            rest = np.delete(np.arange(problem.n), atoms)
            p = attention.restricted(np.flatnonzero(few)).weights(rest)
            share[few] = np.maximum(p.sum(axis=1, dtype=np.float64), 1e-300)
            sums[few] = p @ problem.values[rest]
        value = sums / share[:, None]
        # the output less that of the tail: (1 - share) (output of the atoms - value)
        distance = np.sum((of_atoms + sums - value) ** 2, axis=1)
        weight, mass = share**2, share**2 * distance
        total = max(float(weight.sum()), 1e-300)
        return cls(log_normaliser + np.log(share), value, weight, mass, float(mass.sum()) / total)


def _shrunk(
    features: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Constant and slopes of a weighted ridge regression, few against many queries."""
    design = np.column_stack([np.ones(len(features)), features])
    weights = weights / max(float(weights.mean()), 1e-300)
    size = design.shape[1]
    gram = design.T @ (weights[:, None] * design) + _PRIOR * size * np.eye(size)
    found = np.linalg.solve(gram, design.T @ (weights[:, None] * targets))
    return found[0], found[1:]
