"""Closed form of the general risk: linear attention at every length, both at L = inf."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import largeprompt as lp
from largeprompt.dynamics.experiment import published_task
from largeprompt.icl import Attention

from ..oracles.regression import linear_risk_by_quadrature, simulate

COV = np.array([[1.0, 0.4], [0.4, 0.7]])
TASK_COV = np.array([[0.8, -0.1], [-0.1, 0.5]])
QUERY_COV = np.array([[0.5, -0.3], [-0.3, 1.4]])
SETTING = {"cov": COV, "task_cov": TASK_COV, "query_cov": QUERY_COV, "noise": 0.2}
TASK = lp.LinearRegression(COV, TASK_COV, 0.2, query_cov=QUERY_COV)


def heads(n):
    """Random heads (U, v), none in block form."""
    rng = np.random.default_rng(5)
    return [(rng.normal(size=(3, 3)), rng.normal(size=3)) for _ in range(n)]


@pytest.mark.parametrize("L", [1, 7, 1e6, np.inf])
def test_linear_risk_against_moments_by_quadrature(L):
    for U, v in heads(3):
        expected = linear_risk_by_quadrature(**SETTING, U=U, v=v, L=L)
        found = TASK.risk(lp.HeadParams(U, v), L, "linear").value
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_linear_risk_against_brute_force():
    """20,000 prompts, 5 standard errors: a false alarm below 1e-6. The loss has heavy tails."""
    U, v = heads(1)[0]
    losses = simulate(**SETTING, U=U / 2, v=v / 2, L=6, n=20_000, seed=2, attention="linear")
    gap = losses.mean() - float(TASK.risk(lp.HeadParams(U / 2, v / 2), 6, "linear").value)
    assert abs(gap) <= 5 * losses.std() / np.sqrt(len(losses))


def test_linear_risk_is_the_infinite_risk_of_both_attentions():
    """Lemma 2.1, for a general head, without a key; approached as 1/L."""
    for U, v in heads(3):
        head = lp.HeadParams(U, v)
        limit = float(TASK.risk(head, np.inf).value)
        assert limit == float(TASK.risk(head, np.inf, "linear").value)
        gaps = [float(TASK.risk(head, L, "linear").value) - limit for L in (1e3, 1e4)]
        assert gaps[0] / gaps[1] == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("L", [3, np.inf])
def test_linear_risk_of_a_block_head(L):
    block = lp.BlockParams([[0.7, 0.2], [-0.1, 0.9]], 1.2)
    expected = float(TASK.risk(block, L, "linear").value)
    assert float(TASK.risk(block.general(), L, "linear").value) == pytest.approx(
        expected, rel=1e-13
    )


def test_linear_risk_does_not_cancel_at_the_perfect_head():
    """No noise, b Sig A = I, c = 0 and a little v_x = a: 2 R_inf = |A'Sig a|^2."""
    task = lp.LinearRegression(np.eye(2))
    U, v = np.diag([1.0, 1.0, 0.0]), np.array([1e-9, 0.0, 1.0])
    assert float(task.risk(lp.HeadParams(U, v), np.inf).value) == pytest.approx(0.5e-18, rel=1e-12)


@pytest.mark.slow
def test_linear_risk_gradient_against_finite_differences():
    rng = np.random.default_rng(6)
    K, Q, V = rng.normal(size=(3, 2, 3))
    head = lp.FactoredParams(K, Q, V, rng.normal(size=(1, 2)), scale=0.7)
    for L in (4, np.inf):
        flat, restore = jax.flatten_util.ravel_pytree(head)

        def risk(y, L=L, restore=restore):
            return TASK.risk(restore(y), L, "linear").value

        gradient = jax.jit(jax.grad(risk))(flat)
        steps = 1e-5 * np.eye(len(flat))
        differences = [(risk(flat + h) - risk(flat - h)) / 2e-5 for h in steps]
        np.testing.assert_allclose(gradient, differences, rtol=1e-7, atol=1e-7)


def test_objective_of_a_general_head_is_exact_without_a_key():
    U, v = heads(1)[0]
    head = lp.HeadParams(U, v)
    cases: list[tuple[float, Attention]] = [(5, "linear"), (np.inf, "softmax")]
    for L, attention in cases:
        exact = TASK.objective(L, attention, like=head)(head)
        assert float(exact) == pytest.approx(float(TASK.risk(head, L, attention).value), rel=1e-14)
    wide = lp.HeadParams(np.eye(4), np.ones(4))
    with pytest.raises(ValueError, match="QuasiMonteCarlo"):
        lp.LinearRegression(np.eye(3)).objective(5, "softmax", like=wide)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("L", "block", "other"), [(10, 0.232, 0.374), (100, 0.080, 0.080), (1000, 0.053, 0.088)]
)
def test_linear_risk_has_two_minima(L, block, other):
    """Published covariance: where descent from either route ends; one minimum at L = 100."""
    task = published_task("paper")
    start = lp.HeadParams(np.zeros((6, 6)), np.zeros(6))
    flat, restore = jax.flatten_util.ravel_pytree(start)
    function = task.risk_function(L, "linear")

    def risk(y):
        return function(restore(y))

    look, curvatures = jax.jit(jax.value_and_grad(risk)), jax.jit(jax.hessian(risk))
    pull = np.linalg.eigh(np.asarray(task.cov))[1][:, -1]
    by_x = lp.HeadParams(np.pad(np.eye(5), (0, 1)), 0.5 * np.eye(6)[5])
    by_y = lp.HeadParams(np.outer(np.eye(6)[5], np.append(pull, 0.0)), 0.5 * np.append(pull, 0.0))
    for begin, expected in ((by_x, block), (by_y, other)):
        nudge = 1e-3 * np.random.default_rng(0).normal(size=len(flat))
        found = minimize(
            lambda y: [np.asarray(part) for part in look(jnp.asarray(y))],
            jax.flatten_util.ravel_pytree(begin)[0] + nudge,
            jac=True,
            method="BFGS",
            options={"gtol": 1e-9},
        )
        assert found.fun == pytest.approx(expected, abs=6e-4)
        assert np.linalg.norm(found.jac) < 1e-7
        # a minimum, up to the scaling U -> kU, v -> v/k that changes nothing
        curvature = np.linalg.eigvalsh(curvatures(found.x))
        assert curvature[0] > -1e-7
