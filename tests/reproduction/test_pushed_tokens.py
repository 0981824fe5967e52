"""The exact law of tokens after one layer: special cases with known answers."""

import numpy as np
import pytest

from reproduction.studies import _pushed_tokens


def test_exact_law_at_length_one():
    """One token x is the output at every query: y = z + V x and y' = z' + V x."""
    G, V = np.diag(_pushed_tokens.VARIANCES), _pushed_tokens.VALUES
    mean, cov, shared = _pushed_tokens.exact_law(1.0, 3)
    np.testing.assert_allclose(mean, _pushed_tokens.MEAN + V @ _pushed_tokens.MEAN, rtol=1e-9)
    np.testing.assert_allclose(cov, G + V @ G @ V.T, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(shared, V @ G @ V.T, rtol=1e-8, atol=1e-12)


def test_exact_law_tends_to_the_recursion():
    mean, cov, shared = _pushed_tokens.exact_law(1e9, 2)
    limit_mean, limit_cov = _pushed_tokens.limit_law()
    np.testing.assert_allclose(mean, limit_mean, atol=1e-7)
    np.testing.assert_allclose(cov, limit_cov, atol=1e-6)
    assert 1e-10 < np.trace(shared) < 1e-8


def test_particles_of_self_attention_share_more():
    rng = np.random.default_rng(0)
    (one, error), (other, _) = (
        _pushed_tokens.particles(rng, 16, 1000, themselves=flag)[2] for flag in (True, False)
    )
    extra = _pushed_tokens.reading_each_other()
    assert one[1, 1] - other[1, 1] == pytest.approx(extra[1, 1] / 16, abs=5 * error[1, 1] + 0.02)
    assert one[1, 1] > other[1, 1] + 5 * error[1, 1]
