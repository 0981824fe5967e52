"""`pair_moments` against quadrature at two tokens, simulation, one softmax and closed forms."""

import importlib
from dataclasses import fields

import jax
import numpy as np
import pytest

from largeprompt.participation import (
    PairMoments,
    pair_moments,
    participation,
    participation_moment,
)

from ..errors import RAISED_UNDER_JIT
from ..oracles.pair import simulated_pair, two_token_pair

NAMES = [field.name for field in fields(PairMoments) if field.name != "error"]
MODULE = importlib.import_module("largeprompt.participation.pair_moments")


def stacked(found: PairMoments) -> jax.Array:
    return jax.numpy.stack([getattr(found, name) for name in NAMES])


def test_pair_moments_computed_elsewhere():
    names = ("c11", "a2b2", "c21", "a2c11", "b2c11", "c11_squared")
    values = [0.145878974308, 0.0249531883999, 0.0369073487536]
    values += [0.0304795666757, 0.0184191668427, 0.0221958931675]
    found = pair_moments(1.0, 0.5, 1.0, 10)
    np.testing.assert_allclose([getattr(found, name) for name in names], values, rtol=1e-11)


# correlations on both sides of the change of method near 1 and -1
@pytest.mark.parametrize("rho", [-1.0, -0.9995, -0.7, 0.0, 0.4, 0.97, 0.998, 0.99999, 1.0])
@pytest.mark.parametrize(("sigma_a", "sigma_b"), [(0.3, 0.1), (1.0, 2.0), (6.0, 6.0)])
def test_pair_moments_of_two_tokens(sigma_a, sigma_b, rho):
    found, expected = pair_moments(sigma_a, sigma_b, rho, 2), two_token_pair(sigma_a, sigma_b, rho)
    for name in NAMES:
        gap = abs(float(getattr(found, name)) / expected[name].item() - 1)
        assert gap < min(1e-9, float(found.error)), (name, gap)


@pytest.mark.parametrize("args", [(1.0, 1.4, -0.6, 20), (0.5, 2.0, 0.9, 5), (3.0, 2.5, 0.3, 60)])
def test_pair_moments_by_simulation(args):
    """24 comparisons at 4.5 standard errors: a false alarm in fewer than 1 of 5,000 seeds."""
    found = pair_moments(*args)
    for name, (mean, deviation) in simulated_pair(*args, replicates=40_000, seed=3).items():
        assert abs(float(getattr(found, name)) - mean) < 4.5 * deviation, name


@pytest.mark.parametrize("sigma", [1e-6, 0.3, 1.0, 2.5, 6.0])
def test_pair_moments_of_equal_scores_are_those_of_one_softmax(sigma):
    L = np.array([1.0, 2.0, 30.0, 1e3, 1e6, 1e9])
    found, one = pair_moments(sigma, sigma, 1.0, L), participation(sigma, L)
    expected = {
        "c11": one.p2,
        "c21": one.p3,
        "c12": one.p3,
        "c22": participation_moment((4,), sigma, L),
        "a2c11": one.p22,
        "b2c11": one.p22,
        "a2b2": one.p22,
        "c11_squared": one.p22,
    }
    for name in NAMES:
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-9)


@pytest.mark.parametrize("rho", [-1.0, 0.0, 0.5])
def test_pair_moments_with_uniform_second_weights(rho):
    L = np.array([1.0, 7.0, 1e4, 1e9])
    found, one = pair_moments(3.0, 0.0, rho, L), participation(3.0, L)
    expected = {
        "c11": 1 / L,
        "c21": one.p2 / L,
        "c12": 1 / L**2,
        "c22": one.p2 / L**2,
        "a2c11": one.p2 / L,
        "b2c11": 1 / L**2,
        "a2b2": one.p2 / L,
        "c11_squared": 1 / L**2,
    }
    for name in NAMES:
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-10)


def test_pair_moments_at_length_one_and_infinity():
    for args in [(0.0, 0.0, 0.0), (1.0, 2.0, -1.0), (4.0, 3.0, 0.7)]:
        np.testing.assert_allclose(stacked(pair_moments(*args, 1)), 1.0, rtol=1e-9)
        assert not np.any(stacked(pair_moments(*args, np.inf)))


def test_pair_moments_of_opposite_scores():
    """p_i q_i = 1/(S R) for every i, so C_21 = C_11/L and C_11^2 = L C_22."""
    L = np.array([3.0, 100.0, 1e9])
    found = pair_moments(6.0, 6.0, -1.0, L)
    np.testing.assert_allclose(found.c21, found.c11 / L, rtol=1e-9)
    np.testing.assert_allclose(found.c11_squared, found.c22 * L, rtol=1e-9)


def test_pair_moments_of_long_prompts():
    """Sums over tokens are close to their means: L^{k+l-1} C_kl to E e^{ks+lr}, normalised."""
    a, b, rho, L = 0.6, 0.9, -0.4, 1e9
    found, c = pair_moments(a, b, rho, L), rho * a * b
    limits = {
        "c11": c,
        "c21": a**2 + 2 * c,
        "c12": b**2 + 2 * c,
        "c22": a**2 + b**2 + 4 * c,
        "a2c11": a**2 + c,
        "b2c11": b**2 + c,
        "a2b2": a**2 + b**2,
        "c11_squared": 2 * c,
    }
    powers = dict.fromkeys(NAMES, 2) | {"c11": 1, "c22": 3}
    for name, exponent in limits.items():
        value = float(getattr(found, name)) * L ** powers[name]
        assert value == pytest.approx(np.exp(exponent), rel=1e-7), name


def test_pair_moments_when_the_heads_change_places():
    found, swapped = pair_moments(0.8, 2.5, 0.99, 40.0), pair_moments(2.5, 0.8, 0.99, 40.0)
    other = {"c21": "c12", "c12": "c21", "a2c11": "b2c11", "b2c11": "a2c11"}
    for name in NAMES:
        expected = float(getattr(swapped, other.get(name, name)))
        assert float(getattr(found, name)) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("rho", [-1.0, -0.5, 0.6, 0.9985])
def test_pair_moments_on_finer_lattices(rho, monkeypatch):
    a, b = np.array([[6.0], [6.0], [1.8]]), np.array([[6.0], [3.0], [1.8]])
    L = np.array([9.0, 1e9])
    found = pair_moments(a, b, rho, L)
    assert np.all(np.asarray(found.error) < 1e-9)
    for name, value in {"SCORE_NODES": 640, "LAPLACE_NODES": (220, 260), "FINE": 0.2}.items():
        monkeypatch.setattr(MODULE, name, value)
    finer = stacked(pair_moments(a, b, rho, L))
    gap = np.max(np.abs(stacked(found) / finer - 1), axis=0)
    assert np.all(gap < np.minimum(found.error, 1e-10))


@pytest.mark.parametrize(("name", "value"), [("LAPLACE_NODES", (30, 36)), ("SCORE_NODES", 100)])
def test_pair_moments_error_sees_a_coarse_lattice(name, value, monkeypatch):
    exact = stacked(pair_moments(6.0, 5.0, -1.0, 100.0))
    monkeypatch.setattr(MODULE, name, value)
    coarse = pair_moments(6.0, 5.0, -1.0, 100.0)
    gap = float(np.max(np.abs(stacked(coarse) / exact - 1)))
    assert 1e-7 < gap < float(coarse.error)


@pytest.mark.slow
def test_pair_moments_of_known_and_of_traced_numbers():
    """Traced numbers take lattices that are smooth at 0; known ones do not."""
    sigma_a = np.array([0.0, 1.0, 6.0, 2.0, 0.4, 0.0, 0.19, 0.1, 0.05])
    sigma_b = np.array([0.5, 1.2, 4.0, 2.0, 0.0, 0.1, 0.18, 3.0, 1.0])
    rho = np.array([0.3, -1.0, 0.9999, 0.7, 0.1, 0.0, -1.0, 0.7, 1.0])
    L = np.array([2.5, 10.0, 1e6, 1e9, np.inf, 10.0, 10.0, 10.0, 10.0])
    known = stacked(pair_moments(sigma_a, sigma_b, rho, L))
    traced = stacked(jax.jit(pair_moments)(sigma_a, sigma_b, rho, L))
    np.testing.assert_allclose(known, traced, rtol=1e-11)
    mapped = stacked(jax.vmap(pair_moments)(sigma_a, sigma_b, rho, L))
    np.testing.assert_allclose(mapped, traced, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.3, 0.9999])
def test_pair_moments_derivatives_by_differences(rho):
    args, step = (1.0, 0.7, rho, 10.0), 3e-5
    slopes = jax.jit(jax.jacfwd(lambda *a: stacked(pair_moments(*a)), argnums=(0, 1, 2, 3)))(*args)
    for i, slope in enumerate(slopes):
        up, down = (
            stacked(pair_moments(*(a + sign * step * (i == j) for j, a in enumerate(args))))
            for sign in (1, -1)
        )
        np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-6)


def test_pair_moments_derivatives_at_parallel_scores():
    """Both orders of the derivative in rho are finite at 1, by one-sided differences."""
    step = 1e-3
    value, one, two = (float(pair_moments(1.0, 0.7, 1 - i * step, 10.0).c11) for i in range(3))

    def c11(rho):
        return pair_moments(1.0, 0.7, rho, 10.0).c11

    slope, curvature = map(float, jax.jit(jax.value_and_grad(jax.grad(c11)))(1.0))
    assert slope == pytest.approx((3 * value - 4 * one + two) / (2 * step), rel=1e-5)
    assert curvature == pytest.approx((value - 2 * one + two) / step**2, rel=1e-2)


def test_pair_moments_bad_correlation_under_jit():
    with pytest.raises(RAISED_UNDER_JIT, match="rho must be a correlation"):
        jax.block_until_ready(jax.jit(pair_moments)(1.0, 1.0, -1.5, 10.0))
