# pyright: reportArgumentType=false
"""`participation` and `participation_moment` against mpmath, closed forms and differences."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from largeprompt.participation.weight_moments import (
    Participation,
    participation,
    participation_moment,
)

from ..errors import RAISED_UNDER_JIT
from ..oracles import participation as oracle
from ..oracles.pair import two_token_participation

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
NAMES = {"P2": "p2", "P3": "p3", "P22": "p22"}


# Values computed independently beforehand (about 14 digits).
def relative(found, expected) -> float:
    """|found/expected - 1| without rounding the expected value to a float first."""
    with mp.workdps(30):
        found = found if isinstance(found, str | mp.mpf) else float(found)
        return abs(float(mp.mpf(found) / mp.mpf(expected) - 1))


def test_participation_on_the_reference_grid_within_its_error():
    rows = REFERENCE["values"]
    found = participation([float(r["sigma"]) for r in rows], [float(r["L"]) for r in rows])
    for i, row in enumerate(rows):
        sigma = float(row["sigma"])
        worst = max(relative(getattr(found, field)[i], row[name]) for name, field in NAMES.items())
        assert worst <= (1e-12 if sigma <= 6 else 1e-11), (row, worst)
        assert worst <= 2 * float(found.error[i]), row
        assert found.error[i] <= 1e-11


def test_reference_agrees_with_the_closed_forms():
    for row in REFERENCE["values"]:
        if row["L"] == "2":
            expected = two_token_participation(row["sigma"])
            assert all(relative(row[name], expected[name]) < 1e-15 for name in NAMES), row
    fresh = oracle.participation("0", "1e3")  # the oracle itself, where it is quick
    assert all(
        relative(fresh[name], 10.0**-k) < 1e-15 for name, k in (("P2", 3), ("P3", 6), ("P22", 6))
    )


@pytest.mark.parametrize("sigma", [0.0, 1e-8, 0.3, 0.79, 0.81, 2.0, 6.0, 12.0, 30.0])
def test_participation_of_two_tokens(sigma):
    found, expected = participation(sigma, 2.0), two_token_participation(sigma)
    for name, field in NAMES.items():
        assert relative(getattr(found, field), expected[name]) < (1e-12 if sigma <= 12 else 1e-10)


def test_participation_of_one_token():
    found = participation(np.linspace(0, 12, 50), 1.0)
    for value in (found.p2, found.p3, found.p22):
        np.testing.assert_allclose(value, 1.0, rtol=1e-13)


def test_participation_of_an_infinite_prompt():
    found = participation([0.0, 3.0], math.inf)
    assert not np.any(found.p2)
    assert not np.any(found.p22)
    assert not np.any(found.error)
    assert participation_moment((1, 1), 3.0, math.inf) == 1.0
    assert participation_moment((2, 1), 3.0, math.inf) == 0.0
    assert jax.grad(lambda s: participation(s, jnp.inf).p2)(1.0) == 0.0


def test_participation_far_outside_the_tested_domain():
    found = participation(np.array([20.0, 30.0, 40.0]), 1.0)
    assert np.all(np.asarray(found.error) < 1e-5)
    for sigma in (41.0, 500.0):  # fewer than 100 tokens are not resolved there, and that is said
        with pytest.raises(ValueError, match="sigma must be at most 40"):
            participation(sigma, 7.0)
    assert participation(8.0, 1e100).error > 1e-10  # float64 loses part of phi_4, and says so
    assert np.all(np.abs(np.asarray(found.p2) - 1) <= 2 * np.asarray(found.error))


def test_participation_at_astronomic_lengths():
    """P_k -> e^{k(k-1) sigma^2/2} / L^{k-1} and P_22 -> P_2^2, to 6 e^{4 sigma^2} / L."""
    L = 10.0 ** np.arange(20, 101, 8)
    for sigma in (0.0, 0.5, 1.0, 2.0):
        found, tilt = participation(sigma, L), math.exp(sigma**2)
        assert np.all(np.asarray(found.error) < 1e-12)
        for value, limit in (
            (found.p2, tilt / L),
            (found.p3, tilt**3 / L / L),
            (found.p22, tilt**2 / L / L),
        ):
            assert np.all(np.abs(value / limit - 1) <= found.error + 6 * tilt**4 / L)


def test_participation_of_integer_lengths():
    assert float(participation(1.0, 2**64).p2) == float(participation(1.0, 2.0**64).p2)
    assert participation(0.0, [2**80, 3]).p2.shape == (2,)


@pytest.mark.parametrize("row", REFERENCE["moments"][1::2], ids=lambda row: str(row["ks"]))
def test_participation_moment_of_higher_orders(row):
    found = participation_moment(tuple(row["ks"]), float(row["sigma"]), float(row["L"]))
    assert relative(found, row["value"]) < 1e-12


def test_participation_moment_agrees_with_participation():
    sigma = np.array([0.0, 0.5, 1.5, 4.0])[:, None]
    length = np.array([1.0, 1.7, 30.0, 1e9])
    whole = participation(sigma, length)
    np.testing.assert_allclose(participation_moment((2,), sigma, length), whole.p2, rtol=1e-12)
    np.testing.assert_allclose(
        participation_moment((2, 1, 2), sigma, length), whole.p22, rtol=1e-12
    )
    np.testing.assert_array_equal(participation_moment((1, 1), sigma, length), 1.0)


def test_participation_derivative_against_reference_differences():
    rows = REFERENCE["slopes"]
    sigma = jnp.array([float(r["sigma"]) for r in rows])
    length = jnp.array([float(r["L"]) for r in rows])
    slope = jax.jvp(lambda s: participation(s, length), (sigma,), (jnp.ones_like(sigma),))[1]
    for i, row in enumerate(rows):
        for name, field in NAMES.items():
            assert relative(getattr(slope, field)[i], row[name]) < 1e-11, row


@pytest.mark.slow
def test_participation_reverse_forward_and_second_derivatives():
    length = 1e3

    def p2(sigma):
        return participation(sigma, length).p2

    points = jnp.array([0.0, 0.3, 0.799, 0.801, 2.5, 6.0])
    first = jax.jit(jax.vmap(jax.grad(p2)))
    slope = first(points)
    np.testing.assert_allclose(slope, jax.vmap(jax.jacfwd(p2))(points), rtol=1e-13, atol=1e-18)
    second = jax.vmap(jax.grad(jax.grad(p2)))(points)
    step = 1e-4
    around = (first(points[1:] + step) - first(points[1:] - step)) / (2 * step)
    np.testing.assert_allclose(second[1:], around, rtol=1e-6)
    # P_2 = 1/L + sigma^2 (1 - 1/L)/L + O(sigma^4)
    assert abs(slope[0]) < 1e-16
    np.testing.assert_allclose(second[0], 2 * (1 - 1 / length) / length, rtol=1e-12)


def test_participation_derivative_in_length():
    slope = jax.grad(lambda n: participation(0.0, n).p2)(20.0)
    np.testing.assert_allclose(slope, -1 / 400, rtol=1e-11)


def test_participation_is_float64_in_32_bit_mode(mode_32):
    before = jnp.zeros(()).dtype
    found = participation(np.float32(1.5), jnp.float32(10))
    assert isinstance(found, Participation)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(found))
    assert relative(found.p2, float(participation_moment((2,), 1.5, 10))) < 1e-13
    assert participation([0.5, 1.0, 1.5], 10).p22.dtype == np.float64
    assert jnp.zeros(()).dtype == before == np.float32


def test_participation_traced_in_32_bit_mode_names_the_fix(mode_32):
    fix = r'jax\.config\.update\("jax_enable_x64", True\)'
    with pytest.raises(ValueError, match=fix):
        jax.jit(lambda s: participation(s, 10.0).p2)(1.0)
    with pytest.raises(ValueError, match=fix):
        jax.grad(lambda n: participation_moment((2, 2), 1.0, n))(10.0)


SIGMA_RULE = r"sigma must be finite and >= 0, and at most 1e\+08"


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ((-1.0, 2.0), SIGMA_RULE),
        ((math.nan, 2.0), SIGMA_RULE),
        ((1.0, 0.5), r"L must be >= 1 and at most 1e\+100, or infinite"),
    ],
)
def test_participation_rejects_bad_values_under_jit(bad, rule):
    """One bad value among good ones, in arrays of the shape that is compiled already."""
    sigma, length = np.full((90, 1), 1.0), np.full(4, 10.0)
    sigma[50], length[2] = bad
    with pytest.raises(RAISED_UNDER_JIT, match=rule):
        jax.block_until_ready(jax.jit(participation)(sigma, length).p2)


def test_participation_everywhere_in_its_domain():
    """Random deviations to 1e8 and lengths to 1e100: finite, and ordered like moments of weights.

    1/L <= P_2 <= 1, P_2^2 <= P_3 <= P_2 and P_2^2 <= P_22 <= P_3 hold for every law of weights.
    """
    rng = np.random.default_rng(0)
    sigma = np.concatenate([rng.uniform(0, 40, 2000), 10.0 ** rng.uniform(1.6, 8, 2000)])
    L = np.concatenate([10.0 ** rng.uniform(0, 100, 2000), 10.0 ** rng.uniform(2, 100, 2000)])
    found = participation(sigma, L)
    p2, p3, p22, error = (np.asarray(a) for a in (found.p2, found.p3, found.p22, found.error))
    assert np.all(error < 1e-3)
    assert np.all(error[sigma <= 1e3] < 1e-6)
    slack = 1 + 4 * error + 1e-12
    assert np.all(p2 * slack >= 1 / L)
    assert np.all(p2 <= slack)
    for low, high in ((p2**2, p3), (p3, p2), (p2**2, p22), (p22, p3)):
        assert np.all(low <= high * slack)
