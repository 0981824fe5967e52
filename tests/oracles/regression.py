"""In-context linear regression by brute force in NumPy: prompts, softmax, squared errors."""

import numpy as np


def _prompts(rng, cov, task_cov, noise, L, n):
    """N times (w, inputs, labels, a function that draws one more input)."""
    d = len(cov)
    B, R = np.linalg.cholesky(cov), np.linalg.cholesky(task_cov)
    for _ in range(n):
        w = R @ rng.normal(size=d)
        x = rng.normal(size=(L, d)) @ B.T
        y = x @ w + np.sqrt(noise) * rng.normal(size=L)
        yield w, x, y, lambda: B @ rng.normal(size=d)


def simulate(*, cov, task_cov, noise, U, v, L, n, seed, attention="softmax"):
    """N values of 1/2 (prediction - target)^2."""
    rng = np.random.default_rng(seed)
    losses = []
    for w, x, y, draw in _prompts(rng, cov, task_cov, noise, L, n):
        tokens = np.column_stack([x, y])
        query = draw()
        scores = tokens @ (U @ np.append(query, 0.0))
        if attention == "softmax":
            p = np.exp(scores - scores.max())
            prediction = v @ (p / p.sum() @ tokens)
        else:
            prediction = v @ (scores @ tokens) / L
        target = w @ query + np.sqrt(noise) * rng.normal()
        losses.append((prediction - target) ** 2 / 2)
    return np.array(losses)


def simulate_ridge(*, cov, task_cov, noise, L, n, seed):
    """N values of 1/2 (prediction - target)^2 of the posterior mean (X'X + noise S^-1)^-1 X'y."""
    rng = np.random.default_rng(seed)
    losses = []
    for w, x, y, draw in _prompts(rng, cov, task_cov, noise, L, n):
        found = np.linalg.solve(x.T @ x + noise * np.linalg.inv(task_cov), x.T @ y)
        query = draw()
        losses.append(((found - w) @ query - np.sqrt(noise) * rng.normal()) ** 2 / 2)
    return np.array(losses)


def infinite_block_risk(*, cov, task_cov, noise, A, b):
    """1/2 tr((b Sig A - I) Sig (b Sig A - I)' S_w) + tau^2/2."""
    gap = b * cov @ A - np.eye(len(cov))
    return (np.trace(gap @ cov @ gap.T @ task_cov) + noise) / 2
