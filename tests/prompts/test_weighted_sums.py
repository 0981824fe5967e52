"""Sums over sampled tokens: by blocks, by the CPU's kernel and by the GPU's (interpreted), judged
by NumPy on the same normals.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largeprompt.prompts import weighted_sums as _weighted_sums
from largeprompt.prompts.normals import counters, normal_pairs, words
from largeprompt.prompts.sampling import _SCORES, SCORES_AND_VALUES
from largeprompt.prompts.weighted_sums import _by_blocks, capacity_for, fused_sums, weighted_sums

KEY = words(jax.random.key(11))
COSINE, SINE = 0.6, -0.8


@partial(jax.jit, static_argnums=(1, 2))
def _pairs(prompt, count, dtype):
    return normal_pairs(KEY, prompt, counters((count,)), dtype)


def _normals(prompt, L, layout, dtype):
    """The coordinates of the tokens of a prompt, from their names."""
    pair = _pairs(prompt, -(-L // layout.per_counter), dtype)
    g, e = (np.asarray(a, np.float64) for a in pair)
    return (np.stack([g, e], axis=1).ravel()[:L], None) if layout is _SCORES else (g, e)


def _ratios(first, second):
    """What the largest score cancels in."""
    return np.concatenate([first[:, 1:] / first[:, :1], second / first[:, :1] ** 2], axis=1)


def _oracle(prompt, L, sigma, layout, dtype):
    g, e = _normals(prompt, L, layout, dtype)
    w = np.exp(sigma * (g - g.max()))
    if layout is _SCORES:
        return np.array([w @ g / w.sum(), w @ w / w.sum() ** 2])
    assert e is not None
    v = COSINE * g + SINE * e
    once = np.stack([g, e, v * g, v * e]) @ w / w.sum()
    return np.concatenate([once, np.stack([np.ones_like(g), v, v * v]) @ w**2 / w.sum() ** 2])


def _scales(sigmas, layout, dtype):
    """What weighted_sums takes: deviations of scores, and the direction of values where there are
    some.
    """
    further = () if layout is _SCORES else (COSINE, SINE)
    return (jnp.asarray(sigmas, dtype), *(jnp.full(len(sigmas), x, dtype) for x in further))


def _compiled(ways):
    """All of them in one program."""
    return jax.jit(lambda *arguments: [way(*arguments) for way in ways])


@pytest.mark.parametrize(
    ("layout", "L", "sigma"),
    [
        (_SCORES, 1, 1.0),
        (_SCORES, 7, 30.0),
        (_SCORES, 40_001, 0.7),  # several blocks, an odd number of tokens
        (SCORES_AND_VALUES, 2, 0.0),
        (SCORES_AND_VALUES, 1000, 2.0),
    ],
)
@pytest.mark.slow
def test_weighted_sums_by_blocks_and_kernel_against_numpy(layout, L, sigma):
    prompts = np.array([0, 5, 2**32 - 1], np.uint32)
    capacity = capacity_for(L, layout)
    for dtype, tolerance in ((jnp.float64, 1e-12), (jnp.float32, 3e-5)):
        expected = [_oracle(prompt, L, sigma, layout, dtype) for prompt in prompts]
        scales, lengths = _scales([sigma] * 3, layout, dtype), jnp.full(3, L, jnp.uint32)
        arguments = KEY, jnp.asarray(prompts), scales, lengths
        options = {"capacity": capacity, "layout": layout}
        ways = [partial(_by_blocks, **options)]
        if dtype == jnp.float32:
            # by the CPU's kernel, where there is one
            ways.append(partial(weighted_sums, **options))
            ways.append(partial(fused_sums, **options, interpret=True))
        for sums in _compiled(ways)(*arguments):
            assert sums[0].dtype == dtype
            assert np.allclose(_ratios(*map(np.asarray, sums)), expected, tolerance, tolerance)


def test_weighted_sums_do_not_depend_on_the_launch(monkeypatch):
    prompts, L = jnp.arange(3, dtype=jnp.uint32), 3000
    sigma, length = jnp.full(3, 1.5, jnp.float32), jnp.full(3, L, jnp.uint32)
    found = []
    for lanes, programs, count in ((256, 2**13, 3), (64, 1, 3), (256, 2**13, 1)):
        monkeypatch.setattr(_weighted_sums, "_LANES", lanes)
        monkeypatch.setattr(_weighted_sums, "_PROGRAMS", programs)
        few = KEY, prompts[:count], (sigma[:count],), length[:count]
        capacity = capacity_for(L, _SCORES)
        (sums,) = _compiled(
            [partial(fused_sums, capacity=capacity, layout=_SCORES, interpret=True)]
        )(*few)
        found.append(_ratios(*map(np.asarray, sums))[0])
    assert np.allclose(found[0], found[1], rtol=1e-5)
    assert np.allclose(found[0], found[2], rtol=1e-6)


def test_weighted_sums_of_different_lengths_and_scales():
    lengths, sigmas = [1, 300, 1000], [0.5, 3.0, 1.0]
    arguments = (
        KEY,
        jnp.arange(3, dtype=jnp.uint32),
        _scales(sigmas, SCORES_AND_VALUES, jnp.float32),
        jnp.asarray(lengths, jnp.uint32),
    )
    options = {"capacity": capacity_for(1000, SCORES_AND_VALUES), "layout": SCORES_AND_VALUES}
    expected = [
        _oracle(i, L, sigma, SCORES_AND_VALUES, jnp.float32)
        for i, (L, sigma) in enumerate(zip(lengths, sigmas, strict=True))
    ]
    ways = [partial(way, **options) for way in (weighted_sums, _by_blocks)]
    ways.append(partial(fused_sums, **options, interpret=True))
    for sums in _compiled(ways)(*arguments):
        assert np.allclose(_ratios(*map(np.asarray, sums)), expected, 3e-5, 3e-5)


def test_capacity_for_shares_programs():
    """Capacities hold the prompt, waste an eighth at most, and are few."""
    lengths = np.unique(np.logspace(0, 9, 5000).astype(int))
    for layout in (_SCORES, SCORES_AND_VALUES):
        capacities = np.array([capacity_for(int(L), layout) for L in lengths])
        pairs = -(-lengths // layout.per_counter)
        assert np.all(capacities >= pairs)
        assert np.all(capacities <= np.maximum(pairs + 1, 1.13 * pairs))
        assert len(set(capacities)) < 250
