"""Softmax attention and its derivatives over given tokens, written out in NumPy."""

import numpy as np


def softmax_weights(tokens: np.ndarray, weights: np.ndarray, tilt: np.ndarray) -> np.ndarray:
    scores = tokens @ tilt
    terms = weights * np.exp(scores - scores[weights > 0].max())
    return terms / terms.sum()


def attention(*, tokens, weights, U, V, z) -> np.ndarray:
    """V sum_i p_i x_i for one query z."""
    return V @ (softmax_weights(tokens, weights, U @ z) @ tokens)


def linear_attention(*, tokens, weights, U, V, z) -> np.ndarray:
    """sum_i w_i V x_i <x_i, U z> for one query z."""
    return np.sum([w * (V @ x) * (x @ U @ z) for w, x in zip(weights, tokens, strict=True)], axis=0)


def tilted_covariance(*, tokens, weights, U, z) -> np.ndarray:
    """sum_i p_i (x_i - mean)(x_i - mean)'."""
    p = softmax_weights(tokens, weights, U @ z)
    gaps = tokens - p @ tokens
    return np.einsum("i,ij,ik->jk", p, gaps, gaps)


def tilted_moments(points, log_weights, tilts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log sum_i w_i e^<u, x_i>, mean, covariance) of the tilted tokens for every row u of tilts,
    in float64.
    """
    points, tilts = (np.asarray(a, np.float64) for a in (points, tilts))
    logs = np.zeros(len(points)) if log_weights is None else np.asarray(log_weights, np.float64)
    scores = tilts @ points.T + logs
    top = scores.max(axis=1, keepdims=True)
    terms = np.exp(scores - top)
    total = terms.sum(axis=1)
    p = terms / total[:, None]
    mean = p @ points
    second = np.einsum("qn,ni,nj->qij", p, points, points, optimize=True)
    return top[:, 0] + np.log(total), mean, second - np.einsum("qi,qj->qij", mean, mean)


def key_value_moments(keys, values, log_weights, tilts) -> tuple[np.ndarray, np.ndarray]:
    """(log sum_i w_i e^<u, k_i>, sum_i p_i v_i) for every row u of tilts, in float64."""
    keys, values, tilts = (np.asarray(a, np.float64) for a in (keys, values, tilts))
    logs = np.zeros(len(keys)) if log_weights is None else np.asarray(log_weights, np.float64)
    scores = tilts @ keys.T + logs
    top = scores.max(axis=1, keepdims=True)
    terms = np.exp(scores - top)
    total = terms.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0], terms / total @ values


def gaussian_attention(*, mean, cov, U, V, z) -> np.ndarray:
    """Lemma 2.1."""
    return V @ mean + V @ cov @ U @ z
