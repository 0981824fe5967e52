"""Derivatives where scores do not vary (U = 0, or u'Gu = 0), against central differences."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.participation import gradient_moments, pair_moments

EYE, Z, L = jnp.eye(2), jnp.ones(2), 10
STEP = 1e-3


def _tokens():
    return lp.Gaussian(jnp.zeros(2), EYE)


def _average(name, s):
    head, mu = lp.Head(U=s * EYE, V=EYE), _tokens()
    if name == "gradient_error":
        found = lp.gradient_error(head, mu, Z, L)
        return jnp.stack([found.U, found.V])
    return {"output_error": lp.output_error, "finite_second_moment": lp.finite_second_moment}[name](
        head, mu, Z, L
    ).sum()


@lru_cache
def _second_derivative(name):
    """One program: one derivative after the other, outside jit, compiles dozens."""
    return np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(partial(_average, name))))(0.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["output_error", "finite_second_moment", "gradient_error"])
def test_second_derivative_at_zero_scores_against_differences(name):
    values = [np.asarray(_average(name, s)) for s in (-STEP, 0.0, STEP)]
    expected = (values[0] - 2 * values[1] + values[2]) / STEP**2
    np.testing.assert_allclose(_second_derivative(name), expected, rtol=1e-4)


def test_output_error_second_derivative_at_zero_scores_by_hand():
    """sigma^2 = 2 s^2: 8 dP_2/dsigma^2 + 4 (P_2 - 6 P_3 + 6 P_22) = 0.72 + 0.4 at L = 10."""
    assert float(_second_derivative("output_error")) == pytest.approx(1.12, abs=1e-9)


@pytest.mark.slow
def test_derivative_in_a_singular_covariance_against_differences():
    def f(e):
        mu = lp.Gaussian(jnp.zeros(2), jnp.diag(jnp.stack([1.0, e])), check=False)
        head, z = lp.Head(U=EYE, V=EYE), jnp.array([0.0, 1.0])
        return jnp.stack([lp.output_error(head, mu, z, L), lp.gradient_error(head, mu, z, L).U])

    at = [np.asarray(f(jnp.float64(e))) for e in (0.0, STEP, 2 * STEP)]
    expected = (4 * at[1] - at[2] - 3 * at[0]) / (2 * STEP)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(0.0), expected, rtol=1e-4)


@pytest.mark.slow
def test_pair_moments_derivatives_at_zero_against_differences():
    """Two scores t a_i and t b_i: the second derivative in t of E C_11 at t = 0."""

    def f(t):
        return pair_moments(t, 2 * t, 0.5, 10.0).c11

    values = [float(f(s)) for s in (0.0, STEP)]
    expected = 2 * (values[1] - values[0]) / STEP**2
    assert float(jax.jit(jax.jacfwd(jax.jacfwd(f)))(0.0)) == pytest.approx(expected, rel=1e-4)


def test_gradient_moments_quotients_against_their_definition():
    m = gradient_moments(0.4, 7.0)
    distinct = m.p2 - 2 * m.p3 + m.p22
    assert float(m.linear) == pytest.approx(float((m.dispersion - distinct) / 0.16), rel=1e-9)
    crossed = (m.dispersion - m.p22 - distinct - m.coupling) / 0.16
    assert float(m.crossed) == pytest.approx(float(crossed), rel=1e-9)
    quadratic = m.variance_error - 4 * m.dispersion + m.p22 + 2 * distinct + 2 * m.coupling
    assert float(m.quadratic) == pytest.approx(float(quadratic / 0.16**2), rel=1e-8)


def test_sample_outputs_has_no_derivative_where_scores_do_not_vary():
    """The score says in which direction tokens move; without it NaN, not a wrong number."""

    def f(s):
        head = lp.Head(U=s * EYE, V=EYE)
        return lp.sample_outputs(jax.random.key(0), head, _tokens(), Z, 10, 64).mean(0).sum()

    assert np.isnan(jax.grad(f)(0.0))
    assert np.isfinite(jax.grad(f)(1e-3))
