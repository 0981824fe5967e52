"""Risk and gradient of block heads by NumPy, against autodiff of JAX and differences."""

import tracemalloc
from collections.abc import Callable

import jax
import numpy as np
import pytest

import largeprompt as lp


def _covariance(rng: np.random.Generator, d: int, rank: int | None = None) -> np.ndarray:
    factor = rng.normal(size=(d, rank or d))
    return factor @ factor.T / d


def _by_numpy(function, params: lp.BlockParams) -> Callable:
    evaluate = function.by_numpy(params)
    assert evaluate is not None
    return evaluate


def _task(rng: np.random.Generator, d: int) -> lp.LinearRegression:
    return lp.LinearRegression(
        _covariance(rng, d), _covariance(rng, d), 0.1, _covariance(rng, d, max(1, d - 1))
    )


@pytest.mark.parametrize(
    ("d", "L", "attention"),
    [
        (1, 2.5, "softmax"),
        (3, 10.0, "softmax"),
        (3, 1e9, "softmax"),
        (2, np.inf, "softmax"),
        (3, 20.0, "linear"),
    ],
)
@pytest.mark.parametrize("scale", [0.0, 0.1, 2.0])
def test_by_numpy_is_the_gradient_of_the_jax_program(d, L, attention, scale):
    """Not symmetric heads, three unrelated covariances, that of the queries singular."""
    rng = np.random.default_rng(d)
    function = _task(rng, d).risk_function(L, attention)
    params = lp.BlockParams(scale * rng.normal(size=(d, d)), rng.normal())
    value, gradient = _by_numpy(function, params)(np.asarray(params.A), np.asarray(params.b))
    expected, slope = jax.jit(jax.value_and_grad(function))(params)
    assert value == pytest.approx(float(expected), rel=1e-13)
    for found, wanted in zip(gradient, (slope.A, slope.b), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13 * abs(value))


def test_by_numpy_gradient_by_differences():
    rng = np.random.default_rng(0)
    function = _task(rng, 2).risk_function(5.0)
    A, b = rng.normal(size=(2, 2)), np.asarray(0.7)
    evaluate = _by_numpy(function, lp.BlockParams(A, b))
    gradient = evaluate(A, b)[1]
    for i, j in np.ndindex(2, 2):
        move = np.zeros((2, 2))
        move[i, j] = 1e-5
        difference = (evaluate(A + move, b)[0] - evaluate(A - move, b)[0]) / 2e-5
        assert gradient[0][i, j] == pytest.approx(difference, rel=1e-7)
    ahead, behind = np.asarray(b + 1e-5), np.asarray(b - 1e-5)
    difference = (evaluate(A, ahead)[0] - evaluate(A, behind)[0]) / 2e-5
    assert float(gradient[1]) == pytest.approx(difference, rel=1e-7)


def test_by_numpy_is_nan_beyond_the_table():
    task = lp.LinearRegression(np.eye(2))
    params = lp.BlockParams(2e3 * np.eye(2), 1.0)
    evaluate = _by_numpy(task.risk_function(10.0), params)
    value, gradient = evaluate(np.asarray(params.A), np.ones(()))
    assert np.isnan(value)
    assert np.isnan(gradient[0]).all()


def test_by_numpy_is_for_block_heads_only():
    task = lp.LinearRegression(np.eye(2))
    assert task.risk_function(10.0).by_numpy(lp.HeadParams(np.eye(3), np.ones(3))) is None


@pytest.mark.parametrize("L", [7.0, 1e9])
def test_minimiser_with_shared_eigenvectors_is_that_of_all_matrices(L, monkeypatch):
    """The same minimiser by eigenvalues alone and among all matrices."""
    from largeprompt.icl import minimise

    axes = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    cov, task_cov = (axes @ np.diag(sizes) @ axes.T for sizes in ([1, 0.5, 0.2], [1.0, 1.0, 0.3]))
    task = lp.LinearRegression(cov, task_cov, 0.1)
    assert minimise._shared_axes(task) is not None
    few = task.minimiser(L)
    monkeypatch.setattr(minimise, "_shared_axes", lambda task: None)
    many = task.minimiser(L)
    np.testing.assert_allclose(few.params.A, many.params.A, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(few.params.b, many.params.b, rtol=1e-7)


@pytest.mark.parametrize("L", [7.0, 1e4])
def test_minimiser_without_a_stored_hessian(L, monkeypatch):
    from largeprompt.icl import minimise

    task = _task(np.random.default_rng(2), 3)
    dense = task.minimiser(L)
    monkeypatch.setattr(minimise, "_DENSE", 0)
    streamed = task.minimiser(L)
    np.testing.assert_allclose(streamed.risk, dense.risk, rtol=1e-12)
    np.testing.assert_allclose(streamed.params.b, dense.params.b, rtol=1e-4)


def test_minimiser_in_many_dimensions_needs_little_memory():
    d = 60
    tracemalloc.start()
    found = lp.LinearRegression(np.diag(np.linspace(0.5, 1.5, d))).minimiser(1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert float(found.gradient_norm) <= 1e-9
    assert peak < 8 * d**4 / 2  # half the bytes of a Hessian in all entries of A
