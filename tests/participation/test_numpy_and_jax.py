"""The same formula by NumPy, for known numbers, and by JAX, for traced ones."""

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.participation import gradient_moments, gradient_moments_along, participation_along

SIGMA = np.array([0.0, 1e-4, 0.3, 0.79, 0.81, 2.0, 7.0, 30.0])  # both lattices
LENGTHS = np.array([[1.0], [2.5], [100.0], [1e9], [1e30], [np.inf]])


@pytest.mark.slow
@pytest.mark.parametrize("moments", [lp.participation, gradient_moments])
def test_moments_of_known_and_of_traced_numbers(moments):
    known = moments(SIGMA, LENGTHS)
    mapped = jax.vmap(jax.vmap(moments, (0, None)), (None, 0))
    for traced in (jax.jit(moments)(SIGMA, LENGTHS), jax.jit(mapped)(SIGMA, LENGTHS[:, 0])):
        for name in ("p2", "p3", "p22"):
            found, expected = getattr(known, name), getattr(traced, name)
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=0)
    assert known.p2.dtype == np.float64


@pytest.mark.parametrize(
    ("along", "moments"),
    [(participation_along, lp.participation), (gradient_moments_along, gradient_moments)],
)
def test_moments_along_length_have_the_slope_of_autodiff(along, moments):
    sigma, L = np.array([0.3, 2.0, 5.0]), np.array([3.0, 100.0, 1e9])
    found = along(sigma, L)

    def p2(sigma, L):
        return moments(sigma, L).p2

    slope = jax.jit(jax.vmap(jax.grad(p2, argnums=1)))(sigma, L)
    np.testing.assert_allclose(found.slope[0], slope, rtol=1e-11)
    np.testing.assert_allclose(found.value[0], moments(sigma, L).p2, rtol=1e-13)


def test_participation_of_many_numbers_is_that_of_each():
    """Blocks, their order and their sizes do not matter."""
    sigma = np.random.default_rng(0).uniform(0, 3, size=(3, 200))
    found = np.asarray(lp.participation(sigma, 50.0).p2)
    for index in [(0, 0), (1, 77), (2, 199)]:
        assert found[index] == pytest.approx(float(lp.participation(sigma[index], 50.0).p2), 1e-14)
    assert lp.participation(np.zeros((0, 2)), 50.0).p2.shape == (0, 2)
