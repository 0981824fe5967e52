# pyright: reportCallIssue=false
"""The general engine against mpmath, Stein reductions and brute force."""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from largeprompt.participation.score_moments import score_moment
from largeprompt.participation.weight_moments import participation

from ..oracles.simulation import product_of_sums, simulate
from .reductions import stein_moment

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
CASES = [((1, 1),), ((2, 1),), ((2, 2), (1, 1)), ((1, 2), (1, 1), (0, 1))]


@pytest.mark.parametrize("factors", CASES, ids=str)
def test_score_moment_against_stein_reduction(factors):
    sigma = np.array([0.05, 0.6, 0.9, 2.0, 4.0, 6.0])[:, None]
    length = np.array([1.0, 1.5, 2.0, 10.0, 1e3, 1e6])
    direct = np.asarray(score_moment(factors, sigma, length))
    reduced = np.asarray(stein_moment(factors, sigma, length))
    # Both are exact, rounding apart: the engine's is relative to |s|^j, the reduction's to its
    # largest power sigma^(2j).
    degree = sum(j for j, _ in factors)
    assert np.all(np.abs(direct - reduced) <= 1e-12 * (sigma**degree + sigma ** (2 * degree)))


@pytest.mark.parametrize("row", REFERENCE["scores"], ids=lambda row: str(row["factors"]))
def test_score_moment_against_reference(row):
    factors = tuple(map(tuple, row["factors"]))
    found = score_moment(factors, float(row["sigma"]), float(row["L"]), float(row["centre"]))
    np.testing.assert_allclose(found, float(row["value"]), rtol=1e-12)


def test_score_moment_without_scores_is_a_participation_moment():
    found = score_moment(((0, 2), (0, 2)), 1.7, 40.0)
    np.testing.assert_allclose(found, participation(1.7, 40.0).p22, rtol=1e-13)
    np.testing.assert_allclose(score_moment(((0, 1),), [0.0, 1.0, 6.0], 1e6), 1.0, rtol=1e-12)


@pytest.mark.parametrize("factors", CASES, ids=str)
def test_score_moment_against_brute_force(factors):
    # 4 moments x 4 settings, each a two-sided test at 5 standard errors: false-alarm rate below
    # 16 x 6e-7 = 1e-5
    centre, settings = 0.3, [(0.7, 3), (0.7, 40), (2.5, 3), (2.5, 40)]
    found = np.asarray(score_moment(factors, *np.array(settings).T, centre))
    for value, (sigma, length) in zip(found, settings, strict=True):
        mean, error = simulate(product_of_sums(factors, centre), sigma, length, 50_000, seed=5)
        assert abs(value - mean) < 5 * error, (sigma, length, value, mean, error)


def test_score_moment_of_an_infinite_prompt():
    sigma, c = 1.2, 0.5
    mean = sigma**2 - c
    assert score_moment(((2, 2), (1, 1)), sigma, math.inf) == 0.0
    found = score_moment(((2, 1),), sigma, math.inf, c)
    np.testing.assert_allclose(found, mean**2 + sigma**2, rtol=1e-14)
    nearly = score_moment(((2, 1),), sigma, 1e11, c)
    np.testing.assert_allclose(nearly, mean**2 + sigma**2, rtol=1e-9)


def test_score_moment_derivative():
    def mean_score(sigma):
        return score_moment(((1, 1),), sigma, 20.0)

    def reduced(sigma):
        return sigma**2 * (1 - participation(sigma, 20.0).p2)

    np.testing.assert_allclose(jax.grad(mean_score)(1.1), jax.grad(reduced)(1.1), rtol=1e-11)
