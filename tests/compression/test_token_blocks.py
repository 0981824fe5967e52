"""Sums over blocks of tokens: C++ and NumPy, against sums written out in float64."""

import numpy as np
import pytest

from largeprompt._native import blocks as native
from largeprompt.compression import token_blocks

# tokens, coordinates of keys and values, queries: rows that end between two vectors, one token,
# blocks of any size, more queries than a tile of registers has
SHAPES = [(1, 1, 1, 1), (700, 3, 2, 5), (2500, 64, 64, 64), (1025, 37, 100, 70), (3000, 5, 17, 130)]


@pytest.fixture(params=["C++", "NumPy", "float64"])
def dtype(request, monkeypatch):
    """Single precision by the kernels and without them, and double precision."""
    if request.param == "C++" and not native.available():
        pytest.skip("no C++ compiler on installation")
    if request.param == "NumPy":
        monkeypatch.setattr(native, "available", lambda: False)
    return np.float64 if request.param == "float64" else np.float32


def _tokens(shape, dtype, weighted=True):
    n, k, v, q = shape
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(n, k)) + 3.0, rng.normal(size=(n, v)) - 2.0
    logs = np.where(rng.uniform(size=n) > 0.2 * (n > 1), rng.normal(size=n), -np.inf)
    logs[1024:2048] = -np.inf  # a block without any weight
    queries = rng.normal(size=(q, k)) / k**0.5
    keys, values, queries, logs = (a.astype(dtype) for a in (keys, values, queries, logs))
    return keys, values, logs if weighted else None, queries


def _assert_close(got, want):
    """To rounding of the dtype of `got` after sums over a block."""
    tolerance = 1e-11 if np.asarray(got).dtype == np.float64 else 2e-5
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_softmax_blocks_are_sums_over_their_tokens(shape, weighted, dtype):
    n, _, _, q = shape
    keys, values, logs, queries = _tokens(shape, dtype, weighted)
    found = token_blocks.softmax_blocks(keys, values, logs, queries)
    scores = keys.astype(float) @ queries.T.astype(float) + (0.0 if logs is None else logs[:, None])
    np.testing.assert_allclose(found.squares, np.sum(values.astype(float) ** 2, axis=1), rtol=1e-5)
    for b, part in enumerate(token_blocks.parts(n)):
        top = scores[part].max(axis=0)
        _assert_close(found.tops[b, :q], top)
        with np.errstate(invalid="ignore"):
            terms = np.nan_to_num(np.exp(scores[part] - top))
        sums = terms.T @ values[part]
        size = max(1.0, float(np.abs(sums).max()))
        _assert_close(found.terms[part, :q], terms)
        _assert_close(found.totals[b, :q], terms.sum(axis=0))
        _assert_close(found.sums[b, :q] / size, sums / size)


@pytest.mark.parametrize("shape", SHAPES)
def test_square_sums_are_weighted_squares_of_the_terms(shape, dtype):
    keys, values, logs, queries = _tokens(shape, dtype)
    terms = token_blocks.softmax_blocks(keys, values, logs, queries).terms
    blocks = token_blocks.parts(len(terms))
    coefficients = np.random.default_rng(1).normal(size=(len(blocks), 3, terms.shape[1]))
    found = token_blocks.square_sums(terms, coefficients)
    want = [
        c @ (terms[part].astype(float) ** 2).T for c, part in zip(coefficients, blocks, strict=True)
    ]
    _assert_close(found, np.concatenate(want, axis=1))


@pytest.mark.parametrize("shape", SHAPES)
def test_tilted_moments_of_keys_and_values_at_one_tilt(shape, dtype):
    """Keys around 3 lose digits if moments are not taken around their means."""
    keys, values, logs, queries = _tokens(shape, dtype)
    assert logs is not None
    found = token_blocks.tilted_moments(keys, values, logs, queries[0])
    k, v, scores = keys.astype(float), values.astype(float), keys.astype(float) @ queries[0] + logs
    terms = np.exp(scores - scores.max())
    p = terms / terms.sum()
    gaps = k - p @ k
    want = [np.log(terms.sum()) + scores.max(), p @ k, p @ v]
    want += [(p * gaps.T) @ gaps, (p * gaps.T) @ (v - p @ v)]
    for got, exact in zip(found, want, strict=True):  # in float64, whatever the tokens are
        _assert_close(np.asarray(got, dtype), exact)


@pytest.mark.skipif(not native.available(), reason="no C++ compiler on installation")
def test_softmax_blocks_and_moments_do_not_depend_on_threads(monkeypatch):
    keys, values, logs, queries = _tokens((5000, 20, 30, 40), np.float32)
    assert logs is not None
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(native, "_cores", lambda cores=cores: cores)
        found.append(
            (
                *token_blocks.softmax_blocks(keys, values, logs, queries),
                *native.moment_blocks(keys, values, logs, queries[0], 1024),
            )
        )
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_available_is_false_without_the_kernels(monkeypatch):
    find = native.available.__wrapped__
    for library in (None, object()):  # not compiled, or an older build without these kernels
        monkeypatch.setattr(native, "library", lambda library=library: library)
        assert not find()


@pytest.mark.parametrize("n", [1, 16, 17, 5000])
def test_drawn_by_weight_inverts_the_running_sum(n):
    """Also with tokens, and whole runs of them, that weigh nothing."""
    rng = np.random.default_rng(n)
    weights = rng.exponential(size=n).astype(np.float32)
    weights[rng.uniform(size=n) < 0.3 * (n > 1)] = 0
    weights[100:200] = weights[-40:-20] = 0
    shares = token_blocks.levels(300)
    total = np.cumsum(weights, dtype=np.float64)
    wanted = np.searchsorted(total, shares * total[-1], side="right")
    found = token_blocks.drawn_by_weight(weights, shares)
    np.testing.assert_array_equal(found, wanted)
    assert np.all(weights[found] > 0)
