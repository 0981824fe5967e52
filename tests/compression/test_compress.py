# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
# pyright: reportOptionalSubscript=false, reportArgumentType=false, reportCallIssue=false
"""Compressed prompts: their measure, their error, every method on a case with a known answer."""

from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.compression import Tail
from largeprompt.compression.compress import Method
from largeprompt.compression.compressed import draft_of
from largeprompt.compression.draft import outputs

from ..test_compilation import compilations

K, V, N = 3, 2, 60
HEAD = lp.Head.key_value(K, V)
METHODS = get_args(Method)


def _tokens(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, K)), rng.normal(size=(n, V)), 0.5 + 0.6 * rng.normal(size=(64, K))


def _attention(keys, values, z, masses=None):
    """Softmax attention written out, and the weights."""
    terms = np.exp(z @ keys.T) * (1.0 if masses is None else masses)
    p = terms / terms.sum(axis=1, keepdims=True)
    return p @ values, p


@eqx.filter_jit
def _tilted(mu, u):
    """The cumulant function, tilted mean and covariance, by one program."""
    return mu.log_mgf(u), mu.tilted_mean(u), mu.tilted_cov(u)


def _as_mixture(small):
    """The same measure made of other classes."""
    F = np.asarray(small.tail.factor)
    at = np.append(small.tail.tilt, np.zeros(V))
    mean, cov = np.asarray(small.tail.mean) - F @ F.T @ at, F @ F.T
    log_mass = small.tail.log_mass - small.tail.mean @ at + at @ cov @ at / 2
    atoms = lp.Empirical(np.concatenate([small.keys, small.values], axis=1))
    tail = lp.measures.Scaled(log_mass, lp.Gaussian(mean, cov, check=False))
    return lp.Mixture([small.n, 1], [atoms, tail])


@pytest.mark.slow
def test_attend_to_a_compressed_prompt_is_attention_on_its_mixture():
    keys, values, queries = _tokens()
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=5, rank=2)
    assert (small.n, small.tail.rank, small.dim) == (5, 2, K + V)
    assert small.nbytes == 8 * (5 * (K + V) + 3 * (K + V) + K + 1)
    mixture, z = _as_mixture(small), queries[:4]
    assert np.allclose(lp.attend(HEAD, small, z), lp.attend(HEAD, mixture, z), rtol=1e-9)
    u = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4])  # values may be tilted too
    for got, want in zip(_tilted(small, u), _tilted(mixture, u), strict=True):
        assert np.allclose(got, want, rtol=1e-9)
    assert np.allclose(small.tilt(u).mean(), small.tilted_mean(u), rtol=1e-9)
    assert abs(small.log_mgf(jnp.zeros(K + V))) < 1e-14
    draws = np.asarray(small.sample(jax.random.key(0), 20_000).points)
    assert np.allclose(draws.mean(axis=0), small.mean(), atol=0.05)
    assert np.allclose(np.cov(draws.T), small.cov(), atol=0.15)


def test_compress_error_is_measured_on_every_fourth_query():
    keys, values, queries = _tokens()
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=5, rank=1)
    z = queries[3::4]
    exact, _ = _attention(keys, values, z)
    squares = np.sum((np.asarray(lp.attend(HEAD, small, z)) - exact) ** 2, axis=1)
    relative = squares / np.mean(np.sum((exact - values.mean(axis=0)) ** 2, axis=1))
    want = [relative.mean(), *np.percentile(relative, [50, 90, 99])]
    found = small.error.mean, small.error.median, *small.error[3:5]
    assert np.allclose(found, want, rtol=1e-5)
    assert small.error.queries == 16
    changed = queries.copy()
    changed[3::4] += 1.0  # queries held out do not change the measure
    other = lp.compress(lp.KeyValues(keys, values), changed, atoms=5, rank=1)
    assert np.array_equal(other.tail.factor, small.tail.factor)
    assert other.error.mean != small.error.mean


def test_compress_error_covers_the_error_of_fresh_queries():
    """Gaps between claims and fresh queries, over 24 prompts, for a method that fits few parameters
    and one that fits many: three standard errors reach nine of ten, and half of one does not reach
    half of them. Errors of single queries have heavy tails.
    """
    for method, rank in (("gaussian tail", 1), ("attention matching", None)):
        gaps = []
        for seed in range(24):
            keys, values, _ = _tokens(seed)
            rng = np.random.default_rng(100 + seed)
            queries, fresh = (0.5 + 0.6 * rng.normal(size=(q, K)) for q in (256, 8000))
            small = lp.compress(
                lp.KeyValues(keys, values), queries, atoms=8, rank=rank, method=method
            )
            exact, _ = _attention(keys, values, fresh)
            squares = np.sum((outputs(draft_of(small), fresh) - exact) ** 2, axis=1)
            deviation = np.mean(np.sum((exact - values.mean(axis=0)) ** 2, axis=1))
            gap = abs(small.error.mean - squares.mean() / deviation)
            gaps.append(gap / small.error.standard_error)
        assert np.sum(np.array(gaps) < 3) >= 21, method
        assert np.median(gaps) > 0.5, method


def test_compress_of_few_queries_states_no_error():
    """All of them serve the fit; a mean over fewer than 16 would say little about others."""
    keys, values, queries = _tokens()
    prompt = lp.KeyValues(keys, values)
    for q in (1, 40, 63):
        small = lp.compress(prompt, queries[:q], atoms=5, rank=1)
        assert small.error is None
        assert "error unknown" in repr(small)
    tail = lp.compress(prompt, np.tile(queries[:1], (63, 1)) + queries[:63] * 0, atoms=0).tail
    assert np.allclose(tail.tilt, queries[0])


def test_compressed_repr_says_its_numbers():
    keys, values, queries = _tokens()
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=5, rank=2)
    error = small.error
    said = f"error {error.mean:.2g} +- {error.standard_error:.1g} on 16 queries held out)"
    assert (
        repr(small) == f"Compressed(5 atoms, Gaussian tail of rank 2, {small.nbytes} bytes, {said}"
    )
    eqx.filter_jit(lambda traced: repr(traced) and traced.keys)(small)  # also of traced ones


def test_compress_converges_as_queries_concentrate():
    """The tail is a second-order expansion: squared errors fall like the fourth power."""
    keys, values, queries = _tokens()
    centre = queries.mean(axis=0)
    errors = [
        lp.compress(lp.KeyValues(keys, values), centre + h * (queries - centre), atoms=0, rank=K)
        .error.mean
        for h in (0.2, 0.1, 0.05)
    ]  # fmt: skip
    assert errors[0] < 0.01
    assert 8 < errors[0] / errors[1] < 32
    assert 8 < errors[1] / errors[2] < 32


def test_compress_with_all_tokens_is_the_prompt():
    keys, values, queries = _tokens()
    logs = np.random.default_rng(1).normal(size=N)
    for weights in (None, logs):
        prompt = lp.KeyValues(keys, values, weights)
        for small in (
            lp.compress(prompt, queries, atoms=N + 3),
            lp.compress(prompt, queries, atoms=N, rank=K + 9),  # no Gaussian: its rank is unused
            lp.compress(prompt, queries, size=10**6),
        ):
            assert small.tail is None
            got, want = lp.attend(HEAD, small, queries[:2]), lp.attend(HEAD, prompt, queries[:2])
            assert np.allclose(got, want, rtol=1e-12)
            assert small.error.mean < 1e-25


@pytest.mark.parametrize("rank", [0, 2])
def test_compress_identical_tokens_and_one_token(rank):
    _, _, queries = _tokens()
    for n in (1, 7):
        prompt = lp.KeyValues(np.ones((n, K)), np.ones((n, V)))
        small = lp.compress(prompt, queries, atoms=0, rank=rank)
        assert np.allclose(lp.attend(HEAD, small, queries[0]), 1.0, rtol=1e-12)
        assert small.error.mean == 0


def test_compress_beats_the_most_attended_tokens_at_equal_size():
    """Gaussian keys and values with a sink, where 9 of 10 tokens matter together."""
    rng = np.random.default_rng(0)
    keys, mix = rng.normal(size=(400, 8)), rng.normal(size=(8, 8))
    values = keys @ mix + rng.normal(size=(400, 8))
    queries = 0.4 * rng.normal(size=(120, 8)) + 0.3
    keys[0], values[0] = 6.0, 0.0
    prompt, size = lp.KeyValues(keys, values), 8 * 16 * 24
    found = {
        method: lp.compress(prompt, queries, size=size, method=method)
        for method in ("gaussian tail", "most attended", "attention matching")
    }
    assert all(small.nbytes <= size for small in found.values())
    best = found["gaussian tail"].error
    assert best.mean < found["most attended"].error.mean / 3
    assert best.percentile_90 < found["most attended"].error.percentile_90 / 3
    assert best.mean < found["attention matching"].error.mean


def test_compress_by_leverage_prefers_tokens_whose_value_differs():
    keys, values, queries = np.zeros((6, K)), np.zeros((6, V)), _tokens()[2]
    values[:, 0] = [1, 1, 1, 1, 1, 9]
    keys[:2, 0] = 0.1  # attended a little more
    prompt = lp.KeyValues(keys, values)
    by_mass = lp.compress(prompt, queries, atoms=1, choose="attention mass", rank=None)
    by_leverage = lp.compress(prompt, queries, atoms=1, rank=None)
    assert by_mass.values[0, 0] == 1
    assert by_leverage.values[0, 0] == 9


@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_compress_over_several_blocks_of_tokens(offset, dtype):
    """Leverages of all tokens and outputs written out; a block of tokens has no weight at all.

    Values around 3 make the bounds of the leverages loose. 20,000 tokens in float32 are compressed
    in float32, to 1e-4.
    """
    keys, values, queries = (a.astype(dtype) for a in _tokens(seed=2, n=20_000))
    values += dtype(offset)
    masses = np.exp(np.random.default_rng(3).normal(size=len(keys)))
    masses[4000:9000] = 0.0
    with np.errstate(divide="ignore"):
        prompt = lp.KeyValues(keys, values, np.log(masses).astype(dtype))
    small = lp.compress(prompt, queries, atoms=50, rank=2, keep=[11])
    fitted, judged = np.arange(64) % 4 != 3, np.arange(64) % 4 == 3
    T, p = _attention(*(a.astype(float) for a in (keys, values, queries[fitted])), masses)
    leverage = np.sum(p**2 * np.sum((values - T[:, None]) ** 2, axis=2), axis=0)
    leverage[11] = np.inf
    rows = _rows_of(small, keys)
    assert set(rows) == set(np.argsort(-leverage)[:50])
    exact, _ = _attention(*(a.astype(float) for a in (keys, values, queries[judged])), masses)
    squares = np.sum((np.asarray(lp.attend(HEAD, small, queries[judged])) - exact) ** 2, axis=1)
    deviation = np.sum((exact - masses @ values / masses.sum()) ** 2, axis=1)
    want = np.mean(squares) / np.mean(deviation)
    assert np.isclose(small.error.mean, want, rtol=1e-5 if dtype is np.float64 else 1e-2)


def test_compress_when_the_atoms_have_nearly_all_weight():
    """A tail of weight 1e-11 has the mean of its tokens, not the rounding of the atoms' sums."""
    keys, values, _ = (a.astype(np.float32) for a in _tokens(seed=4, n=20_000))
    queries = np.tile(np.float32([1, 0, 0]), (8, 1))
    keys[:3] = [[35, 1, 0], [35, 2, 0], [35, 3, 0]]
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=3, rank=0)
    assert set(_rows_of(small, keys)) == {0, 1, 2}
    rest, _ = _attention(*(a.astype(float) for a in (keys[3:], values[3:], queries)))
    log_mass = np.log(np.sum(np.exp(keys[3:, 0].astype(float))))
    assert log_mass - 35 < np.log(1e-10)
    assert np.allclose(small.tail.mean[K:], rest[0], atol=1e-4)
    assert np.isclose(small.tail.log_mass, log_mass, atol=1e-4)


def test_compress_with_log_weights_and_a_scaled_head():
    keys, values, queries = _tokens()
    logs = np.random.default_rng(1).normal(size=N)
    head = lp.Head.key_value(K, V, scale=2.0)
    small = lp.compress(lp.KeyValues(keys, values, logs), queries / 2, atoms=12, rank=3, head=head)
    want, _ = _attention(keys, values, queries, np.exp(logs))
    got = np.asarray(lp.attend(head, small, queries / 2))
    assert np.mean((got - want) ** 2) < 0.02 * np.mean((want - want.mean(axis=0)) ** 2)


def _rows_of(small, keys):
    """Which tokens the atoms are."""
    distance = np.abs(np.asarray(small.keys)[:, None] - keys[None]).sum(axis=2)
    assert np.all(distance.min(axis=1) == 0)
    return sorted(distance.argmin(axis=1).tolist())


@pytest.mark.parametrize("method", [m for m in METHODS if m != "attention matching"])
def test_compress_keeps_sinks_and_a_window(method):
    """Attention matching may give weight 0 to a token and drop it."""
    keys, values, queries = _tokens()
    prompt, window = lp.KeyValues(keys, values), np.r_[0:4, -4:0]
    options = {"keep": window, "method": method, "key": jax.random.key(0)}
    for atoms in (8, 11):
        small = lp.compress(prompt, queries, atoms=atoms, **options)
        distance = np.abs(np.asarray(small.keys)[:, None] - keys[window]).sum(axis=2)
        assert small.n == atoms
        assert np.all(distance.min(axis=0) == 0)


@pytest.mark.parametrize("method", METHODS)
def test_compress_size_is_a_budget(method):
    """Every method fits; those that store whole tokens leave less than one of them."""
    keys, values, queries = _tokens()
    for logs in (None, np.random.default_rng(1).normal(size=N)):
        prompt = lp.KeyValues(keys, values, logs)
        for size in (60, 200, 1000, 2399):
            small = lp.compress(prompt, queries, size=size, method=method, key=jax.random.key(0))
            assert small.nbytes <= size
            if method != "attention matching":  # may drop tokens
                assert small.nbytes > size - 8 * (K + V + 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("long", [False, True])
def test_compress_where_three_tokens_have_all_weight(method, long):
    """Tokens of weight 0 are never needed; a tail of them has no mass."""
    n = 17_000 if long else N
    keys, values, queries = _tokens(n=n)
    logs = np.full(n, -np.inf)
    logs[[3, 20, n - 1]] = [0.0, 1.0, -1.0]
    keys, values, queries, logs = (
        a.astype(np.float32 if long else np.float64) for a in (keys, values, queries, logs)
    )
    small = lp.compress(
        lp.KeyValues(keys, values, logs), queries, atoms=3, rank=1, method=method,
        key=jax.random.key(0),
    )  # fmt: skip
    assert small.error.mean < 1e-9
    want, _ = _attention(keys, values, queries, np.exp(logs))
    assert np.allclose(lp.attend(HEAD, small, queries), want, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_compress_with_scores_of_thousands_is_finite(method):
    keys, values, queries = _tokens()
    prompt, options = lp.KeyValues(1e3 * keys, values), {"method": method}
    small = lp.compress(prompt, queries, atoms=5, rank=2, key=jax.random.key(0), **options)
    assert np.all(np.isfinite(lp.attend(HEAD, small, queries)))
    assert np.isfinite(small.error.percentile_99)


def test_compress_most_attended():
    keys, values, queries = _tokens()
    fitted = np.delete(queries, np.s_[3::4], axis=0)
    _, p = _attention(keys, values, fitted)
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=5, method="most attended")
    assert _rows_of(small, keys) == sorted(np.argsort(-p.mean(axis=0))[:5].tolist())
    assert small.tail is None


def test_compress_sinks_and_window():
    keys, values, queries = _tokens()
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=7, method="sinks and window")
    assert _rows_of(small, keys) == [0, 1, 2, 3, N - 3, N - 2, N - 1]


def test_compress_expected_attention():
    """The expectation over Gaussian queries, by sampling them."""
    keys, values, queries = _tokens()
    fitted = np.delete(queries, np.s_[3::4], axis=0)
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(fitted.mean(axis=0), np.cov(fitted.T, bias=True), size=100_000)
    score = np.exp(z @ keys.T).mean(axis=0) * np.linalg.norm(values, axis=1)
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=4, method="expected attention")
    assert _rows_of(small, keys) == sorted(np.argsort(-score)[:4].tolist())


def test_compress_centroids_of_repeated_tokens_are_exact():
    keys, values, queries = _tokens(n=3)
    counts = [1, 4, 7]
    prompt = lp.KeyValues(np.repeat(keys, counts, axis=0), np.repeat(values, counts, axis=0))
    small = lp.compress(prompt, queries, atoms=3, method="centroids")
    assert np.allclose(np.sort(np.exp(small.log_weights)), counts, rtol=1e-9)
    assert small.error.mean < 1e-20


def test_compress_moments_are_those_of_the_other_tokens():
    keys, values, queries = _tokens()
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=4, rank=K, method="moments")
    rest = np.setdiff1d(np.arange(N), _rows_of(small, keys))
    tokens = np.concatenate([keys, values], axis=1)[rest]
    cov = np.cov(tokens.T, bias=True)
    found = np.asarray(small.tail.factor @ small.tail.factor.T)
    assert np.isclose(small.tail.log_mass, np.log(N - 4), rtol=1e-12)
    assert np.allclose(small.tail.mean, tokens.mean(axis=0), rtol=1e-9)
    assert not np.any(small.tail.tilt)
    assert np.allclose(found[:, :K], cov[:, :K], rtol=1e-8, atol=1e-12)


def test_compress_attention_matching_recovers_merged_tokens():
    """Pairs of tokens with one key: the heavier one, with the weight and mean value of both."""
    keys, values, queries = _tokens(n=6)
    keys *= 0.3
    masses = np.concatenate([np.ones(6), np.full(6, 0.25)])
    others = values[::-1] + 1.0
    prompt = lp.KeyValues(np.tile(keys, (2, 1)), np.concatenate([values, others]), np.log(masses))
    small = lp.compress(prompt, queries, atoms=6, method="attention matching")
    weights = np.exp(small.log_weights - small.log_weights[0])
    assert np.allclose(weights, 1, rtol=1e-4)
    assert np.allclose(small.values, (values + 0.25 * others) / 1.25, atol=1e-3)
    assert small.error.mean < 1e-6


def test_compress_attention_matching_if_active_sets_go_round_in_circles(monkeypatch):
    """SciPy's nnls gives up on some heads; bounded least squares has the same minimum."""
    keys, values, queries = _tokens()
    prompt = lp.KeyValues(keys, values)
    want = lp.compress(prompt, queries, atoms=8, method="attention matching")

    def gives_up(*_):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", gives_up)
    small = lp.compress(prompt, queries, atoms=8, method="attention matching")
    got, z = lp.attend(HEAD, small, queries[:9]), queries[:9]
    assert np.allclose(got, lp.attend(HEAD, want, z), rtol=1e-3, atol=1e-3)


def test_compress_random_tokens_are_distinct_and_follow_the_key():
    keys, values, queries = _tokens()
    prompt = lp.KeyValues(keys, values)
    rows = [
        _rows_of(lp.compress(prompt, queries, atoms=20, method="random", key=key), keys)
        for key in (jax.random.key(0), jax.random.key(0), jax.random.key(1))
    ]
    assert len(set(rows[0])) == 20
    assert rows[0] == rows[1] != rows[2]


def _tail(rng, tilt, rank):
    numbers = rng.normal(size=()), rng.normal(size=K + V), rng.normal(size=(K + V, rank))
    return Tail(jnp.asarray(tilt), *map(jnp.asarray, numbers))


def _moments(tail):
    return tail.log_mass, tail.mean, tail.factor @ tail.factor.T


def test_tail_merge_is_associative_and_matches_moments():
    rng = np.random.default_rng(0)
    tilt = rng.normal(size=K)
    a, b, c = (_tail(rng, tilt, rank) for rank in (0, 2, 1))
    found = _moments(a.merge(b).merge(c))
    for got, want in zip(found, _moments(a.merge(b.merge(c))), strict=True):
        assert np.allclose(got, want, rtol=1e-12)
    masses = np.exp([part.log_mass for part in (a, b, c)])
    p = masses / masses.sum()
    means = np.stack([part.mean for part in (a, b, c)])
    second = sum(
        w * (np.asarray(t.factor @ t.factor.T) + np.outer(t.mean, t.mean))
        for w, t in zip(p, (a, b, c), strict=True)
    )
    assert np.allclose(found[0], np.log(masses.sum()))
    assert np.allclose(found[1], p @ means)
    assert np.allclose(found[2], second - np.outer(p @ means, p @ means), atol=1e-12)


def test_tail_moved_to_another_tilt_is_the_same_measure():
    rng = np.random.default_rng(0)
    tail, u = _tail(rng, rng.normal(size=K), 2), jnp.asarray(rng.normal(size=K + V))
    moved = tail.moved_to(rng.normal(size=K))
    assert np.isclose(moved.log_mgf(u), tail.log_mgf(u), rtol=1e-12)
    assert np.allclose(moved.tilted_mean(u), tail.tilted_mean(u), rtol=1e-12)
    full = tail.truncated(2)
    w = jnp.append(u[:K], jnp.zeros(V))
    assert np.allclose(full.tilted_mean(w), tail.tilted_mean(w), rtol=1e-9)


def test_compressed_append_adds_tokens_of_mass_one():
    """The old measure has mass exp(_logits)."""
    keys, values, queries = _tokens()
    new_keys, new_values, _ = _tokens(seed=5, n=4)
    old = lp.compress(lp.KeyValues(keys, values), queries, atoms=3, rank=K)
    longer, z = old.append(new_keys, new_values), queries[0]
    u = jnp.asarray(np.append(z, np.zeros(V)))
    mass, terms = np.exp(old._logits(u)).sum(), np.exp(new_keys @ z)
    total = mass * np.asarray(old.tilted_mean(u))[K:] + terms @ new_values
    want = total / (mass + terms.sum())
    assert np.allclose(lp.attend(HEAD, longer, z), want, rtol=1e-10)
    assert longer.fold(np.arange(3, 7), queries=queries).tail.rank == K


def _with_a_sink():
    """The mass of the tail changes along the first axis of the queries, its values do not.

    Half of the attention goes to token 0, whose value is far from all others.
    """
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(400, K)) * [1.6, 0.4, 0.4]
    values = 0.3 * keys[:, 1:] + 0.05 * rng.normal(size=(400, V))
    queries = rng.normal(size=(80, K)) + np.array([0, 1, 0])
    mean = queries.mean(axis=0)
    keys[0], values[0] = 8 * mean / np.sum(mean**2), 5.0
    exact, _ = _attention(keys, values, queries)

    def error(small):
        squares = np.sum((np.asarray(lp.attend(HEAD, small, queries)) - exact) ** 2)
        return squares / np.sum((exact - values.mean(axis=0)) ** 2)

    return keys, values, queries, error


@pytest.mark.parametrize("given", [True, False])
def test_compressed_truncated_keeps_the_direction_of_the_mass(given):
    """Truncated after the fact, folded or compressed at once: the same direction."""
    keys, values, queries, error = _with_a_sink()
    prompt, z = lp.KeyValues(keys, values), queries if given else None
    lost = error(lp.compress(prompt, queries, atoms=1, rank=0))
    assert error(lp.compress(prompt, queries, atoms=1, rank=1)) < lost / 10
    small = lp.compress(prompt, queries, atoms=1, rank=3)
    assert small.truncated(3) is small
    more = lp.compress(prompt, queries, atoms=5, rank=3)
    sink = int(np.argmax(more.values[:, 0]))
    for found in (
        small.truncated(1, z),
        more.fold(np.delete(np.arange(5), sink), rank=1, queries=z),
    ):
        assert (found.n, found.tail.rank) == (1, 1)
        axis = np.asarray(found.tail.factor)[:K, 0]
        assert abs(axis[0]) > 0.99 * np.linalg.norm(axis)
        assert error(found) < lost / 10


def test_compressed_merge_before_the_tails_are_truncated():
    """The half without the sink cannot know that its mass will count."""
    keys, values, queries, error = _with_a_sink()
    halves = np.s_[:200], np.s_[200:]
    early, late = (
        [lp.compress(lp.KeyValues(keys[s], values[s]), queries, atoms=1, rank=r) for s in halves]
        for r in (1, K)
    )
    lost = error(lp.compress(lp.KeyValues(keys, values), queries, atoms=1, rank=0))
    merged = late[0].merge(late[1])
    assert merged.tail.rank == 2 * K + 1
    found = error(merged.truncated(1, queries))
    assert found < lost / 10
    assert found < error(early[0].merge(early[1])) / 5


def test_tail_truncated_along_the_axis_of_values_or_of_the_mass():
    """Covariances are diagonal: the best axis is that of the larger b^2 + gap s^2 / 2."""
    spread, slopes = np.array([4.0, 1.0]), np.array([0.1, 1.0])  # Cov(k, k), Cov(v, k)
    factor = np.zeros((K + V, 2))
    factor[[0, 1], [0, 1]] = np.sqrt(spread)
    factor[[K, K + 1], [0, 1]] = slopes / np.sqrt(spread)
    tail = Tail(jnp.zeros(K), jnp.zeros(()), jnp.zeros(K + V), jnp.asarray(factor))
    crossing = 2 * (slopes[1] ** 2 - slopes[0] ** 2) / (spread[0] ** 2 - spread[1] ** 2)
    for gap, axis in ((0.0, 1), (0.99 * crossing, 1), (1.01 * crossing, 0), (None, 0)):
        found = np.asarray(tail.truncated(1, gap=gap).factor)
        assert np.isclose(found[axis, 0] ** 2, spread[axis], rtol=1e-12)
        assert np.isclose(found[K + axis, 0] * found[axis, 0], slopes[axis], rtol=1e-12)


def test_compressed_fold_of_many_atoms_is_their_moments():
    """More atoms than dimensions, two of them without mass; no atom at all changes nothing."""
    keys, values, queries = _tokens()
    logs = np.random.default_rng(1).normal(size=N)
    logs[[4, 9]] = -np.inf
    old = lp.compress(lp.KeyValues(keys, values, logs), queries, atoms=30, rank=2, keep=[4, 9])
    folded = old.fold(np.arange(25), rank=20)
    assert (folded.n, folded.tail.rank) == (5, 2 + K + V + 1)
    u = jnp.asarray(np.append(old.tail.tilt, np.zeros(V)))
    (_, mean, cov), (_, whole, whole_cov) = _tilted(folded, u), _tilted(old, u)
    assert np.allclose(mean, whole, rtol=1e-10)
    assert np.allclose(cov, whole_cov, rtol=1e-9, atol=1e-11)
    assert np.array_equal(old.fold([]).tail.factor, old.tail.factor)
    dead = np.flatnonzero(np.asarray(old.log_weights) == -np.inf)
    assert len(dead) == 2
    assert np.allclose(old.fold(dead).tilted_mean(u), old.tilted_mean(u), rtol=1e-12)


def test_compress_of_a_compressed_prompt_keeps_its_mass():
    """200 tokens in 20 centroids, of which 8 are kept, and 5 new tokens of mass 1 each."""
    keys, values, queries = _tokens(n=200)
    prompt = lp.KeyValues(keys, values)
    centroids = lp.compress(prompt, queries, atoms=20, method="centroids")
    assert np.isclose(np.exp(centroids.log_weights).sum(), 200, rtol=1e-9)
    small = lp.compress(centroids, queries, atoms=8, rank=K)
    at = small._logits(jnp.zeros(K + V))
    assert np.isclose(np.exp(at).sum(), 200, rtol=0.05)  # a Gaussian fitted to the queries
    again = lp.compress(centroids, queries, atoms=20)
    assert np.allclose(again.log_weights, centroids.log_weights, rtol=1e-12)
    new = np.array([[2.0, 0, 0]] * 5), np.full((5, V), 7.0)
    exact, _ = _attention(
        *(np.concatenate(pair) for pair in zip((keys, values), new, strict=True)), queries
    )
    errors = [
        np.sum((np.asarray(lp.attend(HEAD, found.append(*new), queries)) - exact) ** 2)
        for found in (centroids, small)
    ]
    assert errors[1] < 1.5 * errors[0]


def test_compressed_merge_is_associative_with_log_weights_on_some_parts():
    """Three parts of a prompt, in any order of merging; one of them has weights."""
    keys, values, queries = _tokens()
    logs = np.random.default_rng(1).normal(size=20)
    thirds = np.s_[:20], np.s_[20:40], np.s_[40:]
    a, b, c = (
        lp.compress(lp.KeyValues(keys[s], values[s], w), queries, atoms=4, rank=1)
        for s, w in zip(thirds, (None, logs, None), strict=True)
    )
    found, same = a.merge(b).merge(c), a.merge(b.merge(c))
    assert (found.n, found.log_weights.shape) == (12, (12,))
    for got, want in zip(_moments(found.tail), _moments(same.tail), strict=True):
        assert np.allclose(got, want, rtol=1e-9)
    z = queries[:5]
    assert np.allclose(lp.attend(HEAD, found, z), lp.attend(HEAD, same, z), rtol=1e-9)
    masses = np.concatenate([np.ones(20), 20 * np.exp(logs) / np.exp(logs).sum(), np.ones(20)])
    exact, _ = _attention(keys, values, queries, masses)
    error = np.sum((np.asarray(lp.attend(HEAD, found, queries)) - exact) ** 2, axis=1).mean()
    error /= np.sum((exact - masses @ values / masses.sum()) ** 2, axis=1).mean()
    assert error < 2 * max(float(part.error.mean) for part in (a, b, c))


def test_compressed_append_and_fold_with_log_weights():
    """New tokens have mass 1 beside weighted ones; folding moves the masses of all."""
    keys, values, queries = _tokens()
    logs = np.random.default_rng(1).normal(size=N)
    old = lp.compress(lp.KeyValues(keys, values, logs), queries, atoms=6, rank=K)
    longer = old.append(keys[:2] + 1.0, values[:2])
    assert np.allclose(longer.log_weights[-2:], 0)
    folded = longer.fold([0, 7], rank=20)
    assert folded.log_weights.shape == (6,)
    u = jnp.asarray(np.append(old.tail.tilt, np.zeros(V)))
    for got, want in zip(_tilted(folded, u)[1:], _tilted(longer, u)[1:], strict=True):
        assert np.allclose(got, want, atol=1e-9)
    totals = [np.exp(np.asarray(part._logits(u))).sum() for part in (folded, longer)]
    assert np.isclose(totals[0], totals[1], rtol=1e-10)


def test_attend_to_another_compressed_prompt_compiles_nothing():
    """Neither for other tokens nor for a longer prompt: errors are data, not part of the type."""
    found = []
    for seed, n in enumerate((N, 200)):
        keys, values, queries = _tokens(seed, n)
        small = lp.compress(lp.KeyValues(keys, values), queries, atoms=5, rank=1)
        with compilations() as seen:
            jax.block_until_ready(lp.attend(HEAD, small, queries[:7]))
        found.append([name for name in seen if "attend" in name])
    assert len(found[0]) == 1
    assert found[1] == []
