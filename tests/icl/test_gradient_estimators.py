"""Gradient estimators against brute force in NumPy, each other, and numerical differentiation.

Means and covariances are compared by z-scores. A bound of 6.5 standard errors on at most 200
numbers a test means false alarms below 2e-8 under the normal law of averages. The moments are
heavier-tailed; the key is fixed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import largeprompt as lp
from largeprompt.icl import Attention
from largeprompt.icl.gradient_estimators import Regression, conditional_loss
from largeprompt.icl.output_moments import output_moments
from largeprompt.icl.prompt_losses import BatchOfPrompts

from ..oracles.pair import two_token_participation
from ..oracles.regression import simulate_gradients

pytestmark = pytest.mark.slow
COV = np.array([[1.0, 0.4], [0.4, 0.7]])
TASK_COV = np.array([[0.8, -0.1], [-0.1, 0.5]])
QUERY_COV = np.array([[0.6, -0.2], [-0.2, 1.1]])
NOISE = 0.2
TASK = lp.LinearRegression(COV, TASK_COV, NOISE, query_cov=QUERY_COV)
U = np.array([[0.8, 0.3, 0.2], [-0.2, 0.6, -0.4], [0.3, -0.1, 0.5]])  # not symmetric
V = np.array([0.3, -0.2, 1.1])
PARAMS = lp.HeadParams(U, V)
N = 20_000
BOUND = 6.5
ATTENTIONS: tuple[Attention, ...] = ("softmax", "linear")
WHOLE, SCORES, EXACT = lp.MonteCarlo(whole_tokens=True), lp.MonteCarlo(), lp.Exact()


def _draws(loss_of, n=N, params=PARAMS, seed=0):
    """Rows (dU, dv, loss) of `n` batches of one prompt."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)

    def one(key):
        loss, slope = jax.value_and_grad(loss_of, argnums=1)(key, params)
        return jnp.concatenate([slope.U.ravel(), slope.v, loss[None]])

    keys = jax.random.split(jax.random.key(seed), n)
    return np.asarray(jax.jit(lambda k: jax.lax.map(one, k, batch_size=5000))(keys), np.float64)


def _scores(a, b):
    """z-scores of the differences of the means of the columns, where they vary at all."""
    error = np.sqrt(a.var(axis=0) / len(a) + b.var(axis=0) / len(b))
    gap = a.mean(axis=0) - b.mean(axis=0)
    assert np.all(np.abs(gap[error == 0]) == 0)
    return np.abs(gap[error > 0]) / error[error > 0]


def _pairs(rows):
    """Products of every two columns, centred: their means are the covariances."""
    centred = rows - rows.mean(axis=0)
    i, j = np.triu_indices(rows.shape[1])
    return centred[:, i] * centred[:, j]


def _simulated(L, attention):
    return simulate_gradients(
        cov=COV,
        task_cov=TASK_COV,
        noise=NOISE,
        query_cov=QUERY_COV,
        U=U,
        v=V,
        L=L,
        n=N,
        seed=L,
        attention=attention,
    )


@pytest.mark.parametrize(
    ("L", "attention"), [(1, "softmax"), (4, "softmax"), (1, "linear"), (4, "linear")]
)
def test_batch_loss_has_gradients_of_the_law_of_brute_force(L, attention):
    """Means, covariances, laws of loss and gradient norm (Kolmogorov-Smirnov at 1e-8)."""
    truth = _simulated(L, attention)
    for method in (WHOLE, SCORES):
        found = _draws(TASK.batch_loss(float(L), attention, method, 1, jnp.float32))
        assert np.max(_scores(found, truth)) < BOUND
        assert np.max(_scores(_pairs(found), _pairs(truth))) < BOUND
        lengths = [np.linalg.norm(rows[:, :-1], axis=1) for rows in (found, truth)]
        for pair in (lengths, (found[:, -1], truth[:, -1])):
            result: Any = stats.ks_2samp(pair[0], pair[1])
            assert result.pvalue > 1e-8


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_batch_loss_by_exact_has_the_mean_of_sampled_gradients(attention):
    truth = _simulated(4, attention)
    estimator = TASK.batch_loss(4.0, attention, EXACT, 1, jnp.float64)
    keys = jax.random.split(jax.random.key(5), N)

    def one(key):
        loss, slope = jax.value_and_grad(estimator, argnums=1)(key, PARAMS)
        return jnp.concatenate([slope.U.ravel(), slope.v, loss[None]])

    found = np.asarray(jax.jit(jax.vmap(one))(keys))
    assert np.max(_scores(found, truth)) < BOUND
    varying = truth.var(axis=0) > 0
    assert np.all(found.var(axis=0)[varying] < 1.1 * truth.var(axis=0)[varying])


def test_batch_of_prompts_agrees_with_linear_regression():
    single = lp.LinearRegression(COV.astype(np.float32), TASK_COV, NOISE)
    generic = _draws(BatchOfPrompts(single, 4.0, "softmax", 1))
    special = _draws(single.batch_loss(4.0, "softmax", WHOLE, 1, jnp.float32), seed=1)
    assert np.max(_scores(generic, special)) < BOUND
    assert np.max(_scores(_pairs(generic), _pairs(special))) < BOUND


def test_batch_loss_at_infinity():
    """Both attentions predict v'G_w u by every method; sampled targets keep their noise."""
    regression = Regression(TASK, jnp.float64)
    key = jax.random.key(2)
    queries = regression.queries(key, 50)
    gaps = []
    for w, x in zip(np.asarray(queries.w), np.asarray(queries.x), strict=True):
        pull = COV @ w
        G = np.block([[COV, pull[:, None]], [pull[None], np.array([[w @ pull + NOISE]])]])
        gaps.append(V @ G @ U @ np.append(x, 0.0) - w @ x)
    exact = np.mean(np.square(gaps)) / 2 + NOISE / 2
    noisy = np.mean(np.square(gaps - np.asarray(queries.noise))) / 2
    for attention in ATTENTIONS:
        for method, expected in ((WHOLE, noisy), (SCORES, noisy), (EXACT, exact)):
            estimator = TASK.batch_loss(np.inf, attention, method, 50, jnp.float64)
            assert float(estimator(key, PARAMS)) == pytest.approx(expected, rel=1e-12)


def _two_tokens(U, v, w, x):
    """E[1/2 (f - w'x - noise)^2 | w, x] at L = 2, with participation moments in 25 digits."""
    pull = COV @ w
    G = np.block([[COV, pull[:, None]], [pull[None], np.array([[w @ pull + NOISE]])]])
    u = U @ np.append(x, 0.0)
    s, a, c = u @ G @ u, v @ G @ u, v @ G @ v
    P = {name: float(value) for name, value in two_token_participation(np.sqrt(s)).items()}
    second = a**2 * (1 - P["P2"] - 6 * P["P3"] + 6 * P["P22"]) + c * P["P2"]
    return (second - 2 * a * (1 - P["P2"]) * (w @ x) + (w @ x) ** 2 + NOISE) / 2


def test_conditional_loss_against_two_tokens():
    regression, moments = Regression(TASK, jnp.float64), output_moments(2.0, "softmax")
    w, x = np.array([0.7, -0.4]), np.array([0.9, 0.5])
    for_w, for_x = (
        jnp.asarray(np.linalg.solve(np.asarray(root), vector))[None]
        for root, vector in ((regression.w_root, w), (regression.query_root, x))
    )
    queries = regression.queries_from(for_w, for_x, jnp.zeros(1))

    def loss(params):
        return conditional_loss(regression, moments, params, queries)

    value, slope = jax.jit(jax.value_and_grad(loss))(PARAMS)
    assert float(value) == pytest.approx(_two_tokens(U, V, w, x), rel=1e-10)
    rng, h = np.random.default_rng(0), 1e-4
    dU, dv = rng.normal(size=U.shape), rng.normal(size=V.shape)
    difference = (
        _two_tokens(U + h * dU, V + h * dv, w, x) - _two_tokens(U - h * dU, V - h * dv, w, x)
    ) / (2 * h)
    along = float(jnp.sum(slope.U * dU) + slope.v @ dv)
    assert along == pytest.approx(difference, rel=1e-6)


def test_batch_loss_by_exact_averages_to_the_gradient_of_the_risk():
    """Block form, 2^16 pairs (w, x_q) in 16 groups: 7 standard errors with 15 degrees of freedom,
    false alarms below 1e-4.
    """
    params = lp.BlockParams(U[:2, :2], 1.2)
    expected = jax.jit(jax.grad(TASK.risk_function(20.0)))(params)
    estimator = TASK.batch_loss(20.0, "softmax", EXACT, 4096, jnp.float64)
    slope = jax.jit(lambda key: jax.grad(estimator, argnums=1)(key, params))
    slopes = [slope(key) for key in jax.random.split(jax.random.key(7), 16)]
    slopes = jax.tree.map(lambda *leaves: np.stack(leaves), *slopes)
    for found, truth in ((slopes.A, expected.A), (slopes.b, expected.b)):
        error = np.std(found, axis=0, ddof=1) / 4
        assert np.all(np.abs(np.mean(found, axis=0) - truth) < 7 * error)


@pytest.mark.parametrize("L", [1.0, 30.0, 1e9])
def test_squared_error_against_participation(L):
    """Against the participation moments themselves; not a number beyond its range."""
    table = output_moments(L, "softmax")
    s = jnp.array([0.0, 1e-4, 0.3, 2.0, 50.0, 300.0])
    p = lp.participation(jnp.sqrt(s), L)
    a, c, t = (jnp.asarray(number) for number in (2.0, 3.0, 1.5))
    squared_error = jax.jit(jax.vmap(table.squared_error, (0, None, None, None)))
    found = squared_error(s, a, c, t)
    second = a**2 * (1 - p.p2 - 6 * p.p3 + 6 * p.p22) + c * p.p2
    np.testing.assert_allclose(found, second - 2 * a * t * (1 - p.p2) + t**2, rtol=1e-9)
    at_limit = squared_error(s, a, c, a)
    np.testing.assert_allclose(at_limit, a**2 * (p.p2 - 6 * p.p3 + 6 * p.p22) + c * p.p2, rtol=1e-9)
    assert np.all(np.isnan(squared_error(jnp.full(6, 2e6), a, c, t)))


def test_batch_loss_of_degenerate_directions():
    """Zero scores (every weight 1/L) and no read-out: nothing is divided by zero."""
    task = lp.LinearRegression(COV, TASK_COV, 0.0)
    for attention in ATTENTIONS:
        params = lp.HeadParams(np.zeros((3, 3)), np.zeros(3))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
        estimator = task.batch_loss(5.0, attention, SCORES, 8, jnp.float32)
        slope = jax.jit(jax.grad(estimator, argnums=1))(jax.random.key(0), params)
        assert np.all(np.isfinite(np.concatenate([slope.U.ravel(), slope.v])))
