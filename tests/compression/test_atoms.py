"""Rules for atoms and corrections of their values, against loops and known answers."""

from typing import get_args

import numpy as np
import pytest

import largeprompt as lp
from largeprompt.compression import atoms, correction
from largeprompt.compression.compress import Choose

RULES = get_args(Choose)


def test_spread_keeps_mean_and_covariance_of_independent_queries():
    z = np.random.default_rng(0).normal(size=(128, 3)) * [1.0, 2.0, 0.1] + 4.0
    wide = atoms.spread(z)
    assert wide.shape == (512, 3)
    np.testing.assert_array_equal(wide[:128], z)
    np.testing.assert_allclose(wide.mean(axis=0), z.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(wide.std(axis=0), z.std(axis=0), rtol=0.1)
    for few_or_many in (z[:5], np.tile(z, (5, 1))):
        assert atoms.spread(few_or_many) is few_or_many


def test_block_residuals_are_those_of_fits_without_the_block():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(32, 5)), rng.normal(size=(32, 2))

    def inverse(rows):
        return np.linalg.inv(X[rows].T @ X[rows] + 0.3 * np.eye(5))

    found = correction.block_residuals(X @ inverse(np.arange(32)) @ X.T, y)
    for block in np.split(np.arange(32), 8):
        rest = np.setdiff1d(np.arange(32), block)
        want = y[block] - X[block] @ inverse(rest) @ X[rest].T @ y[rest]
        np.testing.assert_allclose(found[block], want, rtol=1e-9)


def test_value_changes_repair_wrong_values_and_ignore_noise():
    rng = np.random.default_rng(0)
    p, wrong = rng.dirichlet(np.ones(4), size=64), rng.normal(size=(4, 3))
    changes = correction.value_changes(p, p @ wrong)
    assert changes is not None
    np.testing.assert_allclose(changes, wrong, rtol=0.02, atol=0.01)
    signs = np.where(np.arange(64) // 8 % 2, -1.0, 1.0)[:, None]  # nothing that blocks agree on
    assert correction.value_changes(np.full((64, 2), 0.5), signs) is None
    assert correction.value_changes(p[:7], p[:7] @ wrong) is None


def test_compress_moves_values_and_never_keys():
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(200, 3)), rng.normal(size=(200, 2))
    values += np.sin(3 * keys[:, :2])
    queries = rng.normal(size=(80, 3))
    small = lp.compress(lp.KeyValues(keys, values), queries, atoms=12, rank=1, keep=[5])
    index = [int(np.flatnonzero((keys == key).all(axis=1))[0]) for key in np.asarray(small.keys)]
    assert 5 in index
    assert not np.allclose(small.values, values[index])
    plain = lp.compress(lp.KeyValues(keys, values), queries, atoms=12, rank=None)
    index = [int(np.flatnonzero((keys == key).all(axis=1))[0]) for key in np.asarray(plain.keys)]
    np.testing.assert_array_equal(plain.values, values[index])


@pytest.mark.parametrize("choose", RULES)
@pytest.mark.parametrize("rank", [None, 0, 2])
def test_compress_by_every_rule_with_identical_tokens(choose, rank):
    prompt = lp.KeyValues(np.ones((7, 3)), np.ones((7, 2)))
    queries = np.random.default_rng(0).normal(size=(64, 3))
    small = lp.compress(prompt, queries, atoms=2, rank=rank, choose=choose, keep=[1])
    assert small.n == 2
    assert small.error is not None
    assert small.error.mean == 0
