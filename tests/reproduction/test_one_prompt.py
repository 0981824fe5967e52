"""The p-values and the confidence region by hand of the study of one prompt."""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binom

from reproduction.studies import one_prompt


def test_at_least_p_is_the_smallest_binomial_p_value():
    shares = xr.DataArray([0.9, 0.5, np.nan], dims="case")
    prompts = xr.DataArray([10, 20, 30], dims="case")
    expected = 2 * min(binom.cdf(9, 10, 0.8), binom.cdf(10, 20, 0.8))
    assert one_prompt._at_least_p(shares, prompts, 0.8) == pytest.approx(expected)
    assert one_prompt._at_most_p(shares, prompts, 0.95) == 1.0
    assert one_prompt._at_most_p(shares, prompts, 0.2) < 1e-4


def test_inside_is_the_ellipse_of_the_weighted_residuals():
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((3, 40, 2)), np.array([[0.7, -0.2]])
    for tokens, prompt in zip(x, x[:, None], strict=True):
        p = np.exp(tokens @ z[0]) / np.exp(tokens @ z[0]).sum()
        T = p @ tokens
        C = (p**2 * (tokens - T).T) @ (tokens - T)
        edge = np.linalg.cholesky(C) @ [0.6, 0.8]
        for factor, inside in [(1.99, True), (2.01, False)]:
            found = one_prompt._inside(prompt, z, T[None] + factor * edge, 2.0)
            assert found.tolist() == [[inside]]
