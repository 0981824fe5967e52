# pyright: reportArgumentType=false
"""`prefix_difference` and `nested_moments` against sampled prompts and values found elsewhere."""

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.participation import nested_moments, participation, participation_moment

LINE, NORMAL = lp.Head(U=[[1.0]], V=[[1.0]]), lp.Gaussian([0.0], [[1.0]])


@pytest.mark.parametrize(
    ("first", "L", "expected"), [(5, 10, 0.748387376424), (10, 40, 0.830186598307)]
)
def test_prefix_difference_computed_elsewhere(first, L, expected):
    """E T_first T_L by polarisation."""
    squares = lp.finite_second_moment(LINE, NORMAL, [1.0], np.array([first, L])).sum()
    found = lp.prefix_difference(LINE, NORMAL, [1.0], first, L)
    assert float(squares - found) / 2 == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("sigma", "L", "ratio"),
    [(0.5, 20, 0.98), (0.5, 200, 0.997), (1, 20, 0.87), (1, 200, 0.945), (1.5, 200, 0.81)],
)
def test_prefix_difference_as_an_error_bar(sigma, L, ratio):
    found = lp.prefix_difference(LINE, NORMAL, [sigma], L / 2, L)
    expected = lp.output_error(LINE, NORMAL, [sigma], L)
    assert float(found / expected) == pytest.approx(ratio, abs=0.005)


def test_prefix_difference_by_simulation():
    """Three comparisons at 4.5 standard errors: a false alarm in fewer than 1 of 40,000 seeds."""
    rng = np.random.default_rng(5)
    root, mean = rng.normal(size=(3, 2)) * 0.6, rng.normal(size=3)  # a singular covariance
    U, V, z = 0.6 * rng.normal(size=(3, 3)), rng.normal(size=(2, 3)), rng.normal(size=3)
    tokens = mean + rng.normal(size=(50_000, 15, 2)) @ root.T
    weights = np.exp(tokens @ (U @ z))

    def output(count):
        some = weights[:, :count, None]
        return (some * tokens[:, :count]).sum(1) / some.sum(1) @ V.T

    firsts = np.array([1.0, 6.0, 14.0])
    found = lp.prefix_difference(lp.Head(U=U, V=V), lp.Gaussian(mean, root @ root.T), z, firsts, 15)
    for first, value in zip(firsts, found, strict=True):
        squares = ((output(15) - output(int(first))) ** 2).sum(1)
        deviation = squares.std() / np.sqrt(len(squares))
        assert abs(float(value) - squares.mean()) < 4.5 * deviation


def test_prefix_difference_of_the_whole_and_of_the_infinite_prompt():
    whole, infinite = lp.prefix_difference(LINE, NORMAL, [2.0], 30, np.array([30.0, np.inf]))
    error = float(lp.output_error(LINE, NORMAL, [2.0], 30))
    assert abs(float(whole)) < 1e-11 * error
    assert float(infinite) == pytest.approx(error, rel=1e-13)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 3.0, 6.0])
def test_nested_moments_of_the_whole_prompt_are_those_of_one_softmax(sigma):
    L = np.array([1.0, 2.0, 50.0, 1e9])
    found, one = nested_moments(sigma, L, L), participation(sigma, L)
    np.testing.assert_allclose(found.c11, one.p2, rtol=1e-9)
    np.testing.assert_allclose(found.c12, one.p3, rtol=1e-9)
    np.testing.assert_allclose(found.b2c11, one.p22, rtol=1e-9)
    np.testing.assert_allclose(found.c22, participation_moment((4,), sigma, L), rtol=1e-9)
    assert np.all(np.asarray(found.error) < 1e-9)


def test_nested_moments_of_uniform_weights():
    found = nested_moments(0.0, np.array([1.0, 4.0, 1e6]), 1e6)
    first = np.array([1.0, 4.0, 1e6])
    np.testing.assert_allclose(found.c11, 1e-6 * np.ones(3), rtol=1e-10)
    np.testing.assert_allclose(found.a2b2, 1e-6 / first, rtol=1e-10)


@pytest.mark.slow
def test_prefix_difference_under_jit_and_grad():
    def difference(z, first, L):
        return lp.prefix_difference(LINE, NORMAL, z, first, L)

    args, step = (np.array([1.3]), 6.0, 17.0), 1e-4
    value, slopes = jax.jit(jax.value_and_grad(difference))(*args)
    assert float(value) == pytest.approx(float(difference(*args)), rel=1e-11)
    up, down = (float(difference(args[0] + sign * step, 6.0, 17.0)) for sign in (1, -1))
    assert float(slopes[0]) == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: lp.prefix_difference(LINE, NORMAL, [1.0], 11, 10), "first <= L"),
        (lambda: lp.prefix_difference(LINE, NORMAL, [1.0], 0, 10), "L must be >= 1"),
        (lambda: lp.prefix_difference(LINE, NORMAL, [13.0], 5, 10), "at most 12"),
        (lambda: lp.prefix_difference(LINE, lp.Uniform(1), [1.0], 5, 10), "known for Gaussian"),
    ],
)
def test_prefix_difference_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call()
