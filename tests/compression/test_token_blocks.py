"""Attention and moments over blocks of tokens, against sums written out in float64."""

import numpy as np
import pytest

from largeprompt.compression.token_blocks import Attention, tilted_moments

# tokens, coordinates of keys and values, queries
SHAPES = [(1, 1, 1, 1), (700, 3, 2, 5), (2500, 64, 64, 64), (1025, 37, 100, 70), (3000, 5, 17, 130)]


def _tokens(shape, dtype, weighted=True):
    n, k, v, q = shape
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(n, k)) + 3.0, rng.normal(size=(n, v)) - 2.0
    logs = np.where(rng.uniform(size=n) > 0.2 * (n > 1), rng.normal(size=n), -np.inf)
    logs[1024:2048] = -np.inf  # a block without any weight
    queries = rng.normal(size=(q, k)) / k**0.5
    keys, values, queries, logs = (a.astype(dtype) for a in (keys, values, queries, logs))
    return keys, values, logs if weighted else None, queries


def _assert_close(got, want, dtype):
    """To rounding of the dtype after sums over a block."""
    tolerance = 1e-11 if dtype is np.float64 else 2e-5
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention_of_is_softmax_over_all_tokens(shape, weighted, dtype):
    keys, values, logs, queries = _tokens(shape, dtype, weighted)
    v = values.astype(float)
    scores = queries.astype(float) @ keys.T.astype(float) + (0.0 if logs is None else logs)
    top = scores.max(axis=1, keepdims=True)
    terms = np.exp(scores - top)
    whole = terms / terms.sum(axis=1, keepdims=True)
    every = Attention.of(keys, values, logs, queries)
    rows = np.arange(0, len(queries), 2)
    log_normaliser = top[:, 0] + np.log(terms.sum(axis=1))
    for found, chosen in ((every, np.arange(len(queries))), (every.restricted(rows), rows)):
        p = whole[chosen]
        _assert_close(found.log_normaliser, log_normaliser[chosen], dtype)
        _assert_close(found.outputs, p @ v, dtype)
        _assert_close(found.weights(), p, dtype)
        some = np.arange(0, len(keys), 7)
        _assert_close(found.weights(some), p[:, some], dtype)
        _assert_close(found.mean_weights(), p.mean(axis=0), dtype)
        squares = np.sum((v - (p @ v)[:, None]) ** 2, axis=2)
        leverages = np.sum(p**2 * squares, axis=0)
        scale = leverages.max() or 1.0
        _assert_close(found.leverages(values) / scale, leverages / scale, dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tilted_moments_of_keys_and_values_at_one_tilt(shape, dtype):
    """Keys around 3 lose digits if moments are not taken around their means."""
    keys, values, logs, queries = _tokens(shape, dtype)
    assert logs is not None
    found = tilted_moments(keys, values, logs, queries[0])
    k, v, scores = keys.astype(float), values.astype(float), keys.astype(float) @ queries[0] + logs
    terms = np.exp(scores - scores.max())
    p = terms / terms.sum()
    gaps = k - p @ k
    want = [np.log(terms.sum()) + scores.max(), p @ k, p @ v]
    want += [(p * gaps.T) @ gaps, (p * gaps.T) @ (v - p @ v)]
    for got, exact in zip(found, want, strict=True):
        _assert_close(got, exact, dtype)
