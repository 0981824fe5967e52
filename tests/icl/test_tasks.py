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


def test_to_block_drops_rounding_only():
    for size, kept in ((2e-12, False), (1e-12, True), (0.0, True)):
        head = lp.HeadParams(np.diag([1.0, 0.5, size]), [0.0, 0.0, 1.0])
        if kept:
            np.testing.assert_array_equal(head.to_block().A, np.diag([1.0, 0.5]))
        else:
            with pytest.raises(ValueError, match="other entries up to 2e-12"):
                head.to_block()


@pytest.mark.parametrize("inputs", [1, 3])
def test_risk_of_a_head_for_other_tokens(inputs):
    head = lp.BlockParams(np.eye(inputs), 1.0)
    with pytest.raises(ValueError, match=f"tokens of dimension 3; .* for dimension {inputs + 1}"):
        lp.LinearRegression(np.eye(2)).risk(head, 10)


def test_rescaled_is_the_derivative_of_a_change_of_scale():
    """Of (U, v) -> (U / c, c v) at c = 1: (-U, v), and twice that for two factors of each."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3, 3))
    head = lp.HeadParams(weights[0], weights[1, 0])
    K, Q, V, O = weights
    factored = lp.FactoredParams(K, Q, V, O[:1], scale=0.4)
    block = lp.BlockParams(weights[2, :2, :2], 1.5)
    several = lp.MultiHeadParams([head, block])
    changed = several.rescaled()
    assert changed is not None
    cases: list[tuple] = [(params, params.rescaled(), 1) for params in (head, block)]
    cases += zip(several.heads, changed.heads, (1, 1), strict=True)
    for params, change, speed in [*cases, (factored, factored.rescaled(), 2)]:
        params, change = (jax.tree.map(jnp.asarray, tree) for tree in (params, change))
        (U, v), (dU, dv) = jax.jvp(lambda p: p.matrices(), (params,), (change,))
        np.testing.assert_allclose(dU, -speed * U, rtol=1e-12)
        np.testing.assert_allclose(dv, speed * v, rtol=1e-12)


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


class TwoClasses(lp.AbstractTask):
    """Labels y = +-1, inputs N(y m, I/2), tokens (x, y); the centre m is the w of the task."""

    dim: int = 3

    def sample_w(self, key):
        return jax.random.normal(key, (2,))

    def tokens(self, w):
        cov, centre = jnp.diag(jnp.array([0.5, 0.5, 0.0])), jnp.append(w, 1.0)
        parts = [lp.Gaussian(sign * centre, cov, check=False) for sign in (1.0, -1.0)]
        return lp.Mixture(jnp.full(2, 0.5), parts)

    def sample_query(self, key, w):
        label = jax.random.rademacher(key, (), float)
        return jnp.append(label * w + jax.random.normal(key, (2,)) / 2**0.5, 0.0), label


def test_risk_of_a_custom_task_of_mixtures():
    """With v = (0, 1) attention to the infinite prompt is tanh of the score of the centre."""
    task, m, query = TwoClasses(), jnp.array([0.7, -0.2]), jnp.array([0.3, 0.9, 0.0])
    output = lp.attend(lp.BlockParams(np.eye(2), 1.0).head, task.tokens(m), query)
    assert float(output[0]) == pytest.approx(np.tanh(float(m @ query[:2])), rel=1e-12)
    found = task.risk(lp.BlockParams(np.eye(2), 0.9), np.inf, method=lp.MonteCarlo(KEY))
    assert 0 < found.value < 0.5  # better than predicting 0


class OfThree(lp.AbstractTask):
    dim: int = 2

    def sample_w(self, key):
        return jnp.zeros(())

    def tokens(self, w):
        return lp.Dirac(jnp.array([1.0, 1.0]))

    def sample_query(self, key, w):
        return jnp.array([1.0, 0.0]), jnp.array(3.0)


def test_loss_is_half_the_squared_error():
    """At infinity a head with b = 0 predicts 0, and the target of `OfThree` is 3."""
    assert float(OfThree().loss(jnp.asarray(1.0), jnp.asarray(4.0))) == 4.5
    assert float(lp.LinearRegression(np.eye(1)).loss(jnp.asarray(2.0), jnp.asarray(0.0))) == 2.0


def test_risk_of_a_constant_target():
    params = lp.BlockParams([[1.0]], 0.0)
    found = OfThree().risk(params, np.inf, method=lp.MonteCarlo(KEY, batch=8))
    assert float(found.value) == pytest.approx(4.5, rel=1e-6)


def test_task_says_what_it_lacks():
    task = OfThree()
    assert task.exact_bayes_risk(10.0) is None
    calls = (
        lambda: task.minimiser(10),
        lambda: task.bayes_risk(10),
        lambda: lp.risk_curves(task, 9),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"the task must know its .*OfThree"):
            call()
