"""Stein reductions: the known identities symbolically, brute force, and the cancellation-free
gradient moments.
"""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from largeprompt.participation.gradient_moments import gradient_moments, stein_form
from largeprompt.participation.stein import combine
from largeprompt.participation.weight_moments import participation

from ..differences import assert_slopes
from ..oracles.simulation import product_of_sums, simulate
from .reductions import stein_moment

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())


def test_combine_gives_known_identities():
    # E sum p s = sigma^2 (1 - P_2)
    assert combine(({((1, 1),): 1}, 0)) == {1: {(): 1, (2,): -1}}
    # E (sum p s)^2 = sigma^4 (1 - P_2 - 6 P_3 + 6 P_22) + sigma^2 P_2
    squared = {1: {(2,): 1}, 2: {(): 1, (2,): -1, (3,): -6, (2, 2): 6}}
    assert combine(({((1, 1), (1, 1)): 1}, 0)) == squared
    # E Var = sigma^2 (1 - P_2) - sigma^4 (2 P_2 - 8 P_3 + 6 P_22)
    variance = {1: {(): 1, (2,): -1}, 2: {(2,): -2, (3,): 8, (2, 2): -6}}
    assert combine(({((2, 1),): 1, ((1, 1), (1, 1)): -1}, 0)) == variance


def test_stein_form_has_no_constant_term():
    for name in ("variance_error", "dispersion", "coupling"):
        moments = [m for terms in stein_form(name).values() for m in terms]
        assert moments
        assert () not in moments
    assert stein_form("coupling")[0] == {(2, 2): -1}  # its P_2 has cancelled too


@pytest.mark.parametrize("factors", [((1, 1),) * 4, ((3, 2), (1, 1)), ((1, 3), (1, 2))], ids=str)
def test_combine_against_brute_force(factors):
    # 3 moments x 3 settings at 5 standard errors: false-alarm rate below 9 x 6e-7 = 5e-6
    settings = [(0.5, 4), (1.5, 30), (3.0, 10)]
    found = np.asarray(stein_moment(factors, *np.array(settings).T))
    for value, (sigma, length) in zip(found, settings, strict=True):
        mean, error = simulate(product_of_sums(factors), sigma, length, 100_000, seed=17)
        assert abs(value - mean) < 5 * error, (sigma, length, value, mean, error)


def test_combine_at_infinity_and_without_scores():
    np.testing.assert_allclose(stein_moment(((1, 1),), 1.5, math.inf), 1.5**2, rtol=1e-15)
    mean = 1.5**2 * (1 - participation(1.5, 9.0).p2)
    np.testing.assert_allclose(stein_moment(((1, 1),), 1.5, 9.0), mean, rtol=1e-13)


@pytest.mark.parametrize(
    "row", REFERENCE["gradients"], ids=lambda row: f"{row['sigma']}-{row['L']}"
)
def test_gradient_moments_against_reference(row):
    found = gradient_moments(float(row["sigma"]), float(row["L"]))
    for name in ("variance_error", "dispersion", "coupling"):
        np.testing.assert_allclose(getattr(found, name), float(row[name]), rtol=1e-10)
    assert found.error < 1e-10


def test_gradient_moments_at_the_edges():
    zero = gradient_moments(0.0, 10.0)  # p uniform, Var/sigma^2 -> chi-square over L
    np.testing.assert_allclose(zero.variance_error, (2 * 9 + 1) / 100, rtol=1e-12)
    np.testing.assert_allclose(zero.dispersion, 0.09, rtol=1e-12)
    one = gradient_moments(3.0, 1.0)  # one token: no variance left
    np.testing.assert_allclose([one.variance_error, one.coupling], [1.0, -1.0], rtol=1e-11)
    assert abs(one.dispersion) < 1e-10
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient_moments(2.0, math.inf)))


def test_gradient_moments_at_large_lengths():
    # L times each is constant to O(1/L) in the self-averaging phase: digits survive at L = 1e9
    near, far = gradient_moments(1.0, 1e8), gradient_moments(1.0, 1e9)
    np.testing.assert_allclose(far.variance_error * 1e9, near.variance_error * 1e8, rtol=1e-5)
    np.testing.assert_allclose(far.coupling * 1e18, near.coupling * 1e16, rtol=1e-5)
    assert far.error < 1e-12


@pytest.mark.slow
def test_gradient_moments_derivative():
    def value(sigma):
        return gradient_moments(sigma, 30.0).variance_error

    for sigma in (0.7, 3.0):
        assert_slopes(value, [sigma], [jax.jit(jax.grad(value))(sigma)], step=1e-4)
