"""Normals by name: the generator judged by JAX's own, the numbers by their law and by NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from largeprompt.prompts import normals
from largeprompt.prompts.normals import counters, normal_pairs, threefry, words

KEY = words(jax.random.key(3))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_normal_pairs_are_normal(dtype):
    """Normal, independent of each other: Kolmogorov-Smirnov and correlations of powers at 1e-6
    each.
    """
    pair = normal_pairs(KEY, 1, counters((200_000,)), dtype)
    assert all(a.dtype == dtype for a in pair)
    g, e = (np.asarray(a, np.float64) for a in pair)
    for sample in (g, e, (g + e) / np.sqrt(2)):
        result: Any = stats.kstest(sample, "norm")
        assert result.pvalue > 1e-6
    for a, b in ((g, e), (g**2, e**2), (g**2, e), (g, e**3), (g[1:], g[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.9 / np.sqrt(len(g) - 1)


def test_normal_pairs_in_both_precisions():
    single, double = (
        normal_pairs(KEY, 4, counters((5000,)), t) for t in (jnp.float32, jnp.float64)
    )
    assert np.allclose(single, double, rtol=1e-4, atol=3e-6)
    assert not np.array_equal(single, double)


def test_normal_pairs_of_streams_and_keys_differ():
    names = [(KEY, 0), (KEY, 1), (words(jax.random.key(4)), 0)]
    found = [np.asarray(normal_pairs(key, stream, counters((4000,)))) for key, stream in names]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(found[i].ravel(), found[j].ravel())[0, 1]) < 4.9 / np.sqrt(8000)


def test_normal_pairs_of_extreme_bits():
    """The words 0 and 2^32 - 1 are the ends of the radius: 6.76 and 0 in float32, no infinity, no
    NaN.
    """
    ends = jnp.array([0, 1, 2**31, 2**32 - 1], jnp.uint32)
    unit = np.asarray(normals._unit_of_32_bits(ends), np.float64)
    assert np.allclose(unit, (np.array([0, 1, 2**31, 2**32 - 1]) + 0.5) / 2**32, rtol=1e-7)
    assert np.all(unit > 0)
    assert np.all(unit <= 1)
    assert np.sqrt(-2 * np.log(unit[0])) == pytest.approx(6.763, abs=1e-3)
    for part in (normals._unit_of_23_bits(ends), normals._unit_of_52_bits(ends, ends)):
        assert np.all(np.asarray(part) > 0)
        assert np.all(np.asarray(part) < 1)


def test_threefry_is_that_of_jax():
    counter = jnp.arange(5, dtype=jnp.uint32)
    ours = threefry(KEY, 7, counter)
    theirs = threefry_2x32(KEY, jnp.concatenate([jnp.full_like(counter, 7), counter]))
    assert np.array_equal(jnp.concatenate(ours), theirs)
