"""Rules that choose the tokens to keep, and queries between those at hand.

A token's part of the output is c_i(z) = p_i(z) (v_i - T(z)). A Gaussian for the other tokens says
s(z) (a + B w), for their share s of the attention and steps w of the query along few directions.
The residual r_i of c_i, as a function of the query, after least squares over such functions is what
an atom is needed for.
"""

import numpy as np

from .blocked_softmax import BlockedSoftmax
from .compression_problem import Problem
from .tail_fit import with_tail
from .token_blocks import parts

_MOST_SPREAD = 512  # queries, with those between
_TURNS = 3  # partners of each query
_RIDGE = 1e-3
_FEW_IN_QUESTION = 128  # tokens whose leverages are computed first besides two for each atom
_CANDIDATES = 1024  # tokens of a pursuit besides four times those that it chooses


def chosen(problem: Problem, atoms: int, rank: int | None, choose: str) -> np.ndarray:
    """Indices of the atoms by one of the rules."""
    if choose == "attention mass":
        return top_tokens(problem, attention_mass(problem), atoms)
    if choose == "leverage":
        return _most_leverage(problem, atoms)
    p = problem.attention.all_weights()
    features = np.zeros((len(p), 0))
    if rank is not None and len(problem.keep) < problem.n:
        tail = with_tail(problem, problem.keep, rank).tail
        assert tail is not None  # for the type checker
        steps = problem.queries - np.asarray(tail.tilt, np.float64)
        along = steps @ np.asarray(tail.factor, np.float64)[: problem.keys.shape[1]]
        features = tail_features(p, problem.keep, along)
    if choose == "matching pursuit":
        return matching_pursuit(p, problem.values, features, problem.keep, atoms)
    return top_tokens(problem, residual_leverage(p, problem.values, features), atoms)


def top_tokens(problem: Problem, score: np.ndarray, atoms: int) -> np.ndarray:
    """Indices of the tokens to keep and of the highest scores; tokens of weight 0 come last."""
    score = np.where(problem.log_masses > -np.inf, score, -np.inf)
    score[problem.keep] = np.inf
    return _highest(score, atoms)


def attention_mass(problem: Problem) -> np.ndarray:
    """E[p_i] for every token."""
    return problem.attention.mean_weights()


def _most_leverage(problem: Problem, atoms: int) -> np.ndarray:
    """Indices of the tokens to keep and of the highest leverages.

    Leverage, E[p_i^2 |v_i - T|^2], is what the output loses, to first order, without the token. It
    is computed for the tokens only that cheap bounds leave in question.
    """
    if atoms == 0:
        return np.arange(0)
    attention, n = problem.attention, problem.n
    # leverage lies between E[p_i^2 (|v_i| -+ |T|)^2]
    norms, lengths = np.sqrt(np.sum(attention.outputs**2, axis=1)), np.sqrt(attention.squares)
    if isinstance(attention, BlockedSoftmax):
        powers = attention.sums_of_squares(np.stack([norms**0, norms, norms**2]))
        middle, half = attention.squares * powers[0] + powers[2], 2 * lengths * powers[1]
        slack = 1e-5 * (middle + half)  # of rounding
        low, high = np.maximum(middle - half - slack, 0.0), middle + half + slack
        low[problem.keep] = high[problem.keep] = np.inf
        index = np.flatnonzero(high >= np.partition(low, n - atoms)[n - atoms])
        return index[_highest(_leverage(problem, index), atoms)]
    high = attention.bounds * (lengths + np.float32(norms.max())) ** 2
    high[problem.keep] = np.inf
    few = min(_FEW_IN_QUESTION + 2 * atoms, n)
    lowest = np.partition(high, n - few)[n - few]
    index = np.flatnonzero(high >= lowest)
    score = _leverage(problem, index)
    least = np.partition(score, len(score) - atoms)[len(score) - atoms]
    if least <= lowest:  # others may have more
        index = np.flatnonzero(high >= least)
        score = _leverage(problem, index)
    return index[_highest(score, atoms)]


def _leverage(problem: Problem, index: np.ndarray) -> np.ndarray:
    """Sum over queries of p_i^2 |v_i - T|^2 for these tokens; infinite for those to keep."""
    attention, score = problem.attention, np.empty(len(index))
    T, squares = attention.outputs, attention.squares[index]
    lengths = np.sum(T**2, axis=1)
    for block in parts(len(index)):
        p, values = attention.weights(index[block]) ** 2, problem.values[index[block]]
        cross = np.einsum("nv,nv->n", values, p.T @ T.astype(p.dtype))
        score[block] = squares[block] * p.sum(axis=0) - 2 * cross + lengths @ p
    score[np.isin(index, problem.keep)] = np.inf
    return score


def _highest(score: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest scores, in order; the first ones among equals."""
    if count == 0:
        return np.arange(0)
    lowest = np.partition(score, len(score) - count)[len(score) - count]
    above = np.flatnonzero(score > lowest)
    equal = np.flatnonzero(score == lowest)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def residual_leverage(p: np.ndarray, values: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Sum over queries of |r_i|^2 for every token, from attention (q, n) and features (q, f)."""
    T, smooth = p @ values, _annihilator(features)
    rough = smooth @ p
    cross = np.sum(rough * (T @ values.T) * p, axis=0)
    lengths = np.sum(values**2, axis=1) * np.sum(rough * p, axis=0)
    return lengths - 2 * cross + np.sum(p * ((smooth * (T @ T.T)) @ p), axis=0)


def matching_pursuit(
    p: np.ndarray, values: np.ndarray, features: np.ndarray, keep: np.ndarray, atoms: int
) -> np.ndarray:
    """Indices of `atoms` tokens, those to keep among them: one at a time, the largest <r_i, R>.

    R is the sum of the residuals of all tokens that are not chosen yet. Tokens of small residual
    leverage are not candidates if there are many.
    """
    score = residual_leverage(p, values, features)
    score[keep] = np.inf
    candidates = np.argsort(-score, kind="stable")[: 4 * atoms + _CANDIDATES]
    T, smooth = p @ values, _annihilator(features)
    part, read = p[:, candidates], values[candidates]
    rough = smooth @ part
    cross = (rough * (T @ read.T)).T @ part
    gram = (part.T @ rough) * (read @ read.T) - cross - cross.T
    gram += part.T @ ((smooth * (T @ T.T)) @ part)
    chosen = np.isin(candidates, keep)
    # the parts of all tokens add up to 0: those that are not chosen are minus the chosen ones
    gains = -gram[:, chosen].sum(axis=1)
    for _ in range(atoms - int(chosen.sum())):
        best = int(np.argmax(np.where(chosen, -np.inf, gains)))
        chosen[best] = True
        gains -= gram[:, best]
    return np.sort(candidates[chosen])


def tail_features(p: np.ndarray, keep: np.ndarray, along: np.ndarray) -> np.ndarray:
    """s(z) and s(z) times the steps along few directions, (q, 1 + r)."""
    share = np.maximum(1 - p[:, keep].sum(axis=1, keepdims=True), 0.0)
    return share * np.column_stack([np.ones(len(p)), along])


def _annihilator(features: np.ndarray) -> np.ndarray:
    """M with c'Mc = |c - ridge regression of c on the features|^2, for functions of the query."""
    q = len(features)
    if not features.shape[1]:
        return np.eye(q)
    X = features / np.maximum(np.sqrt(np.mean(features**2, axis=0)), 1e-300)
    gram = X.T @ X + _RIDGE * q * np.eye(X.shape[1])
    rest = np.eye(q) - X @ np.linalg.solve(gram, X.T)
    return rest @ rest


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
