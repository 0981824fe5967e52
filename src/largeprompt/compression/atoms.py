"""Rules that choose the tokens to keep, and queries between those at hand."""

import numpy as np

from .compression_problem import Problem

_MOST_SPREAD = 512  # queries, with those between
_TURNS = 3  # partners of each query


def chosen(problem: Problem, atoms: int, choose: str) -> np.ndarray:
    """Indices of the atoms: those to keep, and the tokens of largest attention mass or leverage.

    Leverage, E[p_i^2 |v_i - T|^2], is what the output loses, to first order, without the token.
    """
    if choose == "attention mass":
        return top_tokens(problem, problem.attention.mean_weights(), atoms)
    return top_tokens(problem, problem.attention.leverages(problem.values), atoms)


def top_tokens(problem: Problem, score: np.ndarray, atoms: int) -> np.ndarray:
    """Indices of the tokens to keep and of the highest scores; tokens of weight 0 come last.

    They are in order; among equal scores the first ones are taken.
    """
    if atoms == 0:
        return np.arange(0)
    score = np.where(problem.log_masses > -np.inf, score, -np.inf)
    score[problem.keep] = np.inf
    lowest = np.partition(score, len(score) - atoms)[len(score) - atoms]
    above = np.flatnonzero(score > lowest)
    equal = np.flatnonzero(score == lowest)[: atoms - len(above)]
    return np.sort(np.concatenate([above, equal]))


def spread(queries: np.ndarray) -> np.ndarray:
    """The queries, and sums of two deviations from the mean over sqrt(2): same mean and covariance.

    Few queries are a rough sample of their law; those between smooth it.
    """
    q, mean = len(queries), queries.mean(axis=0)
    turns = min(_TURNS, _MOST_SPREAD // max(q, 1) - 1)
    if q < 8 or turns < 1:
        return queries
    steps = queries - mean
    shifts = [1 + (turn + 1) * q // (turns + 1) for turn in range(turns)]
    pairs = [mean + (steps + np.roll(steps, shift, axis=0)) / 2**0.5 for shift in shifts]
    return np.concatenate([queries, *pairs])
