"""Averages by sums of exponentials against an independent quadrature over the score variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.participation.exponential import LARGEST, exponential_table, moment_functions
from largeprompt.prompts.quadratic_form import Feature, gaussian_average

from ..differences import assert_slopes
from ..oracles.pair import two_token_participation


def _expected(M, Q, L):
    factor, features = np.linalg.cholesky(M).T, [Feature(), Feature((Q,))]
    rule = gaussian_average(np.zeros(len(M)), np.eye(len(M)), factor, features, np.log(L), 2)
    p = lp.participation(np.sqrt(rule.variances), L)
    p2, p3, p22 = (np.asarray(a) for a in (p.p2, p.p3, p.p22))
    return rule.weights @ np.stack([p2, p2 + 6 * p3 - 6 * p22]).T


@pytest.mark.parametrize("L", [1.0, 2.0, 100.0, 1e9])
@pytest.mark.parametrize("scale", [1e-6, 0.01, 0.3, 2.0, 12.0])
@pytest.mark.slow
def test_exponential_table_averages_over_a_gaussian_vector(L, scale):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 3, 3))
    M, Q = A @ A.T, B @ B.T
    M = scale * M / np.linalg.norm(M)
    ones, forms = exponential_table(L).averages(jnp.asarray(M), jnp.asarray(Q[None]))
    expected = _expected(M, Q, L)
    np.testing.assert_allclose(ones, expected[0], rtol=1e-8)
    np.testing.assert_allclose(forms[:, 0], expected[1], rtol=1e-8)


@pytest.mark.parametrize("sigma", [20.0, 60.0])
def test_moment_functions_of_two_tokens_at_large_scores(sigma):
    """Beyond the range of `participation`, against one-dimensional integrals in 25 digits."""
    P = {name: float(value) for name, value in two_token_participation(sigma).items()}
    expected = [P["P2"], P["P2"] + 6 * P["P3"] - 6 * P["P22"]]
    np.testing.assert_allclose(moment_functions(np.array([sigma]), 2.0)[:, 0], expected, atol=1e-10)


@pytest.mark.parametrize("L", [2.0, 1e9])
def test_exponential_table_averages_at_large_scores(L):
    """E[h(lambda x^2)] and E[h(lambda x^2) x^2] for one x by panels that shrink towards 0."""
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.concatenate([[0.0], np.geomspace(1e-6, 12.0, 120)])
    centres, halves = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x, w = (centres[:, None] + halves[:, None] * x).ravel(), (halves[:, None] * w).ravel()
    w = w * 2 * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    for size in (100.0, 0.9 * LARGEST):
        h = moment_functions(np.sqrt(size) * x, L)
        ones, forms = exponential_table(L).averages(jnp.array([[size]]), jnp.ones((1, 1, 1)))
        np.testing.assert_allclose(ones, h @ w, rtol=1e-8)
        np.testing.assert_allclose(forms[:, 0], h @ (w * x**2), rtol=1e-8)


def test_exponential_table_derivatives_agree_with_differences():
    table = exponential_table(50.0)
    rng = np.random.default_rng(1)
    A, D = rng.normal(size=(2, 3, 3)) / 2

    def value(t):
        root = jnp.asarray(A) + t * jnp.asarray(D)
        return table.averages(root @ root.T, jnp.eye(3)[None])[1][1, 0]

    first, second = jax.jit(jax.grad(value)), jax.jit(jax.grad(jax.grad(value)))
    assert_slopes(value, [0.1], [first(0.1)], step=1e-4)
    assert_slopes(first, [0.1], [second(0.1)], step=1e-4)


def test_exponential_table_is_nan_out_of_range_and_zero_at_infinity():
    outside = exponential_table(10.0).averages(2 * LARGEST * jnp.eye(1), jnp.eye(1)[None])
    assert np.all(np.isnan(outside[0]))
    limit = exponential_table(np.inf).averages(jnp.eye(2), jnp.eye(2)[None])
    assert np.all(np.asarray(limit[0]) == 0)
    assert np.all(np.asarray(limit[1]) == 0)
