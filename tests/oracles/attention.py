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


def gaussian_attention(*, mean, cov, U, V, z) -> np.ndarray:
    """Lemma 2.1."""
    return V @ mean + V @ cov @ U @ z
