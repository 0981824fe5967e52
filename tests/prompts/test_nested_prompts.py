# pyright: reportArgumentType=false
"""`prefix_difference` and `nested_moments` against sampled prompts and values found elsewhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.participation import nested_moments, participation, participation_moment

from ..differences import assert_slopes

LINE, NORMAL = lp.Head(U=[[1.0]], V=[[1.0]]), lp.Gaussian([0.0], [[1.0]])


@pytest.mark.parametrize(
    ("first", "L", "expected"), [(5, 10, 0.748387376424), (10, 40, 0.830186598307)]
)
def test_prefix_difference_computed_elsewhere(first, L, expected):
    """E T_first T_L by polarisation."""
    squares = lp.finite_second_moment(LINE, NORMAL, [1.0], np.array([first, L])).sum()
    found = lp.prefix_difference(LINE, NORMAL, [1.0], first, L)
    assert float(squares - found) / 2 == pytest.approx(expected, rel=1e-11)


def test_prefix_difference_of_the_whole_and_of_the_infinite_prompt():
    whole, infinite = lp.prefix_difference(LINE, NORMAL, [2.0], 30, np.array([30.0, np.inf]))
    error = float(lp.output_error(LINE, NORMAL, [2.0], 30))
    assert abs(float(whole)) < 1e-11 * error
    assert float(infinite) == pytest.approx(error, rel=1e-13)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 3.0, 6.0])
def test_nested_moments_of_the_whole_prompt_are_those_of_one_softmax(sigma):
    L = np.array([1.0, 2.0, 50.0, 1e9])
    found, one = nested_moments(sigma, L, L), participation(sigma, L)
    np.testing.assert_allclose(found.c11, one.p2, rtol=1e-9)
    np.testing.assert_allclose(found.c12, one.p3, rtol=1e-9)
    np.testing.assert_allclose(found.b2c11, one.p22, rtol=1e-9)
    np.testing.assert_allclose(found.c22, participation_moment((4,), sigma, L), rtol=1e-9)
    assert np.all(np.asarray(found.error) < 1e-9)


def test_nested_moments_of_uniform_weights():
    found = nested_moments(0.0, np.array([1.0, 4.0, 1e6]), 1e6)
    first = np.array([1.0, 4.0, 1e6])
    np.testing.assert_allclose(found.c11, 1e-6 * np.ones(3), rtol=1e-10)
    np.testing.assert_allclose(found.a2b2, 1e-6 / first, rtol=1e-10)


def _one_more_token(L, tilt, V, points, weights):
    """E |T_L - T_{L-1}|^2 to first order: E e^{2s} |V (x - T)|^2 / (L E e^s)^2."""
    growth = np.exp(points @ tilt)
    away = (points - weights * growth @ points / (weights @ growth)) @ V.T
    return weights * growth**2 @ (away**2).sum(1) / (L * (weights @ growth)) ** 2


@pytest.mark.parametrize("L", [1e8, 1e14])
def test_prefix_difference_of_one_more_token(L):
    """Atoms by their sum; Gaussian tokens, s ~ N(0, u'Gu): e^{u'Gu} (tr VGV' + |VGu|^2) / L^2."""
    rng = np.random.default_rng(1)
    points, V, tilt = rng.normal(size=(4, 2)), rng.normal(size=(2, 2)), np.array([0.7, -0.4])
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    head = lp.Head(U=np.eye(2), V=V)
    halves = lp.MultiHead([lp.Head(U=np.eye(2), V=V / 2)] * 2)
    G = np.array([[1.0, 0.3], [0.3, 0.5]])
    pull = V @ G @ tilt
    cases = (
        (lp.Empirical(points, weights), _one_more_token(L, tilt, V, points, weights)),
        (
            lp.Gaussian([1.0, 2.0], G),
            np.exp(tilt @ G @ tilt) * (np.trace(V @ G @ V.T) + pull @ pull) / L**2,
        ),
    )
    for law, expected in cases:
        for heads in (head, halves):
            found = lp.prefix_difference(heads, law, tilt, L - 1, L)
            assert float(found) == pytest.approx(expected, rel=20 / L + 1e-10)


def test_prefix_difference_of_one_token_and_large_scores():
    """At first = 1, L = 2 the softmax takes one of two tokens: a sum over both, by quadrature."""
    x, w = np.polynomial.hermite_e.hermegauss(120)
    a, b = np.meshgrid(x, x)
    share = 1 / (1 + np.exp(a - b))  # of the second token, sigma = 1
    expected = np.outer(w, w).ravel() @ (share * (b - a)).ravel() ** 2 / (2 * np.pi)
    assert float(lp.prefix_difference(LINE, NORMAL, [1.0], 1, 2)) == pytest.approx(
        expected, rel=1e-9
    )
    law = lp.Mixture([0.5, 0.5], [NORMAL, NORMAL])
    assert float(lp.prefix_difference(LINE, law, [1.0], 1, 2)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_prefix_difference_near_the_whole_prompt_under_jit():
    with pytest.raises(RuntimeError, match="call it with known numbers"):
        eqx.filter_jit(lambda L: lp.prefix_difference(LINE, NORMAL, [1.0], 1e9 - 1, L))(
            jnp.array(1e9)
        )


@pytest.mark.slow
def test_prefix_difference_under_jit_and_grad():
    def difference(z, first, L):
        return lp.prefix_difference(LINE, NORMAL, z, first, L)

    at = np.array([1.3]), 6.0, 17.0
    value, slope = jax.jit(jax.value_and_grad(difference))(*at)
    assert float(value) == pytest.approx(float(difference(*at)), rel=1e-11)
    assert_slopes(difference, at, [slope], step=1e-4)
