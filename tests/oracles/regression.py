"""In-context linear regression by brute force in NumPy: prompts, softmax, squared errors."""

import numpy as np


def _prompts(rng, cov, task_cov, noise, L, n, query_cov=None):
    """N times w, inputs (n, L, d), labels (n, L), query, and noise of the target."""
    d = len(cov)
    B, R = np.linalg.cholesky(cov), np.linalg.cholesky(task_cov)
    Q = B if query_cov is None else np.linalg.cholesky(query_cov)
    w, x = rng.normal(size=(n, d)) @ R.T, rng.normal(size=(n, L, d)) @ B.T
    y = np.einsum("nld,nd->nl", x, w) + np.sqrt(noise) * rng.normal(size=(n, L))
    return w, x, y, rng.normal(size=(n, d)) @ Q.T, np.sqrt(noise) * rng.normal(size=n)


def simulate(*, cov, task_cov, noise, U, v, L, n, seed, attention="softmax", query_cov=None):
    """N values of 1/2 (prediction - target)^2."""
    rng = np.random.default_rng(seed)
    w, x, y, query, error = _prompts(rng, cov, task_cov, noise, L, n, query_cov)
    tokens = np.concatenate([x, y[..., None]], axis=2)
    scores = np.einsum("nla,ab,nb->nl", tokens, U, np.column_stack([query, np.zeros(n)]))
    weights = scores / L
    if attention == "softmax":
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = weights / weights.sum(axis=1, keepdims=True)
    prediction = np.sum(weights * (tokens @ v), axis=1)
    return (prediction - np.sum(w * query, axis=1) - error) ** 2 / 2


def simulate_gradients(*, cov, task_cov, query_cov, noise, U, v, L, n, seed, attention):
    """N rows (dU, dv, loss) of 1/2 (prediction - target)^2, each derivative from the definition of
    attention.
    """
    rng = np.random.default_rng(seed)
    w, x, y, x_q, error = _prompts(rng, cov, task_cov, noise, L, n, query_cov)
    tokens = np.concatenate([x, y[..., None]], axis=2)
    target = np.sum(w * x_q, axis=1) + error
    query = np.column_stack([x_q, np.zeros(n)])
    scores, values = np.einsum("nla,ab,nb->nl", tokens, U, query), tokens @ v
    weights, read = scores / L, values / L
    if attention == "softmax":
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = weights / weights.sum(axis=1, keepdims=True)
        read = weights * (values - np.sum(weights * values, axis=1, keepdims=True))
    mean, by_u = (np.einsum("nl,nla->na", a, tokens) for a in (weights, read))
    gap = mean @ v - target
    by_U = np.einsum("n,na,nb->nab", gap, by_u, query).reshape(n, -1)
    return np.column_stack([by_U, gap[:, None] * mean, gap**2 / 2])


def simulate_ridge(*, cov, task_cov, noise, L, n, seed, query_cov=None):
    """N values of 1/2 (prediction - target)^2 of the posterior mean (X'X + noise S^-1)^-1 X'y."""
    rng = np.random.default_rng(seed)
    w, x, y, query, error = _prompts(rng, cov, task_cov, noise, L, n, query_cov)
    precision = np.einsum("nla,nlb->nab", x, x) + noise * np.linalg.inv(task_cov)
    found = np.linalg.solve(precision, np.einsum("nl,nld->nd", y, x)[..., None])[..., 0]
    return (np.sum((found - w) * query, axis=1) - error) ** 2 / 2


def infinite_block_risk(*, cov, task_cov, noise, A, b):
    """1/2 tr((b Sig A - I) Sig (b Sig A - I)' S_w) + tau^2/2."""
    gap = b * cov @ A - np.eye(len(cov))
    return (np.trace(gap @ cov @ gap.T @ task_cov) + noise) / 2


def linear_risk_by_quadrature(*, cov, task_cov, query_cov, noise, U, v, L):
    """1/2 E (prediction - target)^2 of linear attention from its definition, to rounding.

    Moments of tokens, tasks and queries are Gauss-Hermite sums, exact for these polynomials. Tokens
    are independent, so L^2 E T^2 = L E (vz)^2 (uz)^2 + L (L - 1) (E vz uz)^2 given task and query.
    """
    d = len(cov)
    B, R, Q = (np.linalg.cholesky(m) for m in (cov, task_cov, query_cov))
    tokens, token_weights = _normal_nodes(d + 1)
    nodes, weights = _normal_nodes(d)
    risk = 0.0
    for w, of_w in zip(nodes @ R.T, weights, strict=True):
        x = tokens[:, :d] @ B.T
        z = np.column_stack([x, x @ w + np.sqrt(noise) * tokens[:, d]])
        for x_q, of_q in zip(nodes @ Q.T, weights, strict=True):
            terms = (z @ v) * (z @ (U @ np.append(x_q, 0.0)))
            mean = token_weights @ terms
            second = mean**2 if np.isinf(L) else (token_weights @ terms**2 + (L - 1) * mean**2) / L
            target = w @ x_q
            risk += of_w * of_q * (second - 2 * mean * target + target**2 + noise) / 2
    return risk


def _normal_nodes(d):
    """Nodes and weights of N(0, I_d), exact for polynomials of degree 5 in each coordinate."""
    x, weights = np.polynomial.hermite_e.hermegauss(3)
    grid = np.stack(np.meshgrid(*[x] * d, indexing="ij"), axis=-1).reshape(-1, d)
    products = np.stack(np.meshgrid(*[weights / weights.sum()] * d, indexing="ij"), axis=-1)
    return grid, products.reshape(-1, d).prod(axis=1)
