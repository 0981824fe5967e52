"""Mean spectra of Wishart matrices, against moments, brute force and sampled matrices."""

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import largeprompt as lp
from largeprompt.icl.wishart import wishart_spectrum


@pytest.mark.parametrize("L", [1, 2, 7])
def test_wishart_spectrum_of_one_dimension_is_chi_squared(L):
    values, weights = wishart_spectrum(1, L)
    expected = integrate.quad(
        lambda v: 2 * v * stats.chi2.pdf(v * v, L) / (0.1 + v * v), 0, 20, epsabs=1e-13
    )[0]
    assert weights @ (1 / (0.1 + values)) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("L", [2, 5])
def test_wishart_spectrum_of_two_dimensions_against_the_joint_density(L):
    values, weights = wishart_spectrum(2, L)
    v, w = np.polynomial.legendre.leggauss(400)
    v, w = 6 * (v + 1), 6 * w
    x, y = v[:, None], v[None, :]
    # below the diagonal only, where the density is smooth: y from 0 to x
    y, w_y = x * v[None, :] / 12, x * w[None, :] / 12
    density = (x**2 - y**2) * (x * y) ** (L - 2) * np.exp(-(x**2 + y**2) / 2) * w[:, None] * w_y
    f = 1 / (0.3 + x**2) + 1 / (0.3 + y**2)
    expected = np.sum(density * f) / np.sum(density)
    assert weights @ (1 / (0.3 + values)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("d", "L"), [(3, 2), (5, 5), (8, 20), (32, 33), (64, 96), (33, 10**6)])
def test_wishart_spectrum_has_known_moments(d, L):
    values, weights = wishart_spectrum(d, L)
    assert weights.sum() == pytest.approx(d, rel=1e-12)
    assert weights @ values == pytest.approx(d * L, rel=1e-12)
    assert weights @ values**2 == pytest.approx(d * L * (L + d + 1), rel=1e-12)
    if d + 1 < L:
        inverse = weights[1:] @ (1 / values[1:])
        assert inverse == pytest.approx(d / (L - d - 1), rel=1e-10)


@pytest.mark.parametrize(("d", "L"), [(4, 3), (3, 9)])
def test_bayes_risk_of_isotropic_tasks_is_exact(d, L):
    """Within 5 standard errors of sampled matrices: false alarms below 1e-5."""
    task = lp.LinearRegression(2 * np.eye(d), 0.3 * np.eye(d), 0.2, query_cov=0.5 * np.eye(d))
    found = task.bayes_risk(L)
    sampled = task.bayes_risk(L, lp.MonteCarlo(jax.random.key(0)))
    assert abs(float(found.value - sampled.value)) <= 5 * float(sampled.error)
    assert float(found.error) < 1e-11
    assert type(found.method) is lp.Exact


def test_bayes_risk_without_noise_is_what_the_prompt_does_not_show():
    plain = lp.LinearRegression(np.eye(4))
    for L, left in ((1, 3), (3, 1), (4, 0), (9, 0)):
        assert float(plain.bayes_risk(L).value) == pytest.approx(left / 2, abs=1e-12)
    blind = lp.LinearRegression(np.zeros((2, 2)), query_cov=np.eye(2))
    assert float(blind.bayes_risk(5).value) == pytest.approx(1.0)


@pytest.mark.parametrize("d", [1, 4, 30])
@pytest.mark.parametrize("share", [1e-6, 1.0, 1e3])
def test_bayes_risk_of_long_prompts_agrees_with_the_spectrum(d, share):
    """From 1e8 d tokens on the spectrum is not integrated; all that is not known is noise."""
    L = 10**8 * d
    values, weights = wishart_spectrum(d, L)
    left = weights[1:] @ (share * L / (share * L + values[1:]))
    noise = 1e-3
    task = lp.LinearRegression(np.eye(d), noise / (share * L) * np.eye(d), noise, np.eye(d) * L)
    expected = (noise + noise / share * left) / 2
    assert float(task.bayes_risk(L).value) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("L", [1e20, 1e30, 1e100])
def test_bayes_risk_of_the_longest_prompts_is_the_noise(L):
    assert float(lp.LinearRegression(np.eye(3), noise_variance=0.2).bayes_risk(L).value) == 0.1
