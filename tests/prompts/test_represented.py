"""Prompts of tokens represented by points, whose limit is known: against exact averages of the
same law, or own quadrature.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import ndtri
from scipy.integrate import quad

import largeprompt as lp

METHOD = lp.QuasiMonteCarlo(jax.random.key(0))
UNIT = lp.Head(U=[[1.0]], V=[[1.0]])
NORMAL = lp.Gaussian([0.0], [[1.0]])
SHORT = np.array([1.0, 2.0, 5.0, 30.0])


class _Normal(lp.AbstractAutodiffMeasure):
    """N(0, 1), whose tilts cannot be sampled."""

    dim: int = 1

    def log_mgf(self, u: Any):
        return jnp.sum(u**2) / 2

    def sample(self, key, n):
        return lp.Empirical(jax.random.normal(key, (n, 1)))

    @property
    def uniforms_needed(self):
        return 1

    def from_uniforms(self, uniforms):
        return ndtri(uniforms)


class _Exponential(_Normal):
    """Centred exponential tokens: psi is finite below 1."""

    def log_mgf(self, u):
        return -jnp.sum(jnp.log1p(-u)) - jnp.sum(u)

    def in_domain(self, u: Any):
        return jnp.all(u < 1)

    def sample(self, key, n):
        return lp.Empirical(jax.random.exponential(key, (n, 1)) - 1)

    def from_uniforms(self, uniforms):
        return -jnp.log1p(-uniforms) - 1


QUANTITIES = [
    lp.Output(),
    lp.SecondMoment(),
    lp.OutputError(),
    lp.OutputError(to="linear"),
    lp.GradientError("V"),
    lp.GradientError("U"),
]


@pytest.mark.slow
@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda q: q.label + getattr(q, "to", ""))
@pytest.mark.parametrize("u", [2.0, 5.0])
def test_expect_of_points_uses_the_known_limit(quantity, u):
    """The points reach 3.5 and the limit is u: within five errors at every length, the error at
    L = 1 and the limit exactly, and output errors of short prompts to 5 per cent.
    """
    lengths = np.append(SHORT, [1e3, 1e6, np.inf])
    found = lp.expect(quantity, UNIT, _Normal(), [u], lengths, METHOD)
    exact = np.asarray(lp.expect(quantity, UNIT, NORMAL, [u], lengths).value)
    assert np.all(np.abs(found.value - exact) <= 5 * found.error + 1e-12)
    np.testing.assert_allclose(found.value[[0, -1]], exact[[0, -1]], rtol=1e-12, atol=1e-12)
    assert np.all(found.error[[0, -1]] <= 1e-12 * (1 + np.abs(exact[[0, -1]])))
    if quantity.label == "output":
        np.testing.assert_allclose(found.value[:4], exact[:4], rtol=0.05)


def test_output_error_of_represented_tokens_near_the_end_of_their_domain():
    """Two tokens y, y' ~ Exp(1) with weights at u = .98, T = 49: E (T_2 - T)^2 by quadrature."""
    u, limit = 0.98, 49.0

    def of_gap(d):
        # y - y' = d > 0; the smaller one is Exp(2), the output is it + d p - 1
        p = 1 / (1 + np.exp(-u * d))
        mean = 0.5 + d * p - 1 - limit
        return np.exp(-d) * (mean**2 + 0.25)

    exact = quad(of_gap, 0, 60, epsabs=1e-10)[0]
    found = lp.expect(lp.OutputError(), UNIT, _Exponential(), [u], [1.0, 2.0], METHOD)
    assert found.value[0] == pytest.approx(1 + limit**2, rel=1e-12)
    assert abs(found.value[1] - exact) < 5 * found.error[1] < 0.05 * exact


@pytest.mark.slow
def test_expect_of_points_over_queries_uses_the_known_limit():
    """Several queries at once, each with its own points."""
    nu = lp.Empirical([[2.0], [-1.0], [4.0]], [0.5, 0.3, 0.2])
    found = lp.expect(lp.OutputError(), UNIT, _Normal(), nu, np.append(SHORT, np.inf), METHOD)
    exact = np.asarray(lp.output_error(UNIT, NORMAL, nu, np.append(SHORT, np.inf)))
    assert np.all(np.abs(found.value - exact) <= 5 * found.error + 1e-12)
    np.testing.assert_allclose(found.value[:3], exact[:3], rtol=0.05)
    limit = lp.expect(lp.SecondMoment(), UNIT, _Normal(), nu, np.inf, METHOD)
    np.testing.assert_allclose(limit.value, [[0.5 * 4 + 0.3 + 0.2 * 16]], rtol=1e-12)
    assert limit.error < 1e-12


def test_gradient_error_of_represented_tokens_at_the_query_zero():
    """dT/dU is proportional to the query."""
    found = lp.expect(lp.GradientError("U"), UNIT, _Normal(), [0.0], np.append(SHORT, 1e3), METHOD)
    assert np.all(found.value == 0)
    assert np.all(found.error == 0)


def test_finite_mean_of_represented_tokens_without_a_limit():
    """Two exponential tokens at u = 1.5, where E e^(ux) is infinite: E T_2 by quadrature."""
    exact = quad(lambda d: np.exp(-d) * (0.5 + d / (1 + np.exp(-1.5 * d)) - 1), 0, 60)[0]
    found = lp.expect(lp.Output(), UNIT, _Exponential(), [1.5], [1.0, 2.0], METHOD)
    assert found.value[0, 0] == pytest.approx(0.0, abs=1e-12)
    assert abs(found.value[1, 0] - exact) < 5 * found.error[1, 0]
    assert found.value[1, 0] == pytest.approx(exact, abs=0.01)
    with pytest.raises(ValueError, match="U z must lie in the domain"):
        lp.expect(lp.Output(), UNIT, _Exponential(), [1.5], np.inf, METHOD)
