"""The GPU kernels of attention, interpreted on the CPU, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.attention import engines, gpu_kernel

from ..oracles.attention import key_value_moments, tilted_moments


def _prompt(n, d, dtype, weighted, offset=0.0):
    rng = np.random.default_rng(n + d)
    points = jnp.asarray(rng.normal(size=(n, d)) + offset, dtype)
    weights = rng.uniform(size=n) * (rng.uniform(size=n) > 0.3) if weighted else None
    return lp.Empirical(points, weights)


def _fused(prompt, tilts, **options):
    tokens = prompt.points, None, prompt.log_weights
    return gpu_kernel.fused_moments(*tokens, jnp.asarray(tilts), interpret=True, **options)


@pytest.mark.parametrize(
    ("n", "d", "q", "dtype", "weighted", "with_cov"),
    [
        (1, 3, 1, jnp.float32, False, True),  # a prompt of one token
        (777, 5, 2, jnp.float32, True, True),  # no powers of two, some tokens of weight 0
        (2050, 64, 1, jnp.float32, False, False),
        (300, 1, 3, jnp.bfloat16, False, False),
        (515, 20, 2, jnp.bfloat16, True, True),
    ],
)
def test_fused_moments_of_few_queries(n, d, q, dtype, weighted, with_cov):
    prompt = _prompt(n, d, dtype, weighted)
    tilts = np.random.default_rng(0).normal(size=(q, d)).astype(np.float32)
    assert gpu_kernel.fits(prompt.points, None, q, with_cov=with_cov)
    found = _fused(prompt, tilts, with_cov=with_cov)
    log_normaliser, mean, cov = tilted_moments(prompt.points, prompt.log_weights, tilts)
    assert np.allclose(found.log_normaliser, log_normaliser, rtol=1e-5, atol=1e-5)
    assert np.allclose(found.mean, mean, rtol=1e-5, atol=1e-5)
    assert (found.cov is not None) == with_cov
    if with_cov:
        assert np.allclose(found.cov, cov, rtol=1e-4, atol=1e-5)


def test_fused_moments_covariance_far_from_the_origin():
    """Tokens around 1000: E xx' - mm' would lose six of seven digits."""
    prompt = _prompt(600, 4, jnp.float32, False, offset=1000.0)
    tilts = jnp.full((1, 4), 0.3, jnp.float32)
    found = _fused(prompt, tilts, with_cov=True)
    _, _, cov = tilted_moments(prompt.points, None, tilts)
    assert np.allclose(found.cov, cov, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("n", "d", "q", "weighted"), [(300, 24, 70, False), (129, 3, 9, True)])
def test_fused_moments_of_many_queries_in_bfloat16(n, d, q, weighted):
    """Tilts and weights have 16 bits."""
    prompt = _prompt(n, d, jnp.bfloat16, weighted)
    tilts = 0.5 * np.random.default_rng(1).normal(size=(q, d)).astype(np.float32)
    assert gpu_kernel.fits(prompt.points, None, q, with_cov=False)
    found = _fused(prompt, tilts)
    log_normaliser, mean, _ = tilted_moments(prompt.points, prompt.log_weights, tilts)
    assert np.allclose(found.log_normaliser, log_normaliser, rtol=1e-4, atol=1e-4)
    assert np.allclose(found.mean, mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("n", "d_k", "d_v", "q", "dtype", "weighted"),
    [
        (1, 3, 5, 1, jnp.float32, False),  # one token
        (777, 5, 40, 2, jnp.float32, True),  # values wider than keys, tokens of weight 0
        (515, 70, 1, 1, jnp.float32, False),  # values of one coordinate
        (300, 20, 33, 3, jnp.bfloat16, True),
        (300, 24, 1, 70, jnp.bfloat16, True),  # on the matrix units
        (129, 3, 33, 9, jnp.bfloat16, False),
    ],
)
def test_fused_moments_of_keys_and_values(n, d_k, d_v, q, dtype, weighted):
    rng = np.random.default_rng(n + d_k)
    keys, values = (jnp.asarray(rng.normal(size=(n, d)), dtype) for d in (d_k, d_v))
    logs = np.where(rng.uniform(size=n) > 0.3, rng.normal(size=n), -np.inf) if weighted else None
    tilts = rng.normal(size=(q, d_k)).astype(np.float32) / 3
    assert gpu_kernel.fits(keys, values, q, with_cov=False)
    found = gpu_kernel.fused_moments(
        keys, values, None if logs is None else jnp.asarray(logs, dtype), tilts, interpret=True
    )
    logs = None if logs is None else np.asarray(jnp.asarray(logs, dtype), np.float64)
    log_normaliser, mean = key_value_moments(keys, values, logs, tilts)
    tolerance = 1e-5 if q <= 8 else 1e-4
    assert np.allclose(found.log_normaliser, log_normaliser, rtol=tolerance, atol=tolerance)
    assert np.allclose(found.mean, mean, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "q"), [(jnp.float32, 2), (jnp.bfloat16, 9)])
def test_fused_moments_of_keys_and_values_with_huge_scores(dtype, q):
    """At scores of size 1e4 one token takes all the weight."""
    rng = np.random.default_rng(0)
    keys, values = (jnp.asarray(rng.normal(size=(200, d)), dtype) for d in (3, 2))
    tilts = np.tile([[1e4, 0, 0]], (q, 1)).astype(np.float32)
    found = gpu_kernel.fused_moments(keys, values, None, tilts, interpret=True)
    winner = np.asarray(values)[np.argmax(np.asarray(keys)[:, 0])]
    assert np.allclose(found.mean, winner.astype(np.float64), rtol=1e-6)


def test_fits_rejects_what_is_left_to_xla():
    single = _prompt(50, 3, jnp.float32, False).points
    double, half = single.astype(jnp.float64), single.astype(jnp.bfloat16)
    wide, wider = jnp.zeros((2, 65)), jnp.zeros((2, 300), jnp.float32)
    assert not gpu_kernel.fits(single, None, 9, with_cov=False)
    assert not gpu_kernel.fits(double, None, 1, with_cov=False)
    assert not gpu_kernel.fits(wider, None, 1, with_cov=False)
    assert not gpu_kernel.fits(wide.astype(jnp.float32), None, 1, with_cov=True)
    assert not gpu_kernel.fits(single, single, 1, with_cov=True)
    assert not gpu_kernel.fits(single, single, 9, with_cov=False)
    assert not gpu_kernel.fits(single, half, 1, with_cov=False)
    assert not gpu_kernel.fits(wider[:, :3], wider, 1, with_cov=False)
    assert gpu_kernel.fits(half, half, 9, with_cov=False)


def test_empirical_moments_fused_falls_back_to_streamed():
    prompt = _prompt(500, 3, jnp.float64, True)
    head = lp.Head(U=np.eye(3), V=np.ones((1, 3)))
    z = jnp.ones(3)
    by = {engine: lp.attend(head, prompt, z, engine=engine) for engine in ("fused", "dense")}
    assert np.allclose(by["fused"], by["dense"], rtol=1e-12)
    tilts, tokens = jnp.ones((1, 3)), engines.Tokens(prompt.points, None, prompt.log_weights)
    ours = jax.jacobian(lambda t: engines._by_kernel(tokens, t, False, 100).mean)(tilts)
    theirs = jax.jacobian(lambda t: engines.empirical_moments(prompt, t, engine="dense").mean)(
        tilts
    )
    assert np.allclose(ours, theirs, rtol=1e-10)


def test_attend_sums_bfloat16_tokens_in_float32():
    prompt = _prompt(4000, 4, jnp.bfloat16, False)
    head = lp.Head(U=np.eye(4, dtype=np.float32), V=np.eye(4, dtype=np.float32))
    z = np.linspace(0.1, 0.9, 4).astype(np.float32)
    _, mean, cov = tilted_moments(prompt.points, None, z[None])
    for engine in ("dense", "streamed"):
        assert np.allclose(lp.attend(head, prompt, z, engine=engine), mean[0], rtol=1e-5, atol=1e-6)
    jacobians = lp.attend_jacobians(head, prompt, z)
    assert np.allclose(jacobians.U[..., 0], cov[0] * z[0], rtol=1e-4, atol=1e-5)
