"""Gaussian mixtures as token laws: exact finite-prompt averages against integrals and samples."""

import itertools

import jax
import numpy as np
import pytest

import largeprompt as lp

from ..differences import assert_slopes
from ..oracles import mixtures as oracle

Z = np.array([0.7, -0.4])
HEAD = lp.Head(U=[[0.9, 0.3], [-0.2, 0.8]], V=[[1.0, 0.4], [-0.3, 0.6], [0.2, -1.0]])
# a regular component, one on a line, a point mass, and one whose scores do not vary: its line is
# orthogonal to U z
TILT = np.array(HEAD.U) @ Z
ACROSS = np.array([-TILT[1], TILT[0]])
LAWS = {
    "two": ([0.3, 0.7], [[1.0, 0.2], [-0.5, 0.4]], [[[0.8, 0.3], [0.3, 0.5]], 0.3 * np.eye(2)]),
    "singular": (
        [0.2, 0.5, 0.3],
        [[1.0, 0.2], [-0.5, 0.4], [0.1, -0.9]],
        [np.outer([0.6, 0.5], [0.6, 0.5]), np.outer(ACROSS, ACROSS), np.zeros((2, 2))],
    ),
}


def _law(name: str) -> tuple[lp.Mixture, dict]:
    weights, means, covs = (np.array(part) for part in LAWS[name])
    components = [
        lp.Gaussian(m, G) if G.any() else lp.Dirac(m) for m, G in zip(means, covs, strict=True)
    ]
    numbers = {"U": np.array(HEAD.U), "V": np.array(HEAD.V), "z": Z}
    law = {"weights": weights, "means": means, "covs": covs}
    return lp.Mixture(weights, components), law | numbers


def _exact(mu, z, L) -> dict[str, lp.Estimate]:
    quantities = (lp.Output(), lp.SecondMoment(), lp.OutputError())
    quantities += (lp.GradientError("U"), lp.GradientError("V"))
    found = [lp.expect(quantity, HEAD, mu, z, L) for quantity in quantities]
    return dict(zip(oracle.QUANTITIES, found, strict=True))


@pytest.mark.parametrize(("name", "L"), [("two", 1), ("two", 2), ("singular", 1), ("singular", 2)])
@pytest.mark.slow
def test_expect_of_a_mixture_against_integration(name, L):
    """All quantities to 1e-11, and within the error that is stated (plus that of the integral)."""
    mu, numbers = _law(name)
    want = oracle.integrate_prompts(**numbers, L=L)
    for quantity, found in _exact(mu, Z, float(L)).items():
        gap = np.abs(np.asarray(found.value) - want[quantity])
        assert np.all(gap <= 1e-11 * np.max(np.abs(want[quantity]))), quantity
        assert np.all(gap <= np.asarray(found.error) + 1e-13), quantity
        assert np.all(np.asarray(found.error) <= 1e-11), quantity


@pytest.mark.parametrize("name", LAWS)
def test_expect_of_a_mixture_against_samples(name):
    """40,000 prompts of 12 tokens: 5 standard errors, 1e-5 false alarms, with a fixed seed."""
    mu, numbers = _law(name)
    sampled = oracle.simulate_prompts(**numbers, L=12, n=40_000, seed=3)
    for quantity, found in _exact(mu, Z, 12.0).items():
        value, error = sampled[quantity]
        assert np.all(np.abs(np.asarray(found.value) - value) <= 5 * error), quantity


def test_output_error_of_a_mixture_of_long_prompts():
    """L E |T_L - T|^2 tends to the delta method's value, at the rate 1/L."""
    mu, numbers = _law("two")
    L = np.array([1e4, 1e6, 1e9])
    ratio = np.asarray(lp.output_error(HEAD, mu, Z, L)) * L / oracle.first_order_error(**numbers)
    np.testing.assert_allclose((ratio - 1)[:2] * L[:2], (ratio - 1)[0] * L[0], rtol=0.01)
    np.testing.assert_allclose(ratio[2], 1, rtol=2e-8)
    assert np.asarray(lp.output_error(HEAD, mu, Z, np.inf)) == 0


@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0, 4.0, 20.0])
def test_expect_of_equal_components_is_that_of_the_gaussian(scale):
    """Deviations of the scores up to 16: the closed forms, at every length."""
    head, L = lp.Head(U=scale * np.eye(2), V=HEAD.V), np.array([1.0, 3.0, 1e3, 1e9, np.inf])
    normal = lp.Gaussian([0.3, -0.2], [[1.0, 0.3], [0.3, 0.6]])
    mu = lp.Mixture([1, 2], [normal, normal])
    quantities = (lp.Output(), lp.OutputError(), lp.GradientError("V"), lp.GradientError("U"))
    for quantity in quantities if scale < 5 else quantities[:3]:
        want = lp.expect(quantity, head, normal, [0.8, -0.6], L)
        found = lp.expect(quantity, head, mu, [0.8, -0.6], L)
        np.testing.assert_allclose(found.value, want.value, rtol=1e-11)
        gap = np.abs(np.asarray(found.value) - np.asarray(want.value))
        assert np.all(gap <= np.asarray(found.error) + np.asarray(want.error))


def test_expect_of_narrow_components_is_that_of_their_atoms():
    """Components of covariance 0 and point masses are atoms; nested mixtures are flattened."""
    atoms, weights = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.3]]), np.array([0.5, 0.2, 0.3])
    flat = [lp.Gaussian(x, np.zeros((2, 2))) for x in atoms]
    mu = lp.Mixture([0.7, 0.3], [lp.Mixture(weights[:2], flat[:2]), flat[2]])
    vocabulary = lp.Empirical(atoms, weights)
    for quantity in (lp.Output(), lp.OutputError(), lp.GradientError("U")):
        found = lp.expect(quantity, HEAD, mu, Z, [1.0, 7.0, 1e6]).value
        want = lp.expect(quantity, HEAD, vocabulary, Z, [1.0, 7.0, 1e6]).value
        np.testing.assert_allclose(found, want, rtol=1e-11)


@pytest.mark.slow
def test_concentration_curve_of_a_mixture():
    """Over two queries, to 1e9 tokens: the mean of the pointwise errors, with slope -1 at the end;
    `prompt_length_for` inverts it.
    """
    mu, _ = _law("two")
    nu, lengths = lp.Empirical([Z, [0.1, 0.9]]), np.geomspace(1, 1e9, 13)
    curve = lp.concentration_curve(HEAD, mu, nu, lengths)
    want = lp.output_error(HEAD, mu, np.asarray(nu.points)[:, None], lengths).mean(0)
    np.testing.assert_allclose(curve.value, want, rtol=1e-11)
    assert np.all(curve.error < 1e-11 * curve.value)
    np.testing.assert_allclose(curve.local_slope[-1], -1, atol=1e-6)
    found = lp.prompt_length_for(HEAD, mu, Z, 1e-3)
    pair = lp.output_error(HEAD, mu, Z, [found.length - 1, found.length])
    assert pair[0] > 1e-3 >= pair[1]


@pytest.mark.slow
def test_output_error_of_a_mixture_under_jit_vmap_and_grad():
    """Against known numbers, and central differences (step 1e-5, error about 1e-9) in query, means
    and covariances; at z = 0 too, where no score varies.
    """
    means, root = np.array([[1.0, 0.2], [-0.5, 0.4]]), np.array([[0.8, 0.1], [0.2, 0.6]])

    def law(means, root):
        return lp.Mixture(
            [0.3, 0.5, 0.2],
            [lp.Gaussian.from_factor(m, root) for m in means] + [lp.Dirac([0.2, 0.7])],
        )

    def error(z, means, root):
        return lp.output_error(HEAD, law(means, root), z, 30.0)

    queries = np.array([Z, [0.1, 0.3], [0.0, 0.0]])
    one = jax.value_and_grad(error, argnums=(0, 1, 2))
    values, gradients = jax.jit(jax.vmap(one, (0, None, None)))(queries, means, root)
    np.testing.assert_allclose(values, error(queries, means, root), rtol=1e-11)
    for z, *slopes in zip(queries, *gradients, strict=True):
        assert_slopes(error, (z, means, root), slopes)


def test_output_error_of_a_mixture_in_many_dimensions_has_a_slope_at_the_origin():
    """Where no score varies, d = 16: against central differences of known numbers."""
    d, step = 16, 1e-4
    laws = [lp.Gaussian(m * np.ones(d), np.eye(d)) for m in (0.0, 0.1)]
    mu, head = lp.Mixture([1, 3], laws), lp.Head(U=np.eye(d), V=np.eye(d)[:1])
    error = jax.jit(jax.value_and_grad(lambda z: lp.output_error(head, mu, z, 3.0)))
    value, slope = error(np.zeros(d))
    np.testing.assert_allclose(value, (1 + 0.1**2 * 3 / 16) / 3, rtol=1e-12)
    ends = lp.output_error(head, mu, step * np.stack([np.eye(d)[0], -np.eye(d)[0]]), 3.0)
    np.testing.assert_allclose(slope[0], (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.slow
def test_gradient_error_of_a_mixture_under_jit():
    mu, _ = _law("singular")
    found = jax.jit(lambda z: lp.gradient_error(HEAD, mu, z, 30.0))(Z)
    np.testing.assert_allclose(found, lp.gradient_error(HEAD, mu, Z, 30.0), rtol=1e-11)


@pytest.mark.slow
def test_output_error_of_a_mixture_has_second_derivatives_at_the_origin():
    """Where no score varies: `jax.hessian` against central differences (step 1e-3) of values."""
    mu = lp.Mixture([1, 3], [lp.Gaussian(m * np.ones(2), np.eye(2)) for m in (0.0, 0.4)])
    head, step = lp.Head(U=np.eye(2), V=np.eye(2)[:1]), 1e-3
    found = jax.hessian(lambda z: lp.output_error(head, mu, z, 3.0))(np.zeros(2))
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    for i, j in itertools.product(range(2), repeat=2):
        axes = np.eye(2)[[i, j]]
        ends = lp.output_error(head, mu, step * signs @ axes, 3.0)
        slope = ends @ signs.prod(axis=1) / (4 * step**2)
        np.testing.assert_allclose(found[i, j], slope, atol=1e-5)
