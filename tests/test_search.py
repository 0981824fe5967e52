"""The search for the shortest prompt."""

import math

import numpy as np
import pytest

from largeprompt._search import last_crossing, scan, smallest_length


@pytest.mark.parametrize("tolerance", [2.0, 0.5, 0.1, 3e-3, 1e-7])
def test_smallest_length_of_a_power(tolerance):
    expected = max(1.0, math.ceil(1 / tolerance - 1e-9))
    evaluated = []

    def counted(lengths):
        evaluated.extend(lengths.tolist())
        return 1 / lengths > tolerance * (1 + 1e-12)

    assert smallest_length(counted, 1e9, guess=lambda low, high: 1 / tolerance) == expected
    assert all(float(length).is_integer() for length in evaluated)
    assert len(evaluated) <= 4 + math.log10(expected) + 2


def test_smallest_length_beyond_the_longest():
    assert smallest_length(lambda L: np.ones(len(L), bool), 1e6, guess=max) == math.inf


@pytest.mark.parametrize("tolerance", [2.0, 0.5, 0.1, 3e-3, 1e-7])
@pytest.mark.parametrize("signs", [False, True])
def test_last_crossing_of_a_power(tolerance, signs):
    expected = max(1.0, math.ceil(1 / tolerance - 1e-9))

    def excess(lengths):
        value = 1 / lengths - tolerance * (1 + 1e-12)
        return value > 0 if signs else value

    assert last_crossing(excess, scan(1e15)) == expected


def test_last_crossing_is_the_last_of_several():
    """An error that is small at L = 1, rises, and falls again to that of 61 tokens."""

    def error(length):
        return length / (1 + length / 10) ** 3

    assert error(1) < error(5) > error(61)
    assert last_crossing(lambda L: error(L) - 0.999 * error(61), scan(1e15)) == 62


@pytest.mark.parametrize("power", [1, 2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_last_crossing_sees_every_hump(power, seed):
    """The narrowest errors, L^k e^{-Lx}, anywhere in the range, barely above a tolerance that
    every other length meets; the crossing by a root of Lambert's function.
    """
    from scipy.special import lambertw

    rng = np.random.default_rng(seed)
    top = 10 ** rng.uniform(1.5, 14.0)  # where the maximum lies
    barely = 10 ** rng.uniform(-5, -1)

    def excess(lengths):
        y = lengths / top
        return np.exp(power * (np.log(y) - y + 1)) - (1 - barely)

    # y e^-y = e^-1 (1 - barely)^(1/k)
    y = -lambertw(-np.exp(-1 + np.log1p(-barely) / power), -1).real
    found = last_crossing(excess, scan(1e15))
    assert found == pytest.approx(y * top, rel=2e-9, abs=1.0)
    assert excess(np.array([found]))[0] <= 0


def test_last_crossing_evaluates_few_lengths():
    evaluated = []

    def excess(lengths):
        evaluated.extend(lengths.tolist())
        return 1 / (1 + lengths) - 1e-6

    assert last_crossing(excess, scan(1e15)) == 999_999
    assert len(evaluated) < 130


def test_last_crossing_beyond_the_longest():
    assert last_crossing(lambda L: np.ones(len(L), bool), scan(1e6)) == math.inf
    assert last_crossing(lambda L: np.ones(len(L)), scan(1e6)) == math.inf


def test_last_crossing_starts_at_the_shortest():
    assert last_crossing(lambda L: -1 / L, scan(1e6, 100.0)) == 100
    assert last_crossing(lambda L: 1 / L - 1 / 105.5, scan(1e6, 100.0)) == 106
