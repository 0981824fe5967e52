"""Prompts of tokens from a mixture of Gaussians, in plain NumPy: integrated or simulated."""

import itertools
import math

import numpy as np

QUANTITIES = ("mean", "second", "output", "U", "V")


def limit(*, weights, means, covs, u) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the mixture tilted by u: weights pi_k e^{<m_k, u> + u'G_k u/2}, means
    m_k + G_k u.
    """
    exponents = [m @ u + u @ G @ u / 2 for m, G in zip(means, covs, strict=True)]
    gate = np.asarray(weights) * np.exp(np.array(exponents) - max(exponents))
    gate = gate / gate.sum()
    centres = np.stack([m + G @ u for m, G in zip(means, covs, strict=True)])
    mean = gate @ centres
    gaps = centres - mean
    cov = np.einsum("k,kij->ij", gate, np.asarray(covs) + gaps[:, :, None] * gaps[:, None, :])
    return mean, cov


def first_order_error(*, weights, means, covs, U, V, z) -> float:
    """lim L E |T_L - T|^2 = e^{psi(2u) - 2 psi(u)} E_2u |V (x - T)|^2, by the delta method."""
    u = U @ z

    def psi(u):
        parts = zip(weights, means, covs, strict=True)
        return math.log(sum(w * math.exp(m @ u + u @ G @ u / 2) for w, m, G in parts))

    law = {"weights": weights, "means": means, "covs": covs}
    (mean, cov), (centre, _) = limit(**law, u=2 * u), limit(**law, u=u)
    square = np.trace(V @ cov @ V.T) + np.sum((V @ (mean - centre)) ** 2)
    return math.exp(psi(2 * u) - 2 * psi(u)) * square


def _of_prompts(tokens, *, U, V, z, centre, cov) -> dict:
    """Quantities of prompts (n, L, d), given the tilted mean and covariance of the law."""
    scores = tokens @ U @ z
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mean = np.einsum("nl,nld->nd", p, tokens)
    gaps = tokens - mean[:, None]
    spread = np.einsum("nl,nli,nlj->nij", p, gaps, gaps)
    T = mean @ V.T
    return {
        "mean": T,
        "second": T[:, :, None] * T[:, None, :],
        "output": np.sum((T - V @ centre) ** 2, axis=1),
        "U": z @ z * np.sum((V @ (spread - cov)) ** 2, axis=(1, 2)),
        "V": len(V) * np.sum((mean - centre) ** 2, axis=1),
    }


def integrate_prompts(*, weights, means, covs, U, V, z, L, reach=8.0, step=0.6) -> dict:
    """Averages over prompts of L tokens by the product trapezoidal rule over all their
    coordinates, which converges geometrically: no Laplace transform, no conditioning on scores.
    """
    tokens, chances = [], []
    for weight, m, G in zip(weights, means, covs, strict=True):
        values, axes = np.linalg.eigh(G)
        axes = (axes * np.sqrt(np.maximum(values, 0.0)))[:, values > 1e-12]
        grid = np.arange(-reach, reach + step / 2, step)
        density = np.exp(-(grid**2) / 2)
        density /= density.sum()
        rank = axes.shape[1]
        shape = (len(grid) ** rank, rank)
        points = np.array(list(itertools.product(grid, repeat=rank))).reshape(shape)
        mass = np.array(list(itertools.product(density, repeat=rank))).reshape(shape)
        tokens.append(m + points @ axes.T)
        chances.append(weight * mass.prod(axis=1))
    tokens, chances = np.concatenate(tokens), np.concatenate(chances)
    tokens, chances = tokens[chances > 1e-18], chances[chances > 1e-18] / chances.sum()
    centre, cov = limit(weights=weights, means=means, covs=covs, u=U @ z)
    total = dict.fromkeys(QUANTITIES, 0.0)
    for i, (first, chance) in enumerate(zip(tokens, chances, strict=True)):
        if L == 1:
            prompts, others = first[None, None], np.ones(1)
        else:  # two tokens, in either order
            prompts = np.stack([np.broadcast_to(first, tokens[i:].shape), tokens[i:]], axis=1)
            others = chances[i:] * np.where(np.arange(len(prompts)), 2.0, 1.0)
        found = _of_prompts(prompts, U=U, V=V, z=z, centre=centre, cov=cov)
        for name, values in found.items():
            total[name] = total[name] + chance * np.tensordot(others, values, axes=1)
    return total


def simulate_prompts(*, weights, means, covs, U, V, z, L, n, seed) -> dict:
    """(mean, standard error) of every quantity over n prompts of L tokens."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(weights), size=(n, L), p=weights)
    draws = np.stack(
        [
            rng.multivariate_normal(m, G, size=(n, L), method="eigh")
            for m, G in zip(means, covs, strict=True)
        ]
    )
    tokens = np.take_along_axis(draws, chosen[None, :, :, None], axis=0)[0]
    centre, cov = limit(weights=weights, means=means, covs=covs, u=U @ z)
    found = _of_prompts(tokens, U=U, V=V, z=z, centre=centre, cov=cov)
    return {name: (v.mean(0), v.std(0, ddof=1) / math.sqrt(n)) for name, v in found.items()}
