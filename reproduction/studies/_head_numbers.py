"""Numbers of recorded heads: residuals of affine maps, controls, and errors of small measures.

T(z) is the output of a head on its n recorded tokens (k, v), v_bar the mean value, p the softmax
weights at a query z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import largeprompt as lp

MAPS = ("best", "mean query", "origin")  # of `lp.linearise`
MEASURES = ("gaussian tail", "most attended")
_FEW = 64  # queries at which sampled Gaussian tokens are compared with their exact error
_DRAWS = 2  # prompts of Gaussian tokens

Numbers = dict[str, Any]


def averaging(recorded: lp.models.RecordedHead) -> Numbers:
    """Residuals of three affine maps, share of effective tokens, and deviations of the scores.

    The centred deviation is that of <k, z - mean query> over tokens as weighted at the mean query.
    """
    keys, _, queries = _arrays(recorded)
    scores, mean = queries @ keys.T, queries.mean(axis=0)
    effective = np.median(1 / np.sum(softmax(scores) ** 2, axis=1))
    tilted, steps = softmax(keys @ mean), (queries - mean) @ keys.T
    around = (steps - (steps @ tilted)[:, None]) ** 2
    return {
        "residual": [float(lp.linearise(*recorded, at).residual.value) for at in MAPS],
        "effective_share": float(effective) / len(keys),
        "score_deviation": float(np.sqrt(np.mean(np.var(scores, axis=1)))),
        "centred_deviation": float(np.sqrt(np.mean(around @ tilted))),
    }


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax along the last axis."""
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return terms / terms.sum(axis=-1, keepdims=True)


def shuffled_values(recorded: lp.models.RecordedHead, rng: np.random.Generator) -> Numbers:
    """E|T - v_bar|^2 with and without shuffled values, relative to its mean over permutations.

    If values are permuted at random that mean is tr(Cov v) (n sum_i p_i^2 - 1) / (n - 1), exactly.
    """
    keys, values, queries = _arrays(recorded)
    weights, n = softmax(queries @ keys.T), len(keys)
    values = values - values.mean(axis=0)
    spread = np.mean(np.sum(values**2, axis=1))
    expected = spread * np.mean(n * np.sum(weights**2, axis=1) - 1) / (n - 1)
    found = [
        float(np.mean(np.sum((weights @ part) ** 2, axis=1)) / expected)
        for part in (values, values[rng.permutation(n)])
    ]
    return {"paired_deviation": found[0], "shuffled_deviation": found[1]}


def gaussian_tokens(recorded: lp.models.RecordedHead, rng: np.random.Generator) -> Numbers:
    """The literal lemma at moderate scores, on the tokens and on Gaussian ones of their moments.

    Each query is shortened until its scores have deviation 1 at most. `gaussian_error` is the
    squared distance of n Gaussian tokens to Lemma 2.1 relative to `lp.output_error`.
    `token_residual` and `gaussian_residual` are residuals of Lemma 2.1 with the moments of the
    tokens themselves and of the Gaussian ones.
    """
    keys, values, queries = _arrays(recorded)
    deviation = np.std(queries @ keys.T, axis=1)
    moderate = recorded.queries / np.maximum(deviation, 1.0)[:, None]
    tokens, n = np.concatenate([keys, values], axis=1), len(keys)
    mean = tokens.mean(axis=0)
    gaps = (tokens - mean) / np.sqrt(n)
    cov = gaps.T @ gaps
    places = np.unique(np.linspace(0, len(moderate) - 1, min(_FEW, len(moderate))).astype(int))
    few = moderate[places]
    expected = lp.output_error(recorded.head, lp.Gaussian(mean, cov), few, float(n))
    slope, k = cov[keys.shape[1] :, : keys.shape[1]], keys.shape[1]
    few = few.astype(np.float64) * _scale(recorded)
    by_lemma = mean[k:] + few @ slope.T
    squares, drawn = [], tokens
    for _ in range(_DRAWS):
        drawn = mean + rng.normal(size=(n, n)) @ gaps
        outputs = softmax(few @ drawn[:, :k].T) @ drawn[:, k:]
        squares.append(np.sum((outputs - by_lemma) ** 2, axis=1))
    sampled = lp.KeyValues(drawn[:, :k].astype(np.float32), drawn[:, k:].astype(np.float32))
    literal = [
        float(lp.linearise(recorded.head, prompt, moderate, "origin").residual.value)
        for prompt in (recorded.prompt, sampled)
    ]
    return {
        "gaussian_error": float(np.mean(squares) / np.mean(np.asarray(expected))),
        "token_residual": literal[0],
        "gaussian_residual": literal[1],
    }


def small_measures(recorded: lp.models.RecordedHead, sizes: Sequence[Sequence[int]]) -> Numbers:
    """Errors on held-out queries of kept tokens with a Gaussian tail, and of the most attended.

    `sizes` are (tokens, kept tokens, rank of the tail); `excess_bytes` is by how much the first
    measure is larger than the second.
    """
    errors, excess = [], []
    for size, atoms, rank in sizes:
        head, prompt, queries = recorded
        tail = lp.compress(prompt, queries, head=head, atoms=atoms, rank=rank)
        kept = lp.compress(prompt, queries, head=head, atoms=size, method="most attended")
        if tail.error is None or kept.error is None:
            raise ValueError(f"an error needs more held-out queries; received {len(queries)}")
        errors.append([float(tail.error.mean), float(kept.error.mean)])
        excess.append(tail.nbytes / kept.nbytes - 1)
    return {"compression_error": errors, "excess_bytes": max(excess)}


def each_head(
    layers: Sequence[lp.models.RecordedLayer], numbers: Callable[[lp.models.RecordedHead], Numbers]
) -> dict[str, np.ndarray]:
    """The numbers of all heads, as arrays over layers and heads."""
    found = [[numbers(layer.head(head)) for head in range(layer.heads)] for layer in layers]
    names = found[0][0]
    return {name: np.array([[one[name] for one in row] for row in found]) for name in names}


def _arrays(recorded: lp.models.RecordedHead) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values, and queries with the scale of the scores, in double precision."""
    prompt = recorded.prompt
    keys, values, queries = (
        np.asarray(a, np.float64) for a in (prompt.keys, prompt.values, recorded.queries)
    )
    return keys, values, _scale(recorded) * queries


def _scale(recorded: lp.models.RecordedHead) -> float:
    """Factor of the scores <k, z>, the entry of a key-value head's matrix."""
    return float(recorded.head.U[0, 0])
