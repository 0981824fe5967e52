"""Heads with queries of their own dimension, and prompts of keys and values in two arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt import _native
from largeprompt.attention.engines import key_value_moments

from ..oracles import attention as oracle

D_K, D_V, N = 4, 3, 50


def _problem(seed=0):
    rng = np.random.default_rng(seed)
    keys, values, logs = rng.normal(size=(N, D_K)), rng.normal(size=(N, D_V)), rng.normal(size=N)
    return keys, values, logs, rng.normal(size=(2, 3, D_K))


def _written_out(keys, values, logs, z, scale):
    """Softmax attention of the queries, in NumPy."""
    terms = np.exp(scale * z @ keys.T + logs)
    return terms / terms.sum(axis=-1, keepdims=True) @ values


@pytest.mark.parametrize("engine", ["auto", "dense", "streamed", "fused"])
@pytest.mark.parametrize("weighted", [False, True])
def test_attend_on_keys_and_values(engine, weighted):
    keys, values, logs, z = _problem()
    logs = logs if weighted else np.zeros(N)
    head = lp.Head.key_value(D_K, D_V, scale=0.5)
    prompt = lp.KeyValues(keys, values, logs + 7.0 if weighted else None)
    got = lp.attend(head, prompt, z, engine=engine, block_size=7 if engine == "streamed" else None)
    assert np.allclose(got, _written_out(keys, values, logs, z, 0.5), rtol=1e-12, atol=1e-13)


def test_attend_on_keys_and_values_copies_nothing():
    """The program has no array of the size of all tokens other than its inputs."""
    n = 2**15
    prompt = lp.KeyValues(np.ones((n, D_K), np.float32), np.ones((n, D_V), np.float32))
    head = lp.Head.key_value(D_K, D_V)
    z = np.ones((2, D_K), np.float32)
    lowered = jax.jit(lambda p: lp.attend(head, p, z, block_size=1024)).lower(prompt)
    memory = lowered.compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < prompt.keys.nbytes / 2


@pytest.mark.skipif(not _native.available(), reason="no C++ compiler on installation")
@pytest.mark.parametrize("d_v", [1, 3, 40])
def test_attend_on_keys_and_values_by_the_kernel(d_v):
    """The kernel is chosen, also under `jit` and `vmap`, without copies; its derivatives are XLA's.

    Tolerance: 1e-5 in float32.
    """
    n, rng = 5000, np.random.default_rng(0)
    keys, values, z = (
        rng.normal(size=shape).astype(np.float32) for shape in ((n, D_K), (n, d_v), (2, D_K))
    )
    logs = np.where(rng.uniform(size=n) > 0.3, rng.normal(size=n), -np.inf).astype(np.float32)
    head, prompt = lp.Head.key_value(D_K, d_v), lp.KeyValues(keys, values, logs)
    lowered = jax.jit(lambda prompt, z: lp.attend(head, prompt, z)).lower(prompt, z)
    text = lowered.compile().as_text()
    assert text is not None
    assert "largeprompt_tilted_moments" in text
    assert "concatenate" not in text
    memory = lowered.compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4 * n  # less than one column
    want = oracle.key_value_moments(keys, values, logs, z)[1]
    assert np.allclose(lp.attend(head, prompt, z), want, atol=1e-5)
    assert np.allclose(jax.vmap(lambda z: lp.attend(head, prompt, z))(z), want, atol=1e-5)

    def loss(prompt, z, engine):
        return jnp.sum(lp.attend(head, prompt, z, engine=engine) ** 2)

    by = {
        engine: jax.grad(loss, argnums=(0, 1))(prompt, z, engine) for engine in ("fused", "dense")
    }
    for got, same in zip(*(jax.tree.leaves(found) for found in by.values()), strict=True):
        assert np.allclose(got, same, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("swapped", [False, True])
def test_attend_by_other_heads_on_keys_and_values(swapped):
    """Scores of values or outputs of keys go through one array, as do traced heads."""
    keys, values, logs, z = _problem()
    rng = np.random.default_rng(1)
    U, V = rng.normal(size=(D_K + D_V, D_K)), rng.normal(size=(2, D_K + D_V))
    if swapped:
        U[D_K:] = 0  # outputs still use the keys
    else:
        V[:, :D_K] = 0
    head, prompt = lp.Head(U=U, V=V), lp.KeyValues(keys, values, logs)
    assert not head.splits_at(D_K)
    tokens = np.concatenate([keys, values], axis=1)
    weights = np.exp(logs)
    for got in (lp.attend(head, prompt, z), jax.jit(lp.attend)(head, prompt, z)):
        want = oracle.attention(tokens=tokens, weights=weights, U=U, V=V, z=z[1, 2])
        assert np.allclose(got[1, 2], want, rtol=1e-12)


def test_key_value_moments_normaliser():
    keys, values, logs, z = _problem()
    found = key_value_moments(lp.KeyValues(keys, values, logs), jnp.asarray(z[0]), block_size=16)
    want = np.log(np.exp(z[0] @ keys.T + logs).sum(axis=1) / np.exp(logs).sum())
    assert np.allclose(found.log_normaliser, want, rtol=1e-12)


def test_key_values_is_the_measure_of_its_tokens():
    keys, values, logs, _ = _problem()
    prompt = lp.KeyValues(keys, values, logs)
    same = lp.Empirical(np.concatenate([keys, values], axis=1), np.exp(logs))
    u = jnp.asarray(np.random.default_rng(2).normal(size=D_K + D_V))
    assert (prompt.dim, prompt.n, prompt.key_dim) == (D_K + D_V, N, D_K)
    assert np.isclose(prompt.log_mgf(u), same.log_mgf(u), rtol=1e-12)
    assert np.allclose(prompt.tilt(u).mean(), same.tilted_mean(u), rtol=1e-12)
    assert np.allclose(prompt.cov(), same.cov(), rtol=1e-12)
    assert np.allclose(prompt.affine(np.ones((1, D_K + D_V))).mean(), same.mean().sum())


def test_attend_on_bfloat16_keys_and_values():
    keys, values, logs, z = (np.float32(a) for a in _problem())
    prompt = lp.KeyValues(jnp.bfloat16(keys), jnp.bfloat16(values))
    got = lp.attend(lp.Head.key_value(D_K, D_V, scale=np.float32(1)), prompt, z)
    k, v = (np.asarray(a.astype(np.float32)) for a in (prompt.keys, prompt.values))
    assert got.dtype == np.float32
    assert np.allclose(got, _written_out(k, v, 0 * logs, z, 1.0), atol=1e-6)


# A head with k < d is the square head whose queries are padded with zeros.
RECTANGULAR = {
    "attend": lambda head, mu, z: lp.attend(head, mu, z),
    "attend_linear": lambda head, mu, z: lp.attend_linear(head, mu, z),
    "finite_mean": lambda head, mu, z: lp.finite_mean(head, mu, z, 20),
    "output_error": lambda head, mu, z: lp.output_error(head, mu, z, 20),
    "gradient_error": lambda head, mu, z: lp.gradient_error(head, mu, z, 20).U,
    "discrete": lambda head, mu, z: lp.output_error(head, lp.Rademacher(3), z, 20),
    "sample_outputs": lambda head, mu, z: lp.sample_outputs(
        jax.random.key(0), head, mu, z, 20, 3
    ),
    "query law": lambda head, mu, z: lp.output_error(
        head, mu, lp.Gaussian(z, np.outer(z, z)), 20
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECTANGULAR)
def test_rectangular_head_is_a_square_head_on_padded_queries(name):
    rng = np.random.default_rng(3)
    U, V = 0.5 * rng.normal(size=(3, 2)), rng.normal(size=(2, 3))
    z = rng.normal(size=2)
    factor = rng.normal(size=(3, 3))
    mu = lp.Gaussian(rng.normal(size=3), factor @ factor.T)
    got = RECTANGULAR[name](lp.Head(U=U, V=V), mu, z)
    square = lp.Head(U=np.pad(U, ((0, 0), (0, 1))), V=V)
    want = RECTANGULAR[name](square, mu, np.append(z, 0.0))
    assert np.allclose(np.asarray(got), np.asarray(want), rtol=1e-9)


def test_attend_jacobians_of_a_rectangular_head():
    keys, values, logs, z = _problem()
    head = lp.Head.key_value(D_K, D_V)
    prompt = lp.KeyValues(keys, values, logs)
    found = lp.attend_jacobians(head, prompt, z[0, 0])
    assert found.U.shape == (D_V, D_K + D_V, D_K)
    step = np.zeros((D_K + D_V, D_K))
    step[1, 2] = step[5, 0] = 1e-6
    tokens = np.concatenate([keys, values], axis=1)
    U, V = np.asarray(head.U), np.asarray(head.V)
    ends = [
        oracle.attention(tokens=tokens, weights=np.exp(logs), U=U + s * step, V=V, z=z[0, 0])
        for s in (1, -1)
    ]
    want = (ends[0] - ends[1]) / 2e-6
    assert np.allclose(found.U[:, 1, 2] + found.U[:, 5, 0], want, rtol=1e-6, atol=1e-9)


def test_attend_with_a_mesh_takes_queries_of_their_own_dimension():
    rng = np.random.default_rng(3)
    tokens, z = lp.Empirical(rng.normal(size=(40, 5))), rng.normal(size=(4, 2))
    head = lp.Head.key_value(2, 3)
    mesh = jax.make_mesh((1,), ("tokens",))
    found = lp.attend(head, tokens, z, mesh=mesh)
    np.testing.assert_allclose(found, lp.attend(head, tokens, z), rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("engine", ["dense", "streamed", "auto"])
def test_attend_with_a_mesh_on_keys_and_values(engine, weighted):
    """Both arrays are sharded as they are: no array has the coordinates of both."""
    keys, values, logs, z = _problem()
    head, mesh = lp.Head.key_value(D_K, D_V, scale=0.5), jax.make_mesh((1,), ("tokens",))
    prompt = lp.KeyValues(keys, values, logs if weighted else None)

    def call(prompt, z):
        return lp.attend(head, prompt, z, engine=engine, mesh=mesh)

    want = _written_out(keys, values, logs if weighted else 0 * logs, z, 0.5)
    assert np.allclose(call(prompt, z), want, rtol=1e-12, atol=1e-13)
    assert f"{N},{D_K + D_V}]" not in str(jax.make_jaxpr(call)(prompt, z))
