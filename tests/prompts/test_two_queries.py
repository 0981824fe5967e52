# pyright: reportArgumentType=false
"""`output_covariance` against sampled prompts, the one-query moments and closed forms."""

import jax
import numpy as np
import pytest

import largeprompt as lp

from ..differences import assert_slopes

RNG = np.random.default_rng(1)
ROOT = 0.7 * RNG.normal(size=(3, 2))  # a singular covariance
MEAN, COVARIANCE = RNG.normal(size=3), ROOT @ ROOT.T
HEAD = lp.Head(U=0.6 * RNG.normal(size=(3, 3)), V=RNG.normal(size=(2, 3)))
MU = lp.Gaussian(MEAN, COVARIANCE)
Z, Z2 = RNG.normal(size=(2, 3))
U, V = np.asarray(HEAD.U), np.asarray(HEAD.V)


def sampled_outputs(tokens: np.ndarray, z: np.ndarray) -> np.ndarray:
    scores = tokens @ (U @ z)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("nl,nld->nd", weights, tokens) @ V.T


@pytest.mark.parametrize("L", [2, 12])
def test_output_covariance_by_simulation(L):
    """Eight comparisons at 4.5 standard errors: a false alarm in fewer than 1 of 15,000 seeds."""
    rng = np.random.default_rng(L)
    tokens = MEAN + rng.normal(size=(100_000, L, 2)) @ ROOT.T
    first, second = (sampled_outputs(tokens, z) for z in (Z, Z2))
    products = (first - first.mean(0))[:, :, None] * (second - second.mean(0))[:, None, :]
    deviation = products.std(0) / np.sqrt(len(products))
    found = lp.output_covariance(HEAD, MU, Z, Z2, L)
    assert np.all(np.abs(found - products.mean(0)) < 4.5 * deviation)


def test_output_covariance_of_one_query_is_that_of_its_second_moment():
    queries, L = np.stack([Z, 2.5 * Z2]), np.array([[1.0], [3.0], [50.0]])
    mean = lp.finite_mean(HEAD, MU, queries, L)
    expected = (
        lp.finite_second_moment(HEAD, MU, queries, L) - mean[..., :, None] * mean[..., None, :]
    )
    found = lp.output_covariance(HEAD, MU, queries, queries, L)
    assert found.shape == (3, 2, 2, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_output_covariance_of_queries_in_the_other_order():
    found, other = (lp.output_covariance(HEAD, MU, *z, 20) for z in ((Z, Z2), (Z2, Z)))
    np.testing.assert_allclose(found, np.asarray(other).T, rtol=1e-10)


def test_output_covariance_at_length_one_and_infinity():
    one, infinite = lp.output_covariance(HEAD, MU, Z, Z2, np.array([1.0, np.inf]))
    np.testing.assert_allclose(one, V @ COVARIANCE @ V.T, rtol=1e-10)
    assert not np.any(infinite)


def test_output_covariance_with_the_mean_of_the_tokens():
    """The zero query reads the mean of the prompt: covariance V G V'/L with any other query."""
    found = lp.output_covariance(HEAD, MU, Z, np.zeros(3), 30)
    np.testing.assert_allclose(found, V @ COVARIANCE @ V.T / 30, rtol=1e-10)


def test_output_covariance_of_long_prompts():
    """L Cov tends to the covariance of the influence functions e^{s - sigma^2/2} (V x - T)."""
    L, a, b = 1e9, COVARIANCE @ U @ Z, COVARIANCE @ U @ Z2
    expected = np.exp((U @ Z) @ b) * V @ (COVARIANCE + np.outer(b, a)) @ V.T
    found = L * lp.output_covariance(HEAD, MU, Z, Z2, L)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_output_covariance_in_one_dimension():
    """Scores are parallel; opposite queries, for which T_L(-z) of -x is -T_L(z) of x."""
    head, mu = lp.Head(U=[[1.0]], V=[[1.0]]), lp.Gaussian([0.0], [[1.0]])
    found = lp.output_covariance(head, mu, [[1.0], [-1.0]], [[-0.5], [0.5]], 10)
    assert found[0, 0, 0] == pytest.approx(float(found[1, 0, 0]), rel=1e-10)
    twice = lp.Mixture([1, 1], [mu, mu])  # by the engine
    expected = lp.output_covariance(head, twice, [1.0], [-0.5], 10)
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)


@pytest.mark.slow
def test_output_covariance_of_all_pairs_of_two_batches():
    z = np.stack([Z, 0.3 * Z2, -Z])
    table = lp.output_covariance(HEAD, MU, z[:, None], z, 10.0)
    assert table.shape[:2] == (3, 3)
    for i, j in np.ndindex(3, 3):
        one = lp.output_covariance(HEAD, MU, z[i], z[j], 10.0)
        np.testing.assert_allclose(table[i, j], one, rtol=1e-9, atol=1e-12)
    along = lp.output_covariance(HEAD, MU, Z, Z2, np.array([[3.0], [10.0]]))
    np.testing.assert_allclose(along[1, 0], lp.output_covariance(HEAD, MU, Z, Z2, 10.0), rtol=1e-9)


@pytest.mark.slow
def test_output_covariance_under_jit_and_grad():
    def total(z, z2):
        return lp.output_covariance(HEAD, MU, z, z2, 10.0).sum()

    traced = jax.jit(jax.value_and_grad(total))
    for z2 in (Z2, Z):  # scores that are equal too
        value, slope = traced(Z, z2)
        np.testing.assert_allclose(value, total(Z, z2), rtol=1e-11)
        assert_slopes(total, (Z, z2), [slope], step=1e-4, rtol=1e-5)
