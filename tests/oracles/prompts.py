"""Prompts of L tokens in NumPy: all of them by enumeration, or many by simulation."""

import itertools

import mpmath
import numpy as np

from .attention import softmax_weights


def _one_prompt(tokens: np.ndarray, U: np.ndarray, V: np.ndarray, z: np.ndarray) -> tuple:
    """(T, dT/dU, sum p x) of one prompt of equally weighted tokens."""
    p = softmax_weights(tokens, np.full(len(tokens), 1 / len(tokens)), U @ z)
    mean = p @ tokens
    cov = (p[:, None] * (tokens - mean)).T @ (tokens - mean)
    return V @ mean, np.einsum("aj,k->ajk", V @ cov, z), mean


def enumerate_prompts(*, atoms, weights, U, V, z, L) -> dict:
    """Exact expectations over all len(atoms)^L prompts drawn iid from a discrete law."""
    weights = np.asarray(weights) / np.sum(weights)
    p = softmax_weights(atoms, weights, U @ z)
    x_inf = p @ atoms
    cov_inf = (p[:, None] * (atoms - x_inf)).T @ (atoms - x_inf)
    T_inf, dU_inf = V @ x_inf, np.einsum("aj,k->ajk", V @ cov_inf, z)
    total = {"mean": 0.0, "second": 0.0, "output": 0.0, "U": 0.0, "V": 0.0}
    for chosen in itertools.product(range(len(atoms)), repeat=L):
        weight = np.prod(weights[list(chosen)])
        T, dU, mean = _one_prompt(atoms[list(chosen)], U, V, z)
        total["mean"] += weight * T
        total["second"] += weight * np.outer(T, T)
        total["output"] += weight * np.sum((T - T_inf) ** 2)
        total["U"] += weight * np.sum((dU - dU_inf) ** 2)
        total["V"] += weight * len(V) * np.sum((mean - x_inf) ** 2)
    return total


def simulate_gaussian_prompts(*, mean, factor, U, V, z, L, n, seed) -> dict:
    """N prompts of L tokens m + B g: per-prompt values of T, T T', and the three squared errors
    against the limit.
    """
    rng = np.random.default_rng(seed)
    cov = factor @ factor.T
    T_inf = V @ mean + V @ cov @ U @ z
    dU_inf = np.einsum("aj,k->ajk", V @ cov, z)
    x_inf = mean + cov @ U @ z
    tokens = mean + rng.normal(size=(n, L, factor.shape[1])) @ factor.T
    scores = tokens @ U @ z
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    average = np.einsum("nl,nld->nd", p, tokens)
    gaps = tokens - average[:, None]
    covs = np.einsum("nl,nli,nlj->nij", p, gaps, gaps)
    T, dU = average @ V.T, np.einsum("aj,nji,k->naik", V, covs, z)
    return {
        "mean": T,
        "second": T[:, :, None] * T[:, None, :],
        "output": np.sum((T - T_inf) ** 2, axis=1),
        "U": np.sum((dU - dU_inf) ** 2, axis=(1, 2, 3)),
        "V": len(V) * np.sum((average - x_inf) ** 2, axis=1),
    }


def enumerate_in_digits(*, atoms, weights, U, V, z, L, digits=120) -> dict:
    """`enumerate_prompts` in mpmath, without "second": for errors tiny beside the tokens."""
    with mpmath.workdps(digits):
        X = [mpmath.matrix(row) for row in np.asarray(atoms, float).tolist()]
        w = [mpmath.mpf(float(value)) for value in weights]
        U, V, z = (mpmath.matrix(np.asarray(a, float).tolist()) for a in (U, V, z))
        tilt = U * z
        terms = [mpmath.exp((x.T * tilt)[0]) for x in X]

        def attend(p: list) -> tuple:
            """(mean, V Cov) under unnormalised weights of the atoms."""
            total = mpmath.fsum(p)
            mean = sum((q / total * x for q, x in zip(p, X, strict=True)), 0 * X[0])
            gaps = [x - mean for x in X]
            cov = sum(q / total * g * g.T for q, g in zip(p, gaps, strict=True))
            return mean, V * cov

        def square(matrix):
            return mpmath.fsum(entry**2 for entry in matrix)

        limit, limit_cov = attend([a * b for a, b in zip(w, terms, strict=True)])
        found = {"mean": 0 * (V * limit), "output": 0, "U": 0, "V": 0}
        for chosen in itertools.combinations_with_replacement(range(len(X)), L):
            counts = [chosen.count(a) for a in range(len(X))]
            chance = mpmath.factorial(L) / sum(w) ** L
            for count, weight in zip(counts, w, strict=True):
                chance *= weight**count / mpmath.factorial(count)
            if not chance:
                continue
            mean, cov = attend([count * term for count, term in zip(counts, terms, strict=True)])
            found["mean"] += chance * (V * mean)
            found["output"] += chance * square(V * (mean - limit))
            found["U"] += chance * square(z) * square(cov - limit_cov)
            found["V"] += chance * V.rows * square(mean - limit)
        return {
            "mean": np.array([float(entry) for entry in found.pop("mean")]),
            **{name: float(value) for name, value in found.items()},
        }
