"""Exact-in-law sampling, judged by brute force and by the exact moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import largeprompt as lp
from largeprompt.prompts import sampling
from largeprompt.prompts import weighted_sums as _weighted_sums

pytestmark = pytest.mark.slow
KEY = jax.random.key(17)


def _problem(rank=3):
    rng = np.random.default_rng(5)
    factor = 0.6 * rng.normal(size=(3, rank))
    mu = lp.Gaussian(rng.normal(size=3), factor @ factor.T)
    return lp.Head(U=rng.normal(size=(3, 3)), V=rng.normal(size=(2, 3))), mu, rng.normal(size=3)


def _brute_outputs(head, mu, z, L, n):
    one = jax.jit(jax.vmap(lambda key: lp.attend(head, mu.sample(key, L), z)))
    return np.asarray(one(jax.random.split(jax.random.key(23), n)))


def _assert_same_law(first: np.ndarray, second: np.ndarray) -> None:
    """Two-sample tests of mean, covariance and three projections.

    Means and covariances within 5 standard errors (at most 44 numbers), Kolmogorov-Smirnov p above
    1e-6 (3 tests): a false alarm has probability below 3e-5. Keys are fixed.
    """
    n = len(first)
    assert len(second) == n
    gap = first.mean(0) - second.mean(0)
    error = np.sqrt((first.var(0) + second.var(0)) / n)
    assert np.all(np.abs(gap) <= 5 * error + 1e-12)
    products = [
        np.einsum("ni,nj->nij", rows - rows.mean(0), rows - rows.mean(0))
        for rows in (first, second)
    ]
    gap = products[0].mean(0) - products[1].mean(0)
    error = np.sqrt((products[0].var(0) + products[1].var(0)) / n)
    assert np.all(np.abs(gap) <= 5 * error + 1e-12)
    for direction in np.random.default_rng(0).normal(size=(3, first.shape[1])):
        # rounded, so that a law without spread is one point in both samples
        one, other = (np.round(rows @ direction, 9) for rows in (first, second))
        _, p_value = stats.ks_2samp(one, other)
        assert p_value > 1e-6  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize(("L", "rank"), [(1, 3), (2, 3), (30, 3), (30, 1), (30, 0)])
def test_sample_outputs_have_the_law_of_brute_force(L, rank):
    head, mu, z = _problem(max(rank, 1))
    if rank == 0:
        mu = lp.Gaussian(mu.mean(), np.zeros((3, 3)))
    n = 4000
    _assert_same_law(
        np.asarray(lp.sample_outputs(KEY, head, mu, z, L, n)), _brute_outputs(head, mu, z, L, n)
    )


@pytest.mark.parametrize("L", [1, 2, 30])
def test_sample_gradients_have_the_law_of_brute_force(L):
    head, mu, z = _problem()
    y, n = np.array([0.8, -1.3]), 4000
    draws = lp.sample_gradients(KEY, head, mu, z, L, n, cotangent=y)

    def brute(key):
        found = lp.attend_jacobians(head, mu.sample(key, L), z)
        return jnp.einsum("a,ajk->jk", y, found.U), jnp.einsum("a,abj->bj", y, found.V)

    dU, dV = jax.jit(jax.vmap(brute))(jax.random.split(jax.random.key(29), n))

    # every row of dV is a multiple of one mean, and dU = moved z': keep the independent numbers
    def independent(U, V):
        return np.concatenate(
            [np.asarray(U)[:, :, 0] / z[0], np.asarray(V)[:, 0, :] / y[0]], axis=1
        )

    _assert_same_law(independent(*draws), independent(dU, dV))
    assert np.allclose(draws.U, np.asarray(draws.U)[:, :, :1] / z[0] * z, rtol=1e-9, atol=1e-12)
    assert np.allclose(
        np.asarray(draws.V)[:, 1] / y[1], np.asarray(draws.V)[:, 0] / y[0], rtol=1e-9
    )


def test_sample_outputs_of_several_blocks(monkeypatch):
    """L of eight and a half small blocks, a part of the prompts at a time; the mean squared error
    within 5 standard errors of the exact one.

    At this length an output is nearly Gaussian, so 400 prompts average squares of normals: a false
    alarm has probability below 1e-5 (Student's t at 5 with room for the skewness of the mean, about
    0.1).
    """
    head, mu, z = _problem()
    monkeypatch.setattr(_weighted_sums, "_BLOCK", 2**9)
    monkeypatch.setattr(_weighted_sums, "_NUMBERS", 2**14)
    L = 17 * 2**9 - 1  # of a capacity that no other test compiles
    outputs = np.asarray(lp.sample_outputs(KEY, head, mu, z, L, 400))
    squares = np.sum((outputs - np.asarray(lp.attend(head, mu, z))) ** 2, axis=1)
    exact = lp.output_error(head, mu, z, L)
    assert abs(squares.mean() - exact) <= 5 * squares.std() / np.sqrt(len(squares))


def test_sample_outputs_depend_on_key_and_index_only():
    head, mu, z = _problem()
    few, many = (np.asarray(lp.sample_outputs(KEY, head, mu, z, 100, n)) for n in (3, 700))
    assert np.allclose(few, many[:3], rtol=1e-12)
    assert not np.allclose(few, lp.sample_outputs(jax.random.key(1), head, mu, z, 100, 3))


def test_sample_outputs_memory_does_not_grow_with_the_prompt():
    head, mu, z = _problem()

    def work_space(L: int) -> int:
        capacity = sampling.capacity_for(L, sampling._SCORES)
        shared = (KEY, head, mu, jnp.asarray(z), jnp.asarray(L, jnp.uint32))
        lowered = sampling._on_one_device.lower(sampling._outputs, shared, 8, capacity)
        plan = lowered.compile().memory_analysis()
        assert plan is not None
        return plan.temp_size_in_bytes

    assert work_space(100_000_000) <= 1.1 * work_space(1_000_000) + 2**16


def test_sample_outputs_in_float32():
    head, mu, z = _problem()
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), mu)
    draws = lp.sample_outputs(KEY, head, single, z, 50, 4)
    assert draws.dtype == jnp.float32
    assert np.all(np.isfinite(draws))


def test_sample_outputs_rejects_prompts_beyond_32_bits():
    head, mu, z = _problem()
    for call in (
        lambda: lp.sample_outputs(KEY, head, mu, z, 2**32, 1),
        lambda: lp.sample_gradients(KEY, head, mu, z, 2**32, 1, cotangent=np.ones(2)),
        lambda: lp.descend(
            KEY, lp.LinearRegression(np.eye(1)), lp.BlockParams(np.eye(1), 1.0), 2**32, 1, batch=1
        ),
    ):
        with pytest.raises(ValueError, match=r"at most 2\^32 - 1"):
            call()
