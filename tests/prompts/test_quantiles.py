"""Quantiles of |T_L - T| over prompts, against laws that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm

import largeprompt as lp

pytestmark = pytest.mark.slow
KEY = jax.random.key(9)
LEVELS = (0.1, 0.5, 0.95)
MEAN = lp.Head(U=[[0.0]], V=[[2.0]])  # all scores are equal: T_L is twice the mean of the tokens
GAUSSIAN = lp.Gaussian([0.7], [[1.0]])


def _exact(L: float) -> np.ndarray:
    """Quantiles of |N(0, 4/L)|."""
    return norm.ppf((1 + np.array(LEVELS)) / 2) * 2 / np.sqrt(L)


@pytest.mark.parametrize("whole_tokens", [False, True])
def test_error_quantiles_of_a_normal_law(whole_tokens):
    """5 standard errors: a false alarm has probability below 1e-5."""
    method = lp.MonteCarlo(KEY, max_replicates=4096, whole_tokens=whole_tokens)
    found = lp.expect(lp.ErrorQuantiles(LEVELS), MEAN, GAUSSIAN, [[1.0], [2.0]], 9, method)
    assert found.value.shape == found.error.shape == (2, 3)
    assert np.all(np.abs(found.value - _exact(9)) < 5 * found.error)
    assert np.all(found.error < 0.1 * _exact(9))


def test_error_quantiles_over_a_law_of_queries():
    method = lp.MonteCarlo(KEY, max_replicates=4096)
    found = lp.expect(lp.ErrorQuantiles(LEVELS), MEAN, GAUSSIAN, GAUSSIAN, 9, method)
    assert np.all(np.abs(found.value - _exact(9)) < 5 * found.error)


def test_error_quantiles_of_discrete_tokens():
    """Three tokens out of {0, 1}: all outputs and their probabilities are listed. The levels are
    far from the jumps of the distribution function, so the sampled quantile is the exact one.
    """
    share, tilt, L = 0.4, 0.8, 3
    ones = np.arange(L + 1)
    outputs = ones * np.exp(tilt) / (ones * np.exp(tilt) + L - ones)
    limit = share * np.exp(tilt) / (share * np.exp(tilt) + 1 - share)
    order = np.argsort(np.abs(outputs - limit))
    below = np.cumsum(binom.pmf(ones, L, share)[order])
    levels = (np.concatenate([[0.0], below[:-1]]) + below) / 2
    head, mu = lp.Head(U=[[tilt]], V=[[1.0]]), lp.Empirical([[0.0], [1.0]], [1 - share, share])
    method = lp.MonteCarlo(KEY, max_replicates=4096)
    found = lp.expect(lp.ErrorQuantiles(levels), head, mu, [1.0], L, method)
    assert found.value == pytest.approx(np.abs(outputs - limit)[order], rel=1e-12)


def test_error_quantiles_errors_are_standard_errors():
    """Two errors enclose the true quantile in 95% of 3,000 samples, within 5 deviations (a false
    alarm below 1e-6) and a tolerance of 1.5% for the noise of the error itself.
    """
    quantity, rng = lp.ErrorQuantiles(LEVELS), np.random.default_rng(2)
    found = [quantity.summary(rng.exponential(size=(512, 1))) for _ in range(3000)]
    exact = -np.log1p(-np.array(LEVELS))
    inside = np.mean([np.abs(value - exact) < 2 * error for value, error in found], axis=0)
    assert np.all(np.abs(inside - 0.9545) < 5 * np.sqrt(0.05 * 0.95 / 3000) + 0.015)


def test_error_quantiles_of_too_few_prompts_have_no_error():
    values = np.arange(100.0)
    value, error = lp.ErrorQuantiles([0.5, 0.99]).summary(values[:, None])
    assert value.tolist() == [49.5, 98.01]
    assert error.tolist() == [(59 - 39) / 4, np.inf]


def test_error_quantiles_sample_until_the_error_is_reached():
    coarse, fine = (
        lp.expect(
            lp.ErrorQuantiles(0.9), MEAN, GAUSSIAN, [1.0], 9, lp.MonteCarlo(KEY, relative_error=r)
        )
        for r in (0.1, 0.02)
    )
    assert fine.value.shape == ()
    assert fine.error <= 0.02 * fine.value < coarse.error <= 0.1 * coarse.value


def test_error_quantiles_of_the_infinite_prompt_are_zero():
    points, sampled = [[1.0], [2.0]], lp.MonteCarlo(KEY)
    for z, shape, method in (
        (points, (2, 3), lp.Exact()),
        (points, (2, 3), sampled),
        (GAUSSIAN, (3,), sampled),
    ):
        found = lp.expect(lp.ErrorQuantiles(LEVELS), MEAN, GAUSSIAN, z, jnp.inf, method)
        assert found.value.shape == found.error.shape == shape
        assert not np.any([found.value, found.error])
