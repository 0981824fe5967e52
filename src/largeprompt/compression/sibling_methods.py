"""Compressions of other papers, written from their descriptions, with the interface of `compress`.

Each takes a problem and a number of tokens.
"""

from collections.abc import Callable

import jax
import numpy as np

from .. import _checks
from .._typing import KeyInput
from .atoms import chosen, top_tokens
from .compression_problem import Problem
from .draft import Draft
from .tail_fit import with_tail

_SINKS = 4  # first tokens that StreamingLLM keeps
_ROUNDS = 20  # of k-means


def _most_attended(problem: Problem, atoms: int) -> Draft:
    """Tokens of the largest mean attention, as SnapKV and H2O choose them."""
    return problem.kept(chosen(problem, atoms, "attention mass"))


def _sinks_and_window(problem: Problem, atoms: int) -> Draft:
    """The first 4 tokens and the last ones, as StreamingLLM (Xiao et al. 2024)."""
    score = np.arange(problem.n, dtype=float)
    score[: min(_SINKS, atoms)] = problem.n
    return problem.kept(top_tokens(problem, score, atoms))


def _expected_attention(problem: Problem, atoms: int) -> Draft:
    """Largest E[e^{<k, z>}] |v| for Gaussian queries (Expected Attention, arXiv 2510.00636)."""
    mean = problem.queries.mean(axis=0)
    steps = problem.queries - mean
    half = np.sum((problem.keys @ steps.T) ** 2, axis=1) / (2 * len(steps))
    lengths = np.linalg.norm(problem.values, axis=1)
    with np.errstate(divide="ignore"):
        score = problem.keys @ mean + half + problem.log_masses + np.log(lengths)
    return problem.kept(top_tokens(problem, score, atoms))


def _centroids(problem: Problem, atoms: int) -> Draft:
    """Centroids of the keys by k-means from evenly spaced tokens, mean values, log counts.

    Tokens to keep are left out of the clusters.
    """
    keep, whole = problem.keep, problem
    rest = np.setdiff1d(np.flatnonzero(problem.log_masses > -np.inf), keep)
    problem = problem._replace(
        keys=problem.keys[rest], values=problem.values[rest], log_masses=problem.log_masses[rest]
    )
    atoms = min(atoms - len(keep), len(rest))
    if not atoms:
        return whole.kept(keep)
    masses = np.exp(problem.log_masses - problem.log_masses.max())
    centres = problem.keys[np.linspace(0, problem.n - 1, atoms).astype(int)].copy()
    lengths = np.sum(problem.keys**2, axis=1)[:, None]
    nearest, counts = np.zeros(problem.n, int), np.ones(atoms)
    used = counts > 0
    for _ in range(_ROUNDS):
        squares = lengths - 2 * problem.keys @ centres.T + np.sum(centres**2, axis=1)
        before, nearest = nearest, np.argmin(squares, axis=1)
        counts = np.bincount(nearest, masses, minlength=atoms)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, masses[:, None] * problem.keys)
        used = counts > 0
        centres[used] = sums[used] / counts[used, None]
        empty = np.flatnonzero(~used)
        if len(empty):  # restart them at the tokens farthest from all centres
            farthest = np.argsort(-squares.min(axis=1), kind="stable")
            centres[empty] = problem.keys[farthest[: len(empty)]]
        elif np.array_equal(before, nearest):
            break
    values = np.zeros((atoms, problem.values.shape[1]))
    np.add.at(values, nearest, masses[:, None] * problem.values)
    logs = np.log(counts[used]) + problem.log_masses.max()
    return problem.draft(
        np.concatenate([whole.keys[keep], centres[used]]),
        np.concatenate([whole.values[keep], values[used] / counts[used, None]]),
        np.concatenate([whole.log_masses[keep], logs]),
    )


def _attention_matching(problem: Problem, atoms: int) -> Draft:
    """The most attended keys, log weights by non-negative least squares on the normalisers, values
    by least squares on the outputs (Attention Matching, arXiv 2602.16284).
    """
    from scipy.optimize import lsq_linear, nnls
    from scipy.special import softmax

    p = problem.attention.weights()
    index = top_tokens(problem, p.mean(axis=0), atoms)
    part = p[:, index]
    try:
        factors, _ = nnls(part, np.ones(len(part)))
    except RuntimeError:  # active sets that go round in circles
        factors = lsq_linear(part, np.ones(len(part)), bounds=(0.0, np.inf)).x
    used = factors > 0
    used = used if np.any(used) else np.ones_like(used)
    index, factors = index[used], np.where(used, factors, 1.0)[used]
    logs = problem.log_masses[index] + np.log(factors)
    # from scores, not from `part`: these weights may all vanish
    scores = problem.queries @ problem.keys[index].T + logs
    terms = softmax(scores, axis=1)
    # least squares around the values as they are, so that few queries do not move them far
    wanted = problem.attention.outputs - terms @ problem.values[index]
    gram = terms.T @ terms
    ridge = 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram))
    values = problem.values[index] + np.linalg.solve(gram + ridge, terms.T @ wanted)
    return problem.draft(problem.keys[index], values, logs)


def moments(problem: Problem, atoms: int, rank: int | None) -> Draft:
    """The most attended tokens, and a Gaussian with the moments of the others (MomentKV)."""
    index = chosen(problem, atoms, "attention mass")
    return with_tail(problem, index, rank, literal=True)


def random_tokens(problem: Problem, atoms: int, key: KeyInput | None) -> Draft:
    """Tokens drawn without replacement, by the key."""
    order = np.asarray(jax.random.permutation(_checks.key(key), problem.n))
    score = np.empty(problem.n)
    score[order] = np.arange(problem.n)
    return problem.kept(top_tokens(problem, score, atoms))


SUBSETS: dict[str, Callable[[Problem, int], Draft]] = {
    "most attended": _most_attended,
    "sinks and window": _sinks_and_window,
    "expected attention": _expected_attention,
    "centroids": _centroids,
    "attention matching": _attention_matching,
}
