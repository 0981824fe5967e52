"""The one pass over long prompts: against sums written out in float64, and the stored softmax."""

import numpy as np
import pytest

import largeprompt as lp
from largeprompt._native import blocks as native
from largeprompt.compression import compression_problem, token_blocks
from largeprompt.compression.atoms import chosen
from largeprompt.compression.blocked_softmax import BlockedSoftmax
from largeprompt.compression.compression_problem import problem_of
from largeprompt.compression.streamed_softmax import StreamedSoftmax
from largeprompt.compression.tail_fit import with_tail

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler on installation")

SHAPES = [(1, 1, 1, 1), (700, 3, 2, 5), (9000, 64, 64, 64), (4097, 37, 100, 70)]


def _tokens(shape, weighted, sink=0.0):
    n, k, v, q = shape
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(n, k)) + 1.0, rng.normal(size=(n, v)) - 2.0
    queries = rng.normal(size=(q, k)) / k**0.5
    keys[n // 2] += sink * queries.mean(axis=0) / np.sum(queries.mean(axis=0) ** 2)
    logs = np.where(rng.uniform(size=n) > 0.2 * (n > 1), rng.normal(size=n), -np.inf)
    keys, values, queries, logs = (a.astype(np.float32) for a in (keys, values, queries, logs))
    return keys, values, logs if weighted else None, queries


def _assert_close(got, want):
    """To rounding of scores in single precision."""
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sink", [0.0, 40.0])
def test_streamed_softmax_is_attention_in_one_pass(shape, weighted, sink):
    """A sink between the tokens that normalisers are guessed from makes the guesses too low."""
    keys, values, logs, z = _tokens(shape, weighted, sink)
    counted = np.arange(len(z))[:: 2 if len(z) > 1 else 1]
    found = StreamedSoftmax.of(keys, values, logs, z, counted)
    scores = z.astype(float) @ keys.T.astype(float) + (0.0 if logs is None else logs)
    top = scores.max(axis=1, keepdims=True)
    total = np.exp(scores - top).sum(axis=1, keepdims=True)
    p = np.exp(scores - top) / total
    _assert_close(found.log_normaliser, (top + np.log(total))[:, 0])
    _assert_close(found.outputs, p @ values)
    _assert_close(found.all_weights(), p)
    _assert_close(found.mean_weights(), p.mean(axis=0))
    some = np.array([0, shape[0] // 2])
    _assert_close(found.restricted(counted).weights(some), p[counted][:, some])
    np.testing.assert_allclose(found.squares, np.sum(values.astype(float) ** 2, axis=1), rtol=1e-5)
    np.testing.assert_allclose(found.value_sum, values.sum(axis=0, dtype=float), rtol=1e-4)
    assert np.all(found.bounds >= np.sum(p[counted] ** 2, axis=0) * (1 - 1e-6))
    # the mean query
    score = scores[counted].mean(axis=0)
    at_mean = np.exp(score - score.max())
    seen = found.mean_query
    np.testing.assert_allclose(seen.scores, score, rtol=1e-4, atol=1e-4)
    _assert_close(seen.log_mass, np.log(at_mean.sum()) + score.max())
    points = np.concatenate([keys, values], axis=1).astype(float)
    _assert_close(seen.mean, at_mean @ points / at_mean.sum())


def test_streamed_softmax_does_not_depend_on_threads(monkeypatch):
    keys, values, logs, z = _tokens((9000, 20, 30, 40), True)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(native, "_cores", lambda cores=cores: cores)
        found.append(native.attention_blocks(keys, values, logs, z, z[:, 0], np.arange(40), 1024))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def _long(weighted=False, sink=0.0, n=20_000, d=6):
    rng = np.random.default_rng(1)
    keys, values, logs, _ = _tokens((n, d, d, 1), weighted)
    values = values + np.sin(2 * keys)
    queries = (0.7 * rng.normal(size=(64, d)) + 0.3).astype(np.float32)
    mean = queries.mean(axis=0)
    keys[7] += sink * mean / np.sum(mean**2)
    return lp.KeyValues(keys, values, logs), queries


def _stored(monkeypatch):
    monkeypatch.setattr(compression_problem, "in_cpp", lambda array: False)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sink", [0.0, 12.0])
def test_compress_of_long_prompts_takes_the_same_atoms_from_one_pass(weighted, sink, monkeypatch):
    """The bounds only save work: the tokens of highest leverage are those of the stored softmax."""
    prompt, queries = _long(weighted, sink)
    found = []
    for stored in (False, True):
        if stored:
            _stored(monkeypatch)
        problem = problem_of(prompt, queries, [3, 11], None, streamed=True)
        assert isinstance(problem.attention, BlockedSoftmax if stored else StreamedSoftmax)
        seen = problem.restricted(np.arange(64)[np.arange(64) % 4 != 3])
        found.append([chosen(seen, atoms, 4, "leverage").tolist() for atoms in (2, 50, 3000)])
    assert found[0] == found[1]
    assert {3, 11} <= set(found[0][0])


@pytest.mark.parametrize("sink", [0.0, 12.0])
def test_compress_of_long_prompts_loses_nothing_by_sampled_covariances(sink, monkeypatch):
    """Relative errors within a twentieth of those with covariances of all tokens."""
    prompt, queries = _long(sink=sink)
    sampled = lp.compress(prompt, queries, atoms=20, rank=6)
    _stored(monkeypatch)
    exact = lp.compress(prompt, queries, atoms=20, rank=6)
    assert sampled.error is not None
    assert exact.error is not None
    np.testing.assert_allclose(sampled.error.mean, exact.error.mean, rtol=0.05)


def test_compress_of_long_prompts_has_exact_means_without_the_atoms():
    """The mean of all tokens less the atoms, and the sum over the others written out."""
    prompt, queries = _long(weighted=True)
    problem = problem_of(prompt, queries, [], None, streamed=True)
    seen = problem.restricted(np.arange(64)[np.arange(64) % 4 != 3])
    index = chosen(seen, 30, 0, "leverage")
    tail = with_tail(seen, index, 0).tail
    rest = np.delete(np.arange(problem.n), index)
    keys, tilt = problem.keys[rest].astype(float), seen.queries.mean(axis=0, dtype=float)
    scores = keys @ tilt + problem.log_masses[rest]
    weights = np.exp(scores - scores.max())
    assert tail is not None
    want = weights @ keys / weights.sum()
    np.testing.assert_allclose(np.asarray(tail.mean)[:6], want, rtol=1e-3, atol=1e-4)


def test_sampled_covariances_are_those_of_the_weighted_tokens():
    """Within five standard errors of 2048 draws, also for tokens with a period of the strata."""
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(2048 * 8, 3)), rng.normal(size=(2048 * 8, 2))
    keys[::8] *= 4.0
    values += keys[:, :2]
    weights = np.exp(rng.normal(size=len(keys)))
    found = token_blocks.sampled_covariances(keys, values, weights)
    p = weights / weights.sum()
    gaps, outs = keys - p @ keys, values - p @ values
    for got, right in zip(found, (gaps, outs), strict=True):
        products = gaps[:, :, None] * right[:, None, :]
        want = np.tensordot(p, products, 1)
        error = np.sqrt(np.tensordot(p, (products - want) ** 2, 1) / 2048)
        assert np.all(np.abs(got - want) < 5 * error)


def test_compress_of_long_prompts_with_identical_tokens_or_one_weight():
    queries = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    ones = np.ones((20_000, 2), np.float32)
    small = lp.compress(lp.KeyValues(ones, ones), queries, atoms=2, rank=1)
    assert small.error is not None
    assert small.error.mean == 0
    logs = np.full(20_000, -np.inf, np.float32)
    logs[[5, 9000]] = 0.0
    tokens = np.random.default_rng(1).normal(size=(20_000, 2)).astype(np.float32)
    small = lp.compress(lp.KeyValues(tokens, tokens, logs), queries, atoms=2, rank=1)
    np.testing.assert_array_equal(
        np.sort(np.asarray(small.keys), axis=0), np.sort(tokens[[5, 9000]], axis=0)
    )
