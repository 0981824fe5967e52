"""The C++ kernels against NumPy in float64, and the fallback to XLA without them."""

import ctypes.util
import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt import _native
from largeprompt.attention import engines
from largeprompt.prompts import weighted_sums
from largeprompt.prompts.normals import threefry
from largeprompt.prompts.sampling import SCORES_AND_VALUES

from .oracles.attention import key_value_moments, tilted_moments

needs_kernels = pytest.mark.skipif(
    not _native.available() and "LARGEPROMPT_KERNELS_REQUIRED" not in os.environ,
    reason="no C++ compiler was found when the package was installed",
)


def _tokens(*shape, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def _of_one_array(points, logs, tilts):
    points, tilts = jnp.asarray(points), jnp.asarray(tilts)
    return _native.tilted_moments(
        points, points, None if logs is None else jnp.asarray(logs), tilts
    )


@needs_kernels
@pytest.mark.parametrize(
    ("n", "d_k", "d_v", "q"),
    [
        (1, 1, 0, 1),  # one array, marked by 0: one token of one coordinate
        (1, 40, 0, 2),  # one wide token
        (63, 5, 0, 3),
        (1025, 16, 0, 1),  # rows read in place, two parts, the second of one token
        (5000, 37, 0, 3),  # rows that end between two vectors
        (3000, 100, 0, 6),
        (2049, 3, 0, 700),  # transposed tiles, blocks of tilts
        (300, 32, 0, 600),
        (1, 2, 3, 1),  # one token
        (1, 64, 1, 5),
        (1025, 64, 48, 1),  # rows read in place, two parts
        (700, 37, 100, 3),
        (700, 64, 1, 2),  # rows of values shorter than a vector, to the end of the array
        (701, 5, 70, 2),  # rows of keys shorter than a vector
        (2049, 3, 8, 300),  # transposed tiles
        (300, 60, 1, 40),
        (300, 128, 64, 9),
        (1027, 64, 80, 6),  # whole vectors: four tilts together, then two; rows beyond the tiles
        (90, 16, 16, 4),
        (130, 64, 1, 7),  # values that are numbers
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_tilted_moments_agree_with_numpy(n, d_k, d_v, q, weighted):
    """Stated tolerance: 3e-6 of the tokens' scale."""
    keys = _tokens(n, d_k)
    values = _tokens(n, d_v, seed=3) if d_v else keys
    tilts, rng = _tokens(q, d_k, scale=2 / np.sqrt(d_k), seed=1), np.random.default_rng(2)
    logs = None
    if weighted:  # some tokens weigh nothing
        logs = np.where(rng.uniform(size=n) > 0.3 * (n > 1), rng.normal(size=n), -np.inf)
        logs = logs.astype(np.float32)
    given = None if logs is None else jnp.asarray(logs)
    points = jnp.asarray(keys)
    numbers = jnp.asarray(values) if d_v else points
    found = _native.tilted_moments(points, numbers, given, jnp.asarray(tilts))
    expected = key_value_moments(keys, values, logs, tilts)
    assert np.allclose(found[0], expected[0], rtol=3e-6, atol=3e-6)
    assert np.max(np.abs(np.asarray(found[1]) - expected[1])) <= 3e-6 * np.max(np.abs(values))


@needs_kernels
@pytest.mark.parametrize(("d_k", "d_v"), [(3, 2), (40, 5), (5, 40), (64, 64)])
def test_tilted_moments_of_keys_and_values_with_huge_scores(d_k, d_v):
    """At scores of size 1e4 one token takes all the weight; without weight it takes none."""
    keys, values = _tokens(500, d_k), _tokens(500, d_v, seed=1)
    logs = np.zeros(500, np.float32)
    order = np.argsort(keys[:, 0])
    logs[order[-1]] = -np.inf
    keys[order[-1]], values[order[-1]] = 3e3, 7.0
    tilts = (1e4 * np.eye(d_k)[:1]).astype(np.float32)
    _, mean = _native.tilted_moments(*(jnp.asarray(a) for a in (keys, values, logs, tilts)))
    assert np.allclose(mean[0], values[order[-2]], rtol=1e-5)


@needs_kernels
def test_tilted_moments_of_short_rows_do_not_mix_tokens():
    """A value that is not finite stays in its coordinate: padding of the next rows is 0."""
    keys, values = _tokens(200, 64), _tokens(200, 3, seed=1)
    values[100, 1] = np.inf
    tilts, logs = np.zeros((1, 64), np.float32), np.zeros(200, np.float32)
    found = _native.tilted_moments(*(jnp.asarray(a) for a in (keys, values, logs, tilts)))
    assert list(np.isfinite(found[1][0])) == [True, False, True]
    found = _native.tilted_moments(*(jnp.asarray(a) for a in (values, keys, logs, tilts[:, :3])))
    assert np.all(np.isnan(found[0]))  # 0 times infinity
    logs[100] = -np.inf
    keys[100], values[100] = 1e30, 0.0  # a token without weight
    found = _native.tilted_moments(*(jnp.asarray(a) for a in (values, keys, logs, tilts[:, :3])))
    want = np.delete(keys, 100, axis=0).mean(axis=0)
    assert np.allclose(found[1][0], want, atol=1e-5)


@needs_kernels
def test_tilted_moments_of_batches_of_keys_and_values():
    keys, values, tilts = _tokens(3, 300, 4), _tokens(300, 2, seed=1), _tokens(3, 5, 4, seed=2)

    def moments(keys, tilts):
        return _native.tilted_moments(keys, jnp.asarray(values), None, tilts)

    found = jax.vmap(moments)(jnp.asarray(keys), jnp.asarray(tilts))
    shared = jax.vmap(moments, (None, 0))(jnp.asarray(keys[0]), jnp.asarray(tilts))
    for i in range(3):
        for got, own in ((found, keys[i]), (shared, keys[0])):
            expected = key_value_moments(own, values, None, tilts[i])
            assert np.allclose(got[0][i], expected[0], rtol=1e-5, atol=1e-5)
            assert np.allclose(got[1][i], expected[1], rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("d", [3, 40])
@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e34])
def test_tilted_moments_of_scores_of_every_size(d, scale):
    """From no tilt to one that only the largest score survives."""
    points = _tokens(500, d)
    tilt = (scale * np.eye(d)[:1]).astype(np.float32)
    _, mean = _of_one_array(points, None, tilt)
    expected = points[np.argmax(points[:, 0])] if scale > 1 else points.mean(axis=0)
    assert np.allclose(mean[0], expected, rtol=1e-5, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("d", [3, 40])
def test_tilted_moments_propagate_nan_and_infinity(d):
    points, tilts = _tokens(500, d), np.full((2, d), 1e30, np.float32)
    strange = np.zeros(500, np.float32)
    strange.view(np.uint32)[7] = 0x7FFFFFFF  # not a number, with every other bit set
    _, mean = _of_one_array(points, strange, 0 * tilts)
    assert np.all(np.isnan(mean))
    points[400, 0] = 3e38  # its score overflows
    log_normaliser, mean = _of_one_array(points, None, tilts)
    assert not np.any(np.isfinite(log_normaliser))
    assert not np.any(np.isfinite(mean))
    nothing = np.full(500, -np.inf, np.float32)
    log_normaliser, mean = _of_one_array(points, nothing, 0 * tilts)
    assert np.all(log_normaliser == -np.inf)  # no weight at all: as in XLA
    assert np.all(mean == 0)


@needs_kernels
@pytest.mark.parametrize(
    ("near", "far"),
    [
        ((None, None, 0), (None, None, 0)),  # one prompt for all
        ((None, None, 0), (0, None, None)),
        ((0, 0, 0), (0, 0, 0)),
        ((None, 0, 0), (0, 0, None)),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_tilted_moments_of_batches(near, far, weighted):
    """Under `vmap`, twice, with arguments shared or not."""
    n, d, q = 300, 4, 5
    full = _tokens(2, 3, n, d), _tokens(2, 3, n, seed=1), _tokens(2, 3, q, d, seed=2)

    def moments(points, logs, tilts):
        return _of_one_array(points, logs if weighted else None, tilts)

    whole = {None: 0, 0: slice(None)}
    arguments = [a[whole[f], whole[c]] for a, c, f in zip(full, near, far, strict=True)]
    found = jax.vmap(jax.vmap(moments, near), far)(*(jnp.asarray(a) for a in arguments))
    for i in range(2):
        for j in range(3):
            points, logs, tilts = (
                a[0 if f is None else i, 0 if c is None else j]
                for a, c, f in zip(full, near, far, strict=True)
            )
            expected = tilted_moments(points, logs if weighted else None, tilts)[:2]
            for got, want in zip(found, expected, strict=True):
                assert np.allclose(got[i, j], want, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_tilted_moments_do_not_depend_on_threads():
    points, tilts = jnp.asarray(_tokens(50_000, 20)), jnp.asarray(_tokens(2, 20))
    calls = [_of_one_array(points, None, tilts) for _ in range(5)]
    for got in calls[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(got, calls[0], strict=True))
    in_another_order = _of_one_array(points[::-1], None, tilts)
    for got, want in zip(in_another_order, calls[0], strict=True):
        assert np.allclose(got, want, rtol=3e-6, atol=3e-6)


@needs_kernels
def test_weighted_sums_of_a_batch_are_those_of_each_prompt():
    """A vmapped batch, each member with its own key, lengths and scales."""
    rng = np.random.default_rng(0)
    keys = jnp.asarray(rng.integers(0, 2**32, (2, 2)), jnp.uint32)
    prompts = jnp.arange(3, dtype=jnp.uint32)
    lengths = jnp.asarray(rng.integers(1, 40_000, (2, 3)), jnp.uint32)
    scales = jnp.asarray(rng.uniform(size=(2, 3, 3)), jnp.float32)

    def sums(key, lengths, scales):
        return _native.weighted_sums(key, prompts, lengths, scales, (5, 3))

    found = jax.vmap(sums)(keys, lengths, scales)
    for i in range(2):
        for got, want in zip(found, sums(keys[i], lengths[i], scales[i]), strict=True):
            assert np.array_equal(got[i], want)


@needs_kernels
def test_weighted_sums_reject_bad_scales_and_give_nan_for_no_tokens():
    key, prompts = jnp.zeros(2, jnp.uint32), jnp.arange(3, dtype=jnp.uint32)
    two_rows = jnp.ones((2, 3), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="scales must have"):
        jax.block_until_ready(_native.weighted_sums(key, prompts, prompts, two_rows, (5, 3)))
    scales = jnp.ones((1, 3), jnp.float32)
    first, second = _native.weighted_sums(key, prompts, prompts, scales, (2, 1))  # lengths 0, 1, 2
    assert list(np.isfinite(first[:, 0])) == list(np.isfinite(second[:, 0])) == [False, True, True]


@needs_kernels
def test_weighted_sums_and_attend_derivatives_are_those_of_xla():
    prompt, tilts = lp.Empirical(_tokens(500, 3)), jnp.asarray(_tokens(2, 3))
    assert _native.fits(prompt.points, prompt.points, tilts)

    def mean(tilts, engine):
        return engines.empirical_moments(prompt, tilts, engine=engine).mean

    jacobian = jax.jit(jax.jacobian(mean), static_argnums=1)
    found, expected = (jacobian(tilts, engine) for engine in ("fused", "dense"))
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-6)

    @jax.jit
    def total(sigma):
        scales = sigma, jnp.full(2, 0.6, jnp.float32), jnp.full(2, 0.8, jnp.float32)
        names = jnp.arange(2, dtype=jnp.uint32), scales, jnp.full(2, 100, jnp.uint32)
        key = jnp.asarray([1, 2], jnp.uint32)
        first, _ = weighted_sums.weighted_sums(key, *names, 100, SCORES_AND_VALUES)
        return jnp.sum(first[:, 1] / first[:, 0])

    sigma, step = jnp.full(2, 0.7, jnp.float32), jnp.asarray(0.01, jnp.float32)
    by_differences = (total(sigma + step) - total(sigma - step)) / (2 * step)
    assert np.allclose(jnp.sum(jax.jit(jax.grad(total))(sigma)), by_differences, rtol=1e-2)


@pytest.mark.slow
def test_available_false_falls_back_to_xla(monkeypatch):
    prompt, tilts = lp.Empirical(_tokens(2000, 3)), jnp.asarray(_tokens(4, 3))
    scales = tuple(jnp.full(2, x, jnp.float32) for x in (1.0, 0.6, 0.8))
    names = jnp.arange(2, dtype=jnp.uint32), scales, jnp.full(2, 100, jnp.uint32)

    def results():
        first, second = weighted_sums.weighted_sums(
            jnp.asarray([1, 2], jnp.uint32), *names, 100, SCORES_AND_VALUES
        )
        moments = engines.empirical_moments(prompt, tilts, engine="fused")
        ratios = first / first[:, :1], second / first[:, :1] ** 2
        return moments.log_normaliser, moments.mean, *ratios

    with_them = results()
    monkeypatch.setattr(_native, "available", lambda: False)
    for got, want in zip(results(), with_them, strict=True):
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_weighted_sums_draw_the_normals_of_the_generator():
    """The sum w g of a prompt of one token is its normal number g.

    From the same random bits NumPy computes g in float64: they agree to rounding in float32.
    """
    prompts = jnp.arange(4000, dtype=jnp.uint32)
    key = jnp.asarray([5, 6], jnp.uint32)
    scales, ones = jnp.zeros((1, 4000), jnp.float32), jnp.full(4000, 1, jnp.uint32)
    first, _ = _native.weighted_sums(key, prompts, ones, scales, (2, 1))
    radius, angle = (np.asarray(bits) for bits in threefry(key, prompts, jnp.uint32(0)))
    expected = np.sqrt(-2 * np.log((radius + 0.5) / 2**32))
    expected = expected * np.cos(np.pi * (((angle >> 9) + 0.5) / 2**23 - 0.5))
    expected = np.where(angle & 1 == 1, expected, -expected)
    errors = np.abs(np.asarray(first[:, 1], np.float64) - expected)
    assert np.mean(errors) < 6e-8
    assert np.max(errors) < 1e-6


@needs_kernels
def test_tilted_moments_with_bfloat16_log_weights():
    points, tilts = jnp.asarray(_tokens(200, 3)), jnp.asarray(_tokens(1, 3))
    logs = jnp.asarray(_tokens(200, seed=3), jnp.bfloat16)
    _, mean = _of_one_array(points, logs, tilts)
    assert np.allclose(mean, tilted_moments(points, logs, tilts)[1], atol=1e-5)


def test_available_is_false_for_kernels_that_do_not_run(monkeypatch, tmp_path):
    find, load = _native.available.__wrapped__, _native.library.__wrapped__
    assert find() == _native.available()
    monkeypatch.setattr(_native, "library", load)

    def found(origin):
        spec = None if origin is None else SimpleNamespace(origin=str(origin))
        monkeypatch.setattr(_native.util, "find_spec", lambda name: spec)
        return find()

    broken = tmp_path / "kernels.so"
    broken.write_text("not a library")
    assert not found(None)  # not compiled
    assert not found(broken)
    assert not found(ctypes.util.find_library("c"))  # a library without the kernels
