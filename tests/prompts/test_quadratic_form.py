"""The average over Gaussian queries against closed forms that share nothing with the contour:
E[q(z) e^{-cS}] by completing the square.
"""

import numpy as np
import pytest

from largeprompt.prompts.quadratic_form import Feature, gaussian_average


def _product_mean(factors, m, Sig):
    """E prod z'Q z for z ~ N(m, Sig), by Gauss-Hermite over the eigenbasis."""
    values, axes = np.linalg.eigh(Sig)
    x, w = np.polynomial.hermite_e.hermegauss(5)
    grid = np.stack(np.meshgrid(*[x] * len(m), indexing="ij"), -1).reshape(-1, len(m))
    weights = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * len(m), indexing="ij"), -1), -1).ravel()
    z = m + (grid * np.sqrt(values)) @ axes.T
    powers = [np.einsum("ni,ij,nj->n", z, Q, z) for Q in factors]
    return weights @ np.prod([np.ones(len(z)), *powers], axis=0)


def _expected(a, C, M, factors, c):
    """E[q(z) (1 - e^{-cS})]."""
    inverse = np.linalg.inv(C)
    Sig = np.linalg.inv(inverse + 2 * c * M)
    m = Sig @ inverse @ a
    log_mass = (m @ np.linalg.solve(Sig, m) - a @ inverse @ a) / 2
    log_mass += (np.linalg.slogdet(Sig)[1] - np.linalg.slogdet(C)[1]) / 2
    return _product_mean(factors, a, C) - np.exp(log_mass) * _product_mean(factors, m, Sig)


@pytest.mark.parametrize("shift", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_gaussian_average_of_polynomials_times_exponentials(d, shift):
    rng = np.random.default_rng(d)
    A, B, Q = rng.normal(size=(3, d, d))
    a, C, M = shift * rng.normal(size=d), A @ A.T / d + 0.1 * np.eye(d), B @ B.T / d
    eye, Q = np.eye(d), Q @ Q.T
    families = [(), (eye,), (eye, Q), (eye, Q, M)]
    rule = gaussian_average(a, C, B.T / np.sqrt(d), [Feature(f) for f in families], np.log(1e12), 1)
    for c in (0.2, 1.0):
        found = rule.weights @ -np.expm1(-c * rule.variances)
        expected = [_expected(a, C, M, f, c) for f in families]
        np.testing.assert_allclose(found, expected, rtol=2e-10)
        coarse = rule.coarse @ -np.expm1(-c * rule.variances)
        assert np.all(np.abs(coarse / expected - 1) < 1e-4)  # the error estimate squares this
    assert np.max(rule.gap) < 1e-10


def test_gaussian_average_of_ratios():
    """In one dimension z'Mz / S is 1, also where both are lost in rounding."""
    M = np.array([[0.49]])
    features = [Feature(), Feature((M,), 1), Feature((M, M), 2)]
    for mean in (0.0, 1e-3, 5.0):
        rule = gaussian_average(np.array([mean]), np.eye(1), np.sqrt(M), features, np.log(1e12))
        np.testing.assert_allclose(rule.weights.sum(axis=1), 1.0, rtol=1e-9)


def test_gaussian_average_of_a_point_mass():
    rule = gaussian_average(
        np.array([1.0, 2.0]),
        np.zeros((2, 2)),
        np.eye(2),
        [Feature(), Feature((np.eye(2),), 1)],
        5.0,
    )
    assert rule.variances.tolist() == [5.0]
    assert rule.weights.tolist() == [[1.0], [1.0]]


def test_gaussian_average_of_a_singular_covariance():
    """z = (z_1, 2) with z_1 standard normal and M = I: S = z_1^2 + 4."""
    rule = gaussian_average(
        np.array([0.0, 2.0]), np.diag([1.0, 0.0]), np.eye(2), [Feature()], np.log(1e6)
    )
    assert rule.variances.min() == pytest.approx(4.0)
    assert rule.weights[0] @ rule.variances == pytest.approx(5.0, rel=1e-10)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("narrow", [1e-2, 1e-4, 1e-8, 1e-16])
def test_gaussian_average_certificate_covers_narrow_and_wide_laws(narrow, scale):
    """E e^{-cS} in closed form for a mean that is many deviations away from 0 in one direction and
    none in the other.

    What the rule claims, its gap, covers what it misses, at a level that resolves the law and at
    one that does not.
    """
    mean, lam = np.sqrt(scale) * np.array([2.0, 0.0]), scale * np.array([narrow, 1.0])
    for level in (0, 1, 3):
        rule = gaussian_average(mean, np.diag(lam), np.eye(2), [Feature()], np.log(1e9), level)
        for c in np.array([-0.2, 0.0, 0.3]) / scale:
            dilation = 1 + 2 * c * lam
            expected = np.prod(dilation**-0.5) * np.exp(-c * np.sum(mean**2 / dilation))
            found = rule.weights[0] @ np.exp(-c * rule.variances)
            assert abs(found / expected - 1) <= 4 * np.max(rule.gap) + 1e-13
        if level == 3:
            assert np.max(rule.gap) < 1e-11


def test_gaussian_average_with_directions_that_the_scores_do_not_see():
    """S = (z_1)^2 of three coordinates; E[z'z e^{-cS}] has two more."""
    c = 0.7
    rule = gaussian_average(
        np.array([0.5, 1.0, -2.0]),
        np.diag([1.0, 2.0, 3.0]),
        np.eye(3)[:1],
        [Feature((np.eye(3),))],
        5.0,
    )
    width, mass = 1 / (1 + 2 * c), np.exp(-c * 0.25 / (1 + 2 * c)) * (1 + 2 * c) ** -0.5
    expected = mass * (width + (0.5 * width) ** 2 + 2 + 1 + 3 + 4)
    assert rule.weights[0] @ np.exp(-c * rule.variances) == pytest.approx(expected, rel=1e-9)
