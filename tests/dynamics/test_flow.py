"""Gradient flow against SciPy's solvers, the paper's closed forms, and the minimiser."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from tests.oracles import flow as oracle

COV = np.array([[1.0, 0.5], [0.5, 1.5]])
TASK = lp.LinearRegression(COV)
KEY = jax.random.key(5)


def _quiet_init(task, alpha, theta=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lp.balanced_init(task, alpha, theta)


def _start(alpha=0.3, seed=0):
    theta = np.random.default_rng(seed).normal(size=(2, 2))
    return _quiet_init(TASK, alpha, theta)


@pytest.fixture(scope="module")
def finite():
    """One flow at L = 300, asked until it is stationary, every step recorded."""
    return lp.gradient_flow(TASK, _start(), 300)


def test_gradient_flow_at_infinity_is_the_one_of_the_paper():
    start, times = _start(), np.array([0.0, 0.5, 2.0, 5.0])
    run = lp.gradient_flow(TASK, start, math.inf, 5.0, saveat=times)
    A, b = oracle.infinite_flow(COV, np.asarray(start.A), float(start.b), times)
    np.testing.assert_array_equal(run.times, times)
    np.testing.assert_allclose(run.params.A, A, atol=1e-8)
    np.testing.assert_allclose(run.params.b, b, atol=1e-8)
    assert run.phase == "descent"
    assert "reached t1 = 5" in run.status


@pytest.mark.parametrize(("alpha", "seed"), [(0.1, 1), (3.0, 3)])  # the last lies outside
def test_gradient_flow_conserves_balance_and_has_the_limit_of_the_paper(alpha, seed):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(2, 2))
    cov = factor @ factor.T / 2 + 0.3 * np.eye(2)
    task = lp.LinearRegression(cov)
    run = lp.gradient_flow(task, _quiet_init(task, alpha, rng.normal(size=(2, 2))), math.inf)
    balance = np.sum(run.params.A**2, axis=(1, 2)) - run.params.b**2
    assert np.max(np.abs(balance)) < 1e-9
    inverse = np.linalg.inv(cov)
    b = np.trace(inverse @ inverse) ** 0.25
    assert run.phase == "stationary"
    np.testing.assert_allclose(run.final.b, b, rtol=1e-6)
    np.testing.assert_allclose(run.final.A, inverse / b, atol=1e-6)


def test_gradient_flow_in_one_dimension_is_a_logistic_curve():
    times = np.linspace(1, 4, 4)
    task = lp.LinearRegression([[0.8]])
    run = lp.gradient_flow(task, lp.BlockParams([[0.4]], 0.4), math.inf, 4.0, saveat=times)
    expected = oracle.scalar_flow(0.8, 0.4, times)
    np.testing.assert_allclose(run.params.A[:, 0, 0], expected, atol=1e-9)
    np.testing.assert_allclose(run.params.b, expected, atol=1e-9)


def test_gradient_flow_drifts_to_the_unbalanced_minimiser():
    run = lp.gradient_flow(lp.LinearRegression(np.eye(1)), lp.BlockParams(np.eye(1), 1.0), 100)
    table = lp.ParticipationTable(100.0, 30.0)

    def participation(sigma, L):
        found = table(sigma)
        return (np.asarray(p) for p in (found.p2, found.p3, found.p22))

    every = slice(1, int(np.sum(run.times < 12)), 12)  # both phases
    expected = oracle.scalar_finite_flow(participation, 1.0, 1.0, 1.0, 100, run.times[every])
    found = np.stack([run.params.A[every, 0, 0], run.params.b[every]], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert run.phase == "stationary"
    np.testing.assert_allclose([run.final.A[0, 0], run.final.b], [0.747, 1.322], atol=5e-4)


def test_gradient_flow_has_two_phases_and_ends_at_the_minimiser(finite):
    found = TASK.minimiser(300)
    assert finite.phase == "stationary"
    assert finite.times[0] < finite.valley_entered < finite.times[-1]
    np.testing.assert_allclose(finite.risk[-1], found.risk, rtol=1e-9)
    np.testing.assert_allclose(finite.final.A, found.params.A, atol=1e-4)


def test_gradient_flow_enters_the_valley_where_its_gradient_lies_along_it(finite):
    """At least 0.9 of it along (-A, b), and less at all times before."""
    slope = jax.jit(jax.vmap(jax.grad(finite.objective)))(jax.tree.map(jnp.asarray, finite.params))
    A, b = finite.params.A, finite.params.b
    along = np.abs(np.sum(-slope.A * A, axis=(1, 2)) + slope.b * b)
    sizes = [np.sqrt(np.sum(M**2, axis=(1, 2)) + c**2) for M, c in ((A, b), (slope.A, slope.b))]
    entered = np.flatnonzero(finite.times == finite.valley_entered)[0]
    share = along / sizes[0] / sizes[1]
    assert share[entered] >= 0.9
    assert 0.5 < np.max(share[:entered]) < 0.9


@pytest.mark.parametrize("times", [[-0.5, 1.0], [1.0, 1.0], [1.0, math.nan], [[1.0, 2.0]]])
def test_gradient_flow_of_times_that_do_not_increase(times):
    with pytest.raises(ValueError, match="saveat must be increasing times >= 0"):
        lp.gradient_flow(TASK, _start(), 300, 3.0, saveat=times)


def test_gradient_flow_ends_at_its_time_in_any_decade():
    run = lp.gradient_flow(TASK, _start(), 1e9, 5e3)
    assert run.times[-1] == 5e3
    assert "reached t1 = 5000 in the phase of valley" in run.status


def test_gradient_flow_never_increases_the_risk(finite):
    assert len(finite.risk) > 50
    assert np.max(np.diff(finite.risk)) <= 1e-14


def test_gradient_flow_stopped_in_the_valley(finite):
    stopped = lp.gradient_flow(TASK, _start(), 300, 1.5 * finite.valley_entered)
    assert stopped.phase == "valley"
    assert "in the phase of valley" in stopped.status
    assert stopped.times[-1] == 1.5 * finite.valley_entered


def test_gradient_flow_saveat_lies_on_the_path(finite):
    chosen = finite.times[[20, 40, -40, -20]]
    run = lp.gradient_flow(TASK, _start(), 300, saveat=chosen)
    np.testing.assert_array_equal(run.times[:4], chosen)
    np.testing.assert_allclose(run.params.b[:4], finite.params.b[[20, 40, -40, -20]], rtol=1e-5)


@pytest.mark.parametrize("L", [1e4, 1e9])
def test_gradient_flow_of_long_prompts_arrives(L):
    run = lp.gradient_flow(TASK, _start(), L)
    assert run.phase == "stationary"
    np.testing.assert_allclose(run.risk[-1], TASK.minimiser(L).risk, rtol=1e-6, atol=1e-14)
    assert run.valley_entered < 1e-2 * run.times[-1]
    assert np.max(np.diff(run.risk)) <= 1e-14


def test_gradient_flow_of_linear_attention_ends_at_its_minimiser():
    run = lp.gradient_flow(TASK, _start(), 50, attention="linear")
    best = TASK.minimiser(50, "linear")
    assert run.phase == "stationary"
    np.testing.assert_allclose(run.risk[-1], best.risk, rtol=1e-9)


@pytest.mark.slow
def test_gradient_flow_preserves_block_form():
    task = lp.LinearRegression([[1.5]])
    block = lp.BlockParams([[0.3]], 0.4)
    run = lp.gradient_flow(task, block.general(), 30, 1.0, saveat=[0.5, 1.0])
    U, v = run.final.U, run.final.v
    assert max(abs(U[0, 1]), np.max(np.abs(U[1])), abs(v[0])) < 1e-12
    same = lp.gradient_flow(task, block, 30, 1.0)
    np.testing.assert_allclose([U[0, 0], v[1]], [same.final.A[0, 0], same.final.b], rtol=1e-8)
    np.testing.assert_allclose(run.risk[-1], same.risk[-1], rtol=1e-8)
    assert np.all(run.risk_error < 1e-10 * run.risk)
    assert np.all(same.risk_error == 0)
    np.testing.assert_array_equal(same.risk, same.training_loss)


@pytest.mark.slow
def test_gradient_flow_reports_the_risk_on_fresh_prompts():
    """16 prompts are fitted far below the risk, which other prompts confirm within 5 standard
    errors.
    """
    task = lp.ProductRegression(lp.Rademacher(2), noise_variance=0.5)
    run = lp.gradient_flow(
        task,
        lp.BlockParams(0.3 * np.eye(2), 0.3).general(),
        5,
        20.0,
        saveat=[1.0, 20.0],
        method=lp.MonteCarlo(KEY, batch=16),
    )
    np.testing.assert_allclose(run.objective(run.final), run.training_loss[-1])
    assert run.training_loss[-1] < run.training_loss[0]
    found = task.risk(run.final, 5, method=lp.MonteCarlo(jax.random.key(77)))
    error = np.hypot(found.error, run.risk_error[-1])
    assert abs(run.risk[-1] - found.value) <= 5 * error
    assert run.risk[-1] - run.training_loss[-1] > 5 * error


@pytest.mark.slow
def test_gradient_flow_of_a_general_head_reports_the_risk_on_fresh_w():
    """Eight tasks are fitted below the risk; five standard errors of eight scramblings as in the
    tests of the risk.
    """
    rng = np.random.default_rng(3)
    task = lp.LinearRegression(np.eye(3))
    start = lp.HeadParams(0.3 * rng.normal(size=(4, 4)), 0.3 * rng.normal(size=4))
    run = lp.gradient_flow(
        task, start, 5, 3.0, saveat=[0.0, 3.0], method=lp.QuasiMonteCarlo(KEY, points=8)
    )
    np.testing.assert_allclose(run.objective(run.final), run.training_loss[-1])
    for i in (0, 1):
        found = task.risk(run.at(i), 5, method=lp.QuasiMonteCarlo(jax.random.key(78)))
        error = np.hypot(found.error, run.risk_error[i])
        assert abs(run.risk[i] - found.value) <= 5 * error
    assert found.value - run.training_loss[-1] > 5 * found.error


@pytest.mark.slow
def test_gradient_flow_of_a_general_head_is_exact_at_infinity():
    """There the risk has a closed form: nothing is sampled, and no key is needed."""
    rng = np.random.default_rng(3)
    task = lp.LinearRegression(np.eye(3))
    start = lp.HeadParams(0.3 * rng.normal(size=(4, 4)), 0.3 * rng.normal(size=4))
    run = lp.gradient_flow(task, start, math.inf, 3.0, saveat=[0.0, 3.0])
    np.testing.assert_allclose(run.risk, [task.risk(run.at(i), math.inf).value for i in (0, 1)])
    np.testing.assert_array_equal(run.risk, run.training_loss)
    assert np.all(run.risk_error == 0)
    assert run.risk[1] < run.risk[0]


def test_gradient_flow_from_a_stationary_start():
    found = TASK.minimiser(20, "linear").params
    run = lp.gradient_flow(TASK, found, 20, attention="linear")
    assert run.times.tolist() == [0.0]
    assert run.phase == "stationary"


def test_balanced_init_warns_outside_the_interval():
    with pytest.warns(UserWarning, match=r"outside the interval \(0, "):
        start = lp.balanced_init(TASK, 2.0)
    np.testing.assert_allclose(np.linalg.norm(start.A), 2.0)
    largest = math.sqrt(2) / (2**0.25 * np.linalg.eigvalsh(COV)[-1])
    np.testing.assert_allclose(lp.admissible_alpha(TASK), largest)


def test_gradient_flow_in_32_bit_mode(finite):
    with jax.enable_x64(False):
        run = lp.gradient_flow(TASK, _start(), 300, 1.0)
    assert run.final.b.dtype == jnp.float64


def test_gradient_flow_of_inputs_in_small_units_warns():
    """The default of `stationary` ends it at once: the risk is far from the best one."""
    task, start = lp.LinearRegression(1e-6 * np.eye(2)), lp.BlockParams(1e5 * np.eye(2), 0.1)
    with pytest.warns(UserWarning, match="Pass a smaller `stationary`, or scale the inputs"):
        run = lp.gradient_flow(task, start, 10)
    assert run.phase == "stationary"
    assert run.risk[-1] > 2 * float(task.minimiser(10).risk)
