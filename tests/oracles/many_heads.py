"""Several heads on one prompt, by brute force: all tokens are drawn (plain NumPy)."""

import numpy as np


def softmax_outputs(tokens, heads, z):
    """Sum of the heads' outputs on prompts of shape (n, L, d); heads are pairs (U, V)."""
    total = np.zeros(())
    for U, V in heads:
        scores = tokens @ (U @ z)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        total = total + np.einsum("...l,...ld->...d", weights, tokens) @ V.T
    return total


def prompts(mean, root, L, n, seed):
    """n prompts of L tokens N(mean, root root')."""
    rng = np.random.default_rng(seed)
    return mean + rng.normal(size=(n, L, root.shape[1])) @ root.T


def in_context_losses(problem, heads, L, n, seed):
    """Losses of n prompts of linear regression; heads are pairs (A, b) in block form.

    `problem` is (covariance of the inputs, that of w, noise variance, covariance of the query).
    """
    cov, task_cov, noise, query_cov = problem
    rng = np.random.default_rng(seed)
    d = len(cov)
    roots = [np.linalg.cholesky(matrix) for matrix in (cov, task_cov, query_cov)]
    x = rng.normal(size=(n, L, d)) @ roots[0].T
    w, query = rng.normal(size=(n, d)) @ roots[1].T, rng.normal(size=(n, d)) @ roots[2].T
    y = np.einsum("nld,nd->nl", x, w) + np.sqrt(noise) * rng.normal(size=(n, L))
    target = np.sum(w * query, axis=1) + np.sqrt(noise) * rng.normal(size=n)
    prediction = np.zeros(n)
    for A, b in heads:
        scores = np.einsum("nld,nd->nl", x, query @ A.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        prediction += b * np.sum(weights * y, axis=1) / weights.sum(axis=1)
    return 0.5 * (prediction - target) ** 2
