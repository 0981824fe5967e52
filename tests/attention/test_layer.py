"""Layers map Gaussians in closed form and prompts token by token; both agree for long prompts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp

from ..oracles import attention as oracle


def _heads(d=3, number=2, seed=0):
    rng = np.random.default_rng(seed)
    return [
        lp.Head(U=rng.normal(size=(d, d)) / 2, V=rng.normal(size=(d, d)) / 2) for _ in range(number)
    ]


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("number", [1, 3])
def test_layer_on_a_gaussian_in_closed_form(residual, number):
    rng = np.random.default_rng(1)
    factor = rng.normal(size=(3, 2))  # a singular covariance
    mean, cov = rng.normal(size=3), factor @ factor.T
    heads = _heads(number=number)
    pushed = lp.Layer(heads, residual=residual)(lp.Gaussian(mean, cov))
    assert isinstance(pushed, lp.Gaussian)
    B = sum(np.asarray(h.V) @ cov @ np.asarray(h.U) for h in heads) + residual * np.eye(3)
    b = sum(np.asarray(h.V) @ mean for h in heads)
    assert np.allclose(pushed.mean(), B @ mean + b, rtol=1e-12)
    assert np.allclose(pushed.cov(), B @ cov @ B.T, rtol=1e-12, atol=1e-13)


def test_layer_on_a_prompt_maps_tokens_and_keeps_weights():
    rng = np.random.default_rng(2)
    tokens, weights = rng.normal(size=(7, 3)), np.array([1.0, 2, 0, 1, 1, 3, 1]) / 9
    heads = _heads()
    pushed = lp.Layer(heads)(lp.Empirical(tokens, weights))
    assert isinstance(pushed, lp.Empirical)
    assert np.allclose(pushed.weights, weights, rtol=1e-13)
    for i, token in enumerate(tokens):
        total = sum(
            oracle.attention(
                tokens=tokens, weights=weights, U=np.asarray(h.U), V=np.asarray(h.V), z=token
            )
            for h in heads
        )
        assert np.allclose(pushed.points[i], token + total, rtol=1e-12, atol=1e-13)


def test_layer_on_a_dirac_is_a_dirac():
    point = np.array([1.0, -2.0, 0.5])
    heads = _heads()
    pushed = lp.Layer(heads)(lp.Dirac(point))
    assert isinstance(pushed, lp.Dirac)
    assert np.allclose(
        pushed.point, point + sum(np.asarray(h.V) @ point for h in heads), rtol=1e-13
    )


def test_layer_on_signs_maps_all_atoms():
    """A law with atoms is mapped like a prompt, with its own closed form of attention."""
    heads = _heads(d=2)
    pushed = lp.Layer(heads)(lp.Rademacher(2))
    signs = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
    total = sum(np.tanh(signs @ np.asarray(h.U).T) @ np.asarray(h.V).T for h in heads)
    assert isinstance(pushed, lp.Empirical)
    assert np.allclose(pushed.points, signs + total, rtol=1e-13)
    assert np.allclose(pushed.weights, 0.25, rtol=1e-13)


def test_layer_without_residual_may_change_the_dimension():
    head = lp.Head(U=jnp.eye(3), V=jnp.ones((2, 3)))
    assert lp.Layer([head], residual=False)(lp.Gaussian(jnp.zeros(3), jnp.eye(3))).dim == 2


@pytest.mark.slow
def test_layer_on_samples_approaches_the_gaussian_recursion():
    """Mean squared error over 100 prompts at three lengths; the slope is -1 in theory.

    The error is roughly chi-square with a few degrees of freedom: its mean over 100 replicates has
    a relative standard error of about 0.12, and the fitted slope over a factor 16 in L one of about
    0.06. The band of +-0.3 is 5 standard errors: a false alarm has probability below 1e-6.
    """
    from reproduction.studies.depth import depth_errors

    lengths = [16, 64, 256]
    errors = depth_errors(jax.random.key(5), lengths, 100, depth=3).mean(axis=1)[:, -1]
    slope = np.polyfit(np.log(lengths), np.log(errors), 1)[0]
    assert -1.3 < slope < -0.7
