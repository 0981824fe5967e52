"""The search for the shortest prompt."""

import math

import numpy as np
import pytest

from largeprompt._search import smallest_length


@pytest.mark.parametrize("tolerance", [2.0, 0.5, 0.1, 3e-3, 1e-7])
def test_smallest_length_of_a_power(tolerance):
    expected = max(1.0, math.ceil(1 / tolerance - 1e-9))

    def too_large(lengths):
        return 1 / lengths > tolerance * (1 + 1e-12)

    assert smallest_length(too_large, 1e15) == expected
    evaluated = []

    def counted(lengths):
        evaluated.extend(lengths.tolist())
        return too_large(lengths)

    assert smallest_length(counted, 1e9, guess=lambda low, high: 1 / tolerance) == expected
    assert all(float(length).is_integer() for length in evaluated)
    assert len(evaluated) <= 4 + math.log10(expected) + 2


def test_smallest_length_counts_the_last_crossing():
    """An error that is small at L = 1, rises, and falls again to that of 61 tokens."""

    def error(length):
        return length / (1 + length / 10) ** 3

    assert error(1) < error(5) > error(61)
    found = smallest_length(lambda lengths: error(lengths) > 0.999 * error(61), 1e15)
    assert found == 62


def test_smallest_length_beyond_the_longest():
    assert smallest_length(lambda L: np.ones(len(L), bool), 1e6) == math.inf
    assert smallest_length(lambda L: np.ones(len(L), bool), 1e6, guess=max) == math.inf
