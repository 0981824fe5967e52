"""Conversions between parametrisations, and tasks whose infinite-prompt output is not linear."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp

KEY = jax.random.key(1)


def test_params_predict_the_same_in_every_form():
    rng = np.random.default_rng(0)
    K, Q, V = rng.normal(size=(3, 2, 3))
    O = rng.normal(size=(1, 2))
    factored = lp.FactoredParams(K, Q, V, O, scale=0.4)
    general = factored.general()
    np.testing.assert_allclose(general.U, 0.4 * K.T @ Q, rtol=1e-14)
    np.testing.assert_allclose(general.v, (O @ V)[0], rtol=1e-14)
    prompt, z = lp.Empirical(rng.normal(size=(7, 3))), rng.normal(size=3)
    expected = lp.attend(factored.head, prompt, z)
    for params in (general, general.to_factored(), factored):
        np.testing.assert_allclose(lp.attend(params.head, prompt, z), expected, rtol=1e-12)
    block = lp.BlockParams([[0.3, 0.1], [0.0, 0.5]], 1.5)
    back = block.to_factored().to_block()
    np.testing.assert_allclose(back.A, block.A, rtol=1e-15)
    assert float(back.b) == 1.5
    with pytest.raises(ValueError, match="block form"):
        general.to_block()


def test_product_regression_has_the_closed_form_of_tanh():
    """At u = (u_x, u_y) the tilted mean is (t, w't + tau^2 u_y), t = tanh(u_x + w u_y)."""
    task = lp.ProductRegression(lp.Rademacher(2), noise_variance=0.3)
    w, u = np.array([0.5, -1.0]), np.array([0.2, 0.4, -0.6])
    t = np.tanh(u[:2] + w * u[2])
    expected = np.append(t, w @ t + 0.3 * u[2])
    np.testing.assert_allclose(task.tokens(jnp.asarray(w)).tilted_mean(u), expected, rtol=1e-12)


@pytest.mark.parametrize("L", [4, np.inf])
def test_product_regression_risk_against_numpy(L):
    """Within 5 combined standard errors of 40,000 draws in NumPy."""
    task = lp.ProductRegression(lp.Rademacher(2), noise_variance=0.1)
    params = lp.BlockParams(0.8 * np.eye(2), 1.1)
    found = task.risk(params, L, method=lp.MonteCarlo(KEY))
    rng = np.random.default_rng(2)
    n = 40_000
    w, query = rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], size=(n, 2))
    u = 0.8 * query
    if np.inf == L:
        prediction = 1.1 * np.sum(w * np.tanh(u), axis=1)
    else:
        x = rng.choice([-1.0, 1.0], size=(n, 4, 2))
        y = np.einsum("nld,nd->nl", x, w) + np.sqrt(0.1) * rng.normal(size=(n, 4))
        p = np.exp(np.einsum("nld,nd->nl", x, u))
        prediction = 1.1 * np.sum(p * y, axis=1) / p.sum(axis=1)
    target = np.sum(w * query, axis=1) + np.sqrt(0.1) * rng.normal(size=n)
    losses = (prediction - target) ** 2 / 2
    error = np.hypot(np.std(losses) / 200, found.error)
    assert abs(np.mean(losses) - found.value) <= 5 * error


def test_mixture_classification_gates_between_two_maps():
    """With v = (0, 1) attention to the infinite prompt is tanh of the score of the centre."""
    task = lp.MixtureClassification(0.5 * np.eye(2))
    m, query = jnp.array([0.7, -0.2]), jnp.array([0.3, 0.9, 0.0])
    head = lp.BlockParams(np.eye(2), 1.0).head
    output = lp.attend(head, task.tokens(m), query)
    assert float(output[0]) == pytest.approx(np.tanh(float(m @ query[:2])), rel=1e-12)
    point, label = task.sample_query(KEY, m)
    assert abs(float(label)) == 1
    assert float(point[2]) == 0
    found = task.risk(lp.BlockParams(np.eye(2), 0.9), np.inf, method=lp.MonteCarlo(KEY))
    assert 0 < found.value < 0.5  # better than predicting 0
