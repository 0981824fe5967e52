"""Suprema over a ball, for functions whose largest slope and curvature are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.dynamics._ball import enclosing_ball, gradient_gap, steepest

LIKE = lp.BlockParams(np.eye(1), 1.0)
CENTRE, RADIUS = np.array([0.5, -0.25]), 2.0  # of (A, b)


def _quadratic(params):
    """Hessian diag(1, 3): the Lipschitz constant of the gradient is 3."""
    return 0.5 * jnp.sum(params.A**2) + _in_b(params)


def _in_b(params):
    return 1.5 * params.b**2


def test_enclosing_ball_of_a_segment():
    centre, radius = enclosing_ball(np.array([[3.0, 1.0], [3.0, -1.0], [3.0, 0.5]]))
    np.testing.assert_allclose(centre, [3.0, 0.0], atol=0.01)
    assert 1 <= radius <= 1.01


def test_steepest_of_a_quadratic():
    assert steepest(_quadratic, LIKE, CENTRE, RADIUS) == pytest.approx(3.0, rel=1e-3)


def test_gradient_gap_of_a_quadratic():
    """The gradient A - 0 of the difference is largest at the end of the ball: 0.5 + 2."""
    found = gradient_gap(_quadratic, _in_b, LIKE, CENTRE, RADIUS)
    assert found == pytest.approx(2.5, rel=1e-3)
