"""Engines agree with each other for every block size, under jit too, and use bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.attention import engines
from largeprompt.measures import tilted_moments


def _prompt(n, d=3, weighted=True, dtype: type = np.float64):
    rng = np.random.default_rng(n)
    weights = rng.uniform(size=n) if weighted else None
    return lp.Empirical(rng.normal(size=(n, d)).astype(dtype), weights)


@pytest.mark.parametrize("n", [1, 37, 400])
@pytest.mark.parametrize("block_size", [5, 37, 1000])
@pytest.mark.parametrize("weighted", [False, True])
def test_empirical_moments_streamed_equals_dense(n, block_size, weighted):
    """Stated tolerance: 1e-12 in float64 for every field of the summary."""
    prompt = _prompt(n, weighted=weighted)
    tilts = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)) * 3)
    dense = engines.empirical_moments(prompt, tilts, with_cov=True, engine="dense")
    streamed = engines.empirical_moments(
        prompt, tilts, with_cov=True, engine="streamed", block_size=block_size
    )
    for got, want in zip(jax.tree.leaves(streamed), jax.tree.leaves(dense), strict=True):
        assert np.allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [3_000, 20_000, 20_011])
def test_empirical_moments_in_float32_agree_with_float64(length):
    """Tolerance: 2e-6 of the tokens' scale, also for lengths without a divisor near 1000."""
    prompt = _prompt(length, dtype=np.float32, weighted=False)
    exact = lp.Empirical(np.asarray(prompt.points, dtype=np.float64))
    for queries in (1, 3, 40):
        tilts = np.random.default_rng(2).normal(size=(queries, 3))
        want = tilted_moments(exact.points, None, jnp.asarray(tilts)).mean
        for engine in ("dense", "streamed", "fused"):
            got = engines.empirical_moments(
                prompt, jnp.asarray(tilts, jnp.float32), engine=engine
            ).mean
            assert got.dtype == jnp.float32
            error = np.max(np.abs(np.asarray(got, np.float64) - want))
            assert error <= 2e-6 * np.max(np.abs(exact.points))


def test_tilted_moments_merge_is_associative_and_commutative():
    rng = np.random.default_rng(3)
    tilts = jnp.asarray(rng.normal(size=(2, 3)))
    a, b, c = (
        tilted_moments(jnp.asarray(rng.normal(size=(k, 3))), None, tilts, with_cov=True)
        for k in (3, 5, 2)
    )
    nothing = tilted_moments(
        jnp.asarray(rng.normal(size=(4, 3))), jnp.full(4, -jnp.inf), tilts, with_cov=True
    )
    pairs = [
        (a.merge(b).merge(c), a.merge(b.merge(c))),
        (a.merge(b), b.merge(a)),
        (a.merge(nothing), a),
        (nothing.merge(a), a),
    ]
    for left, right in pairs:
        for got, want in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            assert np.allclose(got, want, rtol=1e-13, atol=1e-14)


def test_empirical_moments_auto_chooses_by_size(monkeypatch):
    prompt, tilts = _prompt(50), jnp.ones((4, 3))
    chosen = []
    streamed = engines._streamed
    monkeypatch.setattr(
        engines, "_streamed", lambda *a, **k: chosen.append(k["block_size"]) or streamed(*a, **k)
    )
    engines.empirical_moments(prompt, tilts)
    assert chosen == []
    monkeypatch.setattr(engines, "_DENSE_SCORES", 100)
    engines.empirical_moments(prompt, tilts)
    assert chosen == [50]


def test_empirical_moments_streamed_memory_is_bounded():
    """XLA's temporary memory for 200 queries is equal for 1e5 and 1e6 tokens and small."""

    def work_space(n: int) -> int:
        tokens = engines.Tokens(jnp.zeros((n, 8), jnp.float32), None, None)
        tilts = jnp.zeros((200, 8), jnp.float32)
        lowered = engines._streamed.lower(tokens, tilts, with_cov=False, block_size=10_000)
        plan = lowered.compile().memory_analysis()
        assert plan is not None
        return plan.temp_size_in_bytes

    small, large = work_space(100_000), work_space(1_000_000)
    assert large <= 1.1 * small + 2**20
    assert large < 200 * 1_000_000 * 4 / 10


@pytest.mark.parametrize("queries", [1, 3])
def test_attend_gradients_agree_between_engines(queries):
    prompt = _prompt(60)
    tilts = jnp.asarray(np.random.default_rng(4).normal(size=(queries, 3)))

    def loss(points, tilts, engine):
        moments = engines.empirical_moments(
            lp.Empirical(points),
            tilts,
            engine=engine,
            block_size=7 if engine == "streamed" else None,
        )
        return jnp.sum(moments.mean**2) + jnp.sum(moments.log_normaliser)

    for argument in (0, 1):
        dense, streamed = (
            jax.jit(jax.grad(loss, argnums=argument), static_argnums=2)(
                prompt.points, tilts, engine
            )
            for engine in ("dense", "streamed")
        )
        assert np.allclose(dense, streamed, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ["auto", "dense", "streamed", "fused"])
def test_attend_without_queries_returns_no_outputs(engine):
    head = lp.Head(U=np.eye(3, dtype=np.float32), V=np.ones((2, 3), np.float32))
    prompt = _prompt(5000, dtype=np.float32, weighted=False)
    for shape in ((0, 3), (2, 0, 3)):
        found = lp.attend(head, prompt, np.zeros(shape, np.float32), engine=engine)
        assert found.shape == (*shape[:-1], 2)
