"""Exact risks against brute force, an integral, closed forms, and published numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.participation.exponential import exponential_table

from ..oracles.regression import infinite_block_risk, simulate, simulate_ridge

KEY = jax.random.key(3)
COV = np.array([[1.0, 0.4], [0.4, 0.7]])
TASK_COV = np.array([[0.8, -0.1], [-0.1, 0.5]])
TASK = lp.LinearRegression(COV, TASK_COV, 0.2)
A = np.array([[0.7, 0.2], [-0.1, 0.9]])  # not symmetric
PARAMS = lp.BlockParams(A, 1.2)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("L", [1, 6])
@pytest.mark.slow
def test_risk_of_block_heads_against_brute_force(L, attention):
    """40,000 prompts, 5 standard errors: a false alarm below 1e-5."""
    general = PARAMS.general()
    losses = simulate(
        cov=COV,
        task_cov=TASK_COV,
        noise=0.2,
        U=np.asarray(general.U),
        v=np.asarray(general.v),
        L=L,
        n=40_000,
        seed=L,
        attention=attention,
    )
    gap = losses.mean() - float(TASK.risk(PARAMS, L, attention).value)
    assert abs(gap) <= 5 * losses.std() / np.sqrt(len(losses))


@pytest.mark.slow
def test_risk_in_one_dimension_against_an_integral():
    """d = 1: the formula of the risk under panels of Gauss-Legendre quadrature over the query."""
    task = lp.LinearRegression([[0.8]], [[1.5]], 0.3)
    a, b = 0.9, 1.1
    nodes, w = np.polynomial.legendre.leggauss(16)
    x = (np.arange(-10.0, 10.0, 1.0)[:, None] + (nodes + 1) / 2).ravel()
    weights = np.tile(w / 2, 20) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    x = np.sqrt(0.8) * x
    for L in (2.0, 40.0, 1e6):
        p = lp.participation(a * np.sqrt(0.8) * np.abs(x), L)
        p2, p3, p22 = (np.asarray(m) for m in (p.p2, p.p3, p.p22))
        q, size = (a * 0.8 * x) ** 2 * 1.5, 1.5 * 0.8 + 0.3
        terms = b**2 * (q * (1 - p2 - 6 * p3 + 6 * p22) + size * p2)
        terms = terms - 2 * b * (1 - p2) * 1.5 * 0.8 * a * x**2 + 1.5 * x**2 + 0.3
        expected = weights @ terms / 2
        assert float(task.risk(lp.BlockParams([[a]], b), L).value) == pytest.approx(
            expected, rel=1e-9
        )


def _two_draws(S):
    """Two values of w with the second moment S."""
    return jnp.asarray(np.linalg.cholesky(S).T * np.sqrt(2))


def _gentle_risk(task_cov, noise, A, b, L):
    """The risk for Sig = I and small scores, in 40 digits: P_2 = e^s/L and P_3 = P_22 = 0 up to a
    factor 1 + O(1/L).

    E e^{xi'M xi} = det(I - 2M)^{-1/2}, and xi xi' has the mean (I - 2M)^{-1} under that weight.
    """
    with mp.workdps(40):
        S, A, b, noise, L = mp.matrix(task_cov), mp.matrix(A), mp.mpf(b), mp.mpf(noise), mp.mpf(L)
        eye = mp.eye(A.rows)
        tilted = (eye - 2 * A.T * A) ** -1
        mean = mp.sqrt(mp.det(tilted))
        error = b * A - eye

        def trace(left, right, inner):
            product = left.T * S * right * inner
            return sum(product[i, i] for i in range(A.rows))

        limit = trace(error, error, eye)
        first = trace(b * A, b * A, tilted) - 2 * trace(b * A, error, tilted)
        size = sum(S[i, i] for i in range(A.rows)) + noise
        return (limit + mean * (first + b**2 * size) / L + noise) / 2


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-3])
def test_risk_of_block_heads_at_long_prompts_against_mpmath(distance, noise):
    """At the limit head b Sig A = I and near it the risk of order 1/L has all its digits."""
    rng = np.random.default_rng(0)
    S = TASK_COV
    A = 0.25 * np.eye(2) + distance * rng.normal(size=(2, 2))
    task, block = lp.LinearRegression(np.eye(2), S, noise), lp.BlockParams(A, 4.0)
    for L in (1e13, 1e20, 1e25):
        expected = pytest.approx(float(_gentle_risk(S, noise, A, 4.0, L)), rel=2e-12)
        assert float(task.risk(block, L).value) == expected
        general = task.risk_function(L, draws=_two_draws(S))
        assert float(eqx.filter_jit(general)(block.general())) == expected


@pytest.mark.slow
@pytest.mark.parametrize("a", [0.55, 1.0, 1.6])
def test_risk_of_block_heads_at_long_prompts_against_an_integral(a):
    """d = 1, no noise, limit head: b^2/2 E[P_2 + s (P_2 - 6 P_3 + 6 P_22)], s = a^2 x^2, by panels
    over the query.
    """
    task = lp.LinearRegression([[1.0]])
    nodes, w = np.polynomial.legendre.leggauss(12)
    x = (np.arange(0.0, 15.0, 0.25)[:, None] + (nodes + 1) / 8).ravel()
    weights = np.tile(w / 4, 60) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    for L, precision in ((1e13, 1e-10), (1e15, 1e-10), (1e20, 1e-9), (1e30, 1e-6)):
        p = lp.participation(a * x, L)
        p2, p3, p22 = (np.asarray(m) for m in (p.p2, p.p3, p.p22))
        expected = weights @ (p2 + (a * x) ** 2 * (p2 - 6 * p3 + 6 * p22)) / (2 * a**2)
        found = float(task.risk(lp.BlockParams([[a]], 1 / a), L).value)
        assert found == pytest.approx(expected, rel=precision)


def test_risk_of_linear_attention_at_long_prompts():
    """At the limit head the risk is (tr S + tr S d) / (2L) for Sig = I and no noise, to the last
    digit.
    """
    task, block = lp.LinearRegression(np.eye(2), TASK_COV), lp.BlockParams(0.5 * np.eye(2), 2.0)
    for L in (1e13, 1e100):
        expected = pytest.approx(3 * np.trace(TASK_COV) / (2 * L), rel=1e-14)
        assert float(task.risk(block, L, "linear").value) == expected
        function = task.risk_function(L, "linear", _two_draws(TASK_COV))
        assert float(function(block.general())) == expected


def test_minimiser_of_long_prompts_without_noise():
    """d = 1: at L = 1e15 the best risk L R tends to the minimum over a of (1 + a^2/(1 - 2a^2)) / (2
    a^2 sqrt(1 - 2a^2)).
    """
    a = np.linspace(0.3, 0.6, 30_001)
    limit = np.min((1 + a**2 / (1 - 2 * a**2)) / (2 * a**2 * np.sqrt(1 - 2 * a**2)))
    found = lp.LinearRegression([[1.0]]).minimiser(1e15)
    assert 1e15 * float(found.risk) == pytest.approx(limit, rel=1e-6)


def test_risk_at_infinity_and_its_approach():
    expected = infinite_block_risk(cov=COV, task_cov=TASK_COV, noise=0.2, A=A, b=1.2)
    assert float(TASK.risk(PARAMS, np.inf).value) == pytest.approx(expected, rel=1e-12)
    assert float(TASK.risk(PARAMS, np.inf, "linear").value) == pytest.approx(expected, rel=1e-12)
    assert float(TASK.risk(PARAMS, 1e12, "linear").value) == pytest.approx(expected, rel=1e-10)
    gentle = lp.BlockParams(A / 4, 1.2)  # score variances below 1/2, where the rate is 1/L
    gaps = [float(TASK.risk(gentle, L).value - TASK.risk(gentle, np.inf).value) for L in (1e6, 1e7)]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("L", [3.0, 1e9])
def test_risk_gradient_against_finite_differences(L):
    """The first call at a length is traced here: the table it caches must serve later calls."""
    exponential_table.cache_clear()

    def risk(a, b):
        return TASK.risk(lp.BlockParams(a, b), L).value

    by_A, by_b = jax.jit(jax.grad(risk, argnums=(0, 1)))(jnp.asarray(A), jnp.asarray(1.2))
    h = 1e-5
    for i, j in ((0, 0), (0, 1), (1, 0)):
        E = np.zeros((2, 2))
        E[i, j] = h
        difference = (risk(A + E, 1.2) - risk(A - E, 1.2)) / (2 * h)
        assert float(by_A[i, j]) == pytest.approx(float(difference), rel=1e-6, abs=1e-9)
    assert float(by_b) == pytest.approx(
        float(risk(A, 1.2 + h) - risk(A, 1.2 - h)) / (2 * h), rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [1, 3])
def test_risk_of_the_general_form_agrees_with_the_block_form(dimensions):
    """Quadrature is exact here; quasi-random tasks: five standard errors of eight scramblings
    (Student, 7 degrees of freedom: false alarms below 0.2%).
    """
    rng = np.random.default_rng(4)
    factor = rng.normal(size=(3, dimensions))
    task = lp.LinearRegression(np.eye(3), factor @ factor.T, 0.2)
    block = lp.BlockParams(0.5 * rng.normal(size=(3, 3)), 0.8)
    method = None if dimensions == 1 else lp.QuasiMonteCarlo(KEY)
    found = task.risk(block.general(), 20, method=method)
    exact = float(task.risk(block, 20).value)
    assert abs(found.value - exact) <= 5 * found.error
    assert found.error < (1e-13 if dimensions == 1 else 0.02) * exact


@pytest.mark.slow
@pytest.mark.parametrize(("d", "scale"), [(1, 1.0), (2, 4.0), (3, 3.0)])
def test_risk_of_general_heads_against_brute_force(d, scale):
    """20,000 prompts, 5 standard errors: false alarms below 1e-5. Tasks far out have scores of
    deviation 100, and count.
    """
    rng = np.random.default_rng(8)
    U, v = scale * rng.normal(size=(d + 1, d + 1)), rng.normal(size=d + 1)
    setting = {"cov": np.eye(d), "task_cov": np.eye(d) + 0.2, "noise": 0.2}
    losses = simulate(**setting, U=U, v=v, L=8, n=20_000, seed=1)
    method = None if d <= 2 else lp.QuasiMonteCarlo(KEY, points=64)
    task = lp.LinearRegression(np.eye(d), np.eye(d) + 0.2, 0.2)
    found = task.risk(lp.HeadParams(U, v), 8, method=method)
    error = np.hypot(losses.std() / np.sqrt(len(losses)), found.error)
    assert abs(losses.mean() - found.value) <= 5 * error
    assert found.error < (1e-6 if d == 1 else 0.05) * found.value


@pytest.mark.slow
def test_risk_error_of_quadrature_covers_a_finer_rule():
    """Two dimensions: `fresh_risk` has 22 nodes an axis, `risk` 45."""
    rng = np.random.default_rng(0)
    head = lp.HeadParams(1.5 * rng.normal(size=(3, 3)), rng.normal(size=3))
    fine = TASK.risk(head, 10)
    fresh = TASK.fresh_risk(10, like=head)
    assert fresh is not None
    coarse = fresh(jax.tree.map(lambda leaf: leaf[None], head))
    assert fine.error < coarse.error[0]
    assert 0 < abs(coarse.value[0] - fine.value) <= coarse.error[0]


@pytest.mark.slow
def test_risk_error_of_quasi_random_w_shrinks_with_their_number():
    """16 times the points, at most half the error."""
    rng = np.random.default_rng(0)
    head = lp.HeadParams(rng.normal(size=(4, 4)) / 2, rng.normal(size=4))
    task = lp.LinearRegression(np.eye(3))
    few, many = (task.risk(head, 10, method=lp.QuasiMonteCarlo(KEY, points=n)) for n in (32, 512))
    assert many.error < few.error / 2


def test_risk_of_an_array_of_lengths():
    task, params = lp.LinearRegression(np.eye(2)), lp.BlockParams(np.eye(2) / 2, 1.5)
    lengths = np.array([[3.0, 10.0], [100.0, np.inf]])
    found = task.risk(params, lengths)
    assert found.value.shape == found.error.shape == (2, 2)
    for index in np.ndindex(2, 2):
        assert found.value[index] == task.risk(params, lengths[index]).value


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("L", [10, np.inf])
def test_risk_by_all_methods_agrees(L, attention):
    """A general and a block head: sampled within 5 standard errors, a false alarm below 1e-5;
    quasi-random w within 8 of eight scramblings (Student, 7 degrees of freedom: below 1e-4).
    """
    for head in (lp.HeadParams(np.eye(3) / 2, np.array([0.2, -0.1, 1.0])), PARAMS):
        exact = TASK.risk(head, L, attention)
        assert isinstance(exact.method, lp.Exact)
        assert 0 < exact.error < 1e-8 * exact.value
        quasi = TASK.risk(head, L, attention, lp.QuasiMonteCarlo(KEY))
        assert abs(quasi.value - exact.value) <= 8 * quasi.error
        for whole in (True, False):
            method = lp.MonteCarlo(KEY, relative_error=0.02, whole_tokens=whole)
            found = TASK.risk(head, L, attention, method)
            assert found.method is method
            assert abs(found.value - exact.value) <= 5 * found.error
            assert found.error <= 0.02 * found.value


@pytest.mark.slow
def test_risk_function_has_a_gradient_in_block_form():
    """In the general form, at block parameters, over values of w and their negatives."""
    function = TASK.risk_function(30.0, draws=TASK.quasi_random_w(KEY, 4))
    gradient = jax.jit(jax.grad(function))(PARAMS.general())
    outside = np.asarray(gradient.U).copy()
    outside[:2, :2] = 0
    assert np.max(np.abs(outside)) < 1e-14
    assert np.max(np.abs(gradient.v[:2])) < 1e-14
    assert np.max(np.abs(gradient.U)) > 1e-2


@pytest.mark.parametrize(
    ("L", "softmax", "linear", "ridge"),
    [
        (10, 0.35446, 0.24697, 0.0976),
        (100, 0.12933, 0.08052, 0.0526),
        (1000, 0.06001, 0.05323, 0.0503),
    ],
)
def test_minimiser_has_known_risks(L, softmax, linear, ridge):
    """d = 5, Sig = I, S_w = I/5, tau^2 = 0.1: numbers known from an independent computation."""
    task = lp.LinearRegression(np.eye(5), np.eye(5) / 5, 0.1)
    found = task.minimiser(L)
    assert float(found.risk) == pytest.approx(softmax, abs=6e-6)
    assert float(found.gradient_norm) < 1e-12
    closed = task.minimiser(L, "linear")
    assert float(closed.risk) == pytest.approx(linear, abs=6e-6)
    assert float(closed.gradient_norm) < 1e-12
    bayes = task.bayes_risk(L, lp.MonteCarlo(KEY))
    assert abs(bayes.value - ridge) <= 5 * bayes.error + 6e-4 * ridge + 5e-5


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e4, 1e12])
@pytest.mark.parametrize("what", ["cov", "task_cov", "query_cov"])
def test_minimiser_does_not_depend_on_units(what, scale, attention):
    """Inputs, tasks or queries in other units: the same head, and risk above the noise."""
    given = {"cov": COV, "task_cov": TASK_COV, "noise_variance": 0.2, "query_cov": 2 * COV}
    scaled = given | {what: scale * given[what]}
    if what != "query_cov":
        scaled["noise_variance"] = 0.2 * scale
    best, found = (lp.LinearRegression(**task).minimiser(10, attention) for task in (given, scaled))
    ratio = 1.0 if what == "cov" else scale  # of E (w'x_q)^2
    expected = scaled["noise_variance"] / 2 + ratio * (float(best.risk) - 0.1)
    assert float(found.risk) == pytest.approx(expected, rel=1e-12)
    slope, expected = (float(m.params.b) * np.asarray(m.params.A) for m in (found, best))
    assert slope == pytest.approx(expected / (scale if what == "cov" else 1.0), rel=1e-6)


def test_minimiser_at_large_length_sits_in_the_valley():
    found = TASK.minimiser(1e9)
    product = float(found.params.b) * np.asarray(COV @ found.params.A)
    np.testing.assert_allclose(product, np.eye(2), atol=1e-6)
    assert float(found.risk) == pytest.approx(0.1, abs=1e-7)
    assert float(TASK.minimiser(np.inf).risk) == pytest.approx(0.1, abs=1e-12)


@pytest.mark.slow
def test_bayes_risk_against_ridge_and_without_noise():
    losses = simulate_ridge(cov=COV, task_cov=TASK_COV, noise=0.2, L=3, n=40_000, seed=0)
    found = TASK.bayes_risk(3, lp.MonteCarlo(KEY))
    assert abs(losses.mean() - found.value) <= 5 * np.hypot(
        losses.std() / np.sqrt(len(losses)), found.error
    )
    assert float(TASK.bayes_risk(np.inf).value) == pytest.approx(0.1)
    plain = lp.LinearRegression(np.eye(4))  # L tokens reveal L of the 4 directions
    for L, left in ((1, 3), (3, 1), (4, 0), (9, 0)):
        risk = plain.bayes_risk(L, lp.MonteCarlo(KEY))
        assert abs(risk.value - left / 2) <= 5 * risk.error + 1e-9


@pytest.mark.slow
def test_risk_in_32_bit_mode():
    expected = float(TASK.risk(PARAMS, 25).value)
    with jax.enable_x64(False):
        found = lp.LinearRegression(COV, TASK_COV, 0.2).risk(lp.BlockParams(A, 1.2), 25).value
    assert found.dtype == jnp.float64
    assert float(found) == pytest.approx(expected, rel=1e-6)  # the inputs were rounded to float32


def test_risk_with_another_query_covariance():
    """Both attentions and ridge regression by brute force, and the limit.

    5 standard errors: false alarms below 1e-5 each.
    """
    query_cov = np.array([[0.5, -0.3], [-0.3, 1.4]])
    task = lp.LinearRegression(COV, TASK_COV, 0.2, query_cov=query_cov)
    general = PARAMS.general()
    setting = {"cov": COV, "task_cov": TASK_COV, "noise": 0.2, "L": 6, "query_cov": query_cov}
    for attention in ("softmax", "linear"):
        losses = simulate(
            **setting,
            U=np.asarray(general.U),
            v=np.asarray(general.v),
            n=40_000,
            seed=7,
            attention=attention,
        )
        gap = losses.mean() - float(task.risk(PARAMS, 6, attention).value)
        assert abs(gap) <= 5 * losses.std() / np.sqrt(len(losses))
    ridge, found = (
        simulate_ridge(**setting, n=20_000, seed=8),
        task.bayes_risk(6, lp.MonteCarlo(KEY)),
    )
    error = np.hypot(ridge.std() / np.sqrt(len(ridge)), float(found.error))
    assert abs(ridge.mean() - float(found.value)) <= 5 * error
    gap = 1.2 * COV @ A - np.eye(2)
    limit = (np.trace(gap @ query_cov @ gap.T @ TASK_COV) + 0.2) / 2
    assert float(task.risk(PARAMS, np.inf).value) == pytest.approx(limit, rel=1e-12)
    assert float(task.minimiser(50.0, "linear").gradient_norm) < 1e-9


def test_linear_regression_of_noise_that_overflows_in_32_bit_mode(mode_32):
    """1e39 is finite as a float, and infinite in float32."""
    with pytest.raises(
        ValueError, match="noise_variance must have entries in the range of float32"
    ):
        lp.LinearRegression(np.eye(1, dtype=np.float32), noise_variance=1e39)
