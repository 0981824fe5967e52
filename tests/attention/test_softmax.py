"""The operator on prompts and on measures, its derivatives, and Lemma 2.1."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import largeprompt as lp

from ..measures.registry import CASES
from ..oracles import attention as oracle


def _problem(d=4, n=50, m=3, queries=(2, 5), seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(n, d)) + 0.3
    weights = rng.uniform(size=n)
    weights[3] = 0.0
    head = lp.Head(U=rng.normal(size=(d, d)), V=rng.normal(size=(m, d)))
    return tokens, weights / weights.sum(), head, rng.normal(size=(*queries, d))


@pytest.mark.parametrize("engine", ["dense", "streamed"])
@pytest.mark.parametrize("weighted", [False, True])
def test_attend_on_a_prompt_is_softmax_attention(engine, weighted):
    tokens, weights, head, z = _problem()
    if not weighted:
        weights = np.full(len(tokens), 1 / len(tokens))
    prompt = lp.Empirical(tokens, weights if weighted else None)
    got = lp.attend(head, prompt, z, engine=engine, block_size=7 if engine == "streamed" else None)
    assert got.shape == (2, 5, 3)
    U, V = np.asarray(head.U), np.asarray(head.V)
    for index in np.ndindex(2, 5):
        want = oracle.attention(tokens=tokens, weights=weights, U=U, V=V, z=z[index])
        assert np.allclose(got[index], want, rtol=1e-12, atol=1e-13)
        want = oracle.linear_attention(tokens=tokens, weights=weights, U=U, V=V, z=z[index])
        linear = lp.attend_linear(head, prompt, z[index])
        assert np.allclose(linear, want, rtol=1e-12, atol=1e-13)


def test_attend_against_torch_scaled_dot_product_attention():
    torch = pytest.importorskip("torch", reason="torch is an optional peer: pip install '.[peers]'")
    tokens, _, head, z = _problem(m=4)
    queries = torch.tensor(np.asarray(z.reshape(-1, 4) @ np.asarray(head.U).T))[None]
    keys = torch.tensor(tokens)[None]
    values = torch.tensor(tokens @ np.asarray(head.V).T)[None]
    attention = torch.nn.functional.scaled_dot_product_attention
    want = attention(queries, keys, values, scale=1.0)[0].numpy()
    got = lp.attend(head, lp.Empirical(tokens), z).reshape(-1, 4)
    assert np.allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 5, 20])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("singular", [True, False])
def test_attend_on_a_gaussian_is_lemma_2_1(d, centred, singular):
    rng = np.random.default_rng(d)
    factor = rng.normal(size=(d, max(1, d // 2) if singular else d + 1)) / np.sqrt(d)
    if singular and d == 1:
        factor = np.zeros((1, 1))
    mean = np.zeros(d) if centred else rng.normal(size=d)
    U, V = rng.normal(size=(d, d)), rng.normal(size=(d + 2, d))
    z = rng.normal(size=(6, d))
    mu = lp.Gaussian(mean, factor @ factor.T)
    got = lp.attend(lp.Head(U=U, V=V), mu, z)
    for one, query in zip(got, z, strict=True):
        want = oracle.gaussian_attention(mean=mean, cov=factor @ factor.T, U=U, V=V, z=query)
        assert np.allclose(one, want, rtol=1e-12, atol=1e-12)
    linear = lp.attend_linear(lp.Head(U=U, V=V), mu, z)
    agree = np.allclose(linear, got, rtol=1e-9)
    assert (
        agree == centred
    )  # linear attention is softmax attention exactly when the tokens are centred


def test_attend_on_rademacher_tokens_is_tanh():
    head = lp.Head(U=2 * jnp.eye(3), V=jnp.eye(3))
    z = np.array([0.3, -0.7, 1.1])
    softmax, linear = (
        lp.attend(head, lp.Rademacher(3), z),
        lp.attend_linear(head, lp.Rademacher(3), z),
    )
    assert np.allclose(linear, 2 * z, rtol=1e-14)
    assert np.allclose(softmax - linear, np.tanh(2 * z) - 2 * z, rtol=1e-13)
    assert np.max(np.abs(softmax - linear)) > 0.5


@pytest.mark.parametrize("name", CASES)
def test_attend_on_every_measure_is_its_tilted_mean(name):
    mu = CASES[name].make()
    rng = np.random.default_rng(5)
    head = lp.Head(U=rng.normal(size=(mu.dim, mu.dim)), V=rng.normal(size=(2, mu.dim)))
    z = rng.normal(size=(3, mu.dim))
    got = eqx.filter_jit(lp.attend)(head, mu, z)
    for one, query in zip(got, z, strict=True):
        want = np.asarray(head.V) @ mu.tilted_mean(np.asarray(head.U) @ query)
        assert np.allclose(one, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "name", ["gaussian", "empirical-weighted", "rademacher", "sphere-3", "mixture"]
)
def test_attend_jacobians_against_autodiff_and_differences(name):
    """Closed form, autodiff, and central differences with step 1e-5, whose error is about 1e-10."""
    mu = CASES[name].make()
    d, m = mu.dim, 2
    rng = np.random.default_rng(9)
    U, V, z = rng.normal(size=(d, d)), rng.normal(size=(m, d)), rng.normal(size=d)
    dU, dV = lp.attend_jacobians(lp.Head(U=U, V=V), mu, z)
    assert dU.shape == (m, d, d)
    assert dV.shape == (m, m, d)
    output = jax.jit(lambda U, V: lp.attend(lp.Head(U=U, V=V), mu, z))
    auto_U, auto_V = jax.jacrev(output, argnums=(0, 1))(U, V)
    assert np.allclose(dU, auto_U, rtol=1e-11, atol=1e-12)
    assert np.allclose(dV, auto_V, rtol=1e-11, atol=1e-12)
    step = 1e-5
    for j, k in np.ndindex(d, d):
        move = np.zeros((d, d))
        move[j, k] = step
        difference = (output(U + move, V) - output(U - move, V)) / (2 * step)
        assert np.allclose(dU[:, j, k], difference, rtol=1e-7, atol=1e-7)
    for b, j in np.ndindex(m, d):
        move = np.zeros((m, d))
        move[b, j] = step
        difference = (output(U, V + move) - output(U, V - move)) / (2 * step)
        assert np.allclose(dV[:, b, j], difference, rtol=1e-8, atol=1e-8)


def test_attend_jacobians_of_a_batch_and_of_streamed_tokens():
    tokens, weights, head, z = _problem()
    prompt = lp.Empirical(tokens, weights)
    dense = lp.attend_jacobians(head, prompt, z, engine="dense")
    streamed = lp.attend_jacobians(head, prompt, z, engine="streamed", block_size=13)
    assert dense.U.shape == (2, 5, 3, 4, 4)
    for got, want in zip(streamed, dense, strict=True):
        assert np.allclose(got, want, rtol=1e-11, atol=1e-12)
    cov = oracle.tilted_covariance(tokens=tokens, weights=weights, U=np.asarray(head.U), z=z[1, 2])
    want = np.einsum("ai,ij,k->ajk", head.V, cov, z[1, 2])
    assert np.allclose(dense.U[1, 2], want, rtol=1e-11, atol=1e-12)


def test_from_kqv_gradients():
    rng = np.random.default_rng(2)
    K, Q, V, z = rng.normal(size=(2, 5)), rng.normal(size=(2, 5)), np.eye(5), rng.normal(size=5)
    mu = lp.Gaussian(np.zeros(5), np.eye(5))

    def output(K, Q):
        return jnp.sum(lp.attend(lp.Head.from_kqv(K, Q, V, scale=0.5), mu, z) ** 2)

    gK, gQ = jax.jit(jax.grad(output, argnums=(0, 1)))(K, Q)
    u = 0.5 * K.T @ Q @ z
    assert np.allclose(gK, np.outer(Q @ z, u), rtol=1e-11)  # d|K'Qz/2|^2/dK
    assert np.allclose(gQ, np.outer(K @ u, z), rtol=1e-11)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), shift=st.floats(-50, 50), copies=st.integers(1, 3))
@pytest.mark.slow
def test_attend_invariances(seed, shift, copies):
    """Permuted tokens, a duplicated prompt, a shift of all scores, and a rotation of everything."""
    tokens, weights, head, z = _problem(d=3, n=8, m=3, queries=(2,), seed=seed)
    want = lp.attend(head, lp.Empirical(tokens, weights), z)
    order = np.random.default_rng(seed).permutation(8)
    permuted = lp.Empirical(tokens[order], weights[order])
    assert np.allclose(lp.attend(head, permuted, z), want, rtol=1e-10, atol=1e-12)
    duplicated = lp.Empirical(np.tile(tokens, (copies, 1)), np.tile(weights, copies))
    assert np.allclose(lp.attend(head, duplicated, z), want, rtol=1e-10, atol=1e-12)
    # a coordinate equal to 1 in every token carries the shift of the scores
    wide = lp.Head(
        U=np.block(
            [[np.asarray(head.U), np.zeros((3, 1))], [np.zeros((1, 3)), np.full((1, 1), shift)]]
        ),
        V=np.pad(np.asarray(head.V), ((0, 0), (0, 1))),
    )
    ones = lp.Empirical(np.pad(tokens, ((0, 0), (0, 1)), constant_values=1.0), weights)
    shifted = lp.attend(wide, ones, np.pad(z, ((0, 0), (0, 1)), constant_values=1.0))
    assert np.allclose(shifted, want, rtol=1e-10, atol=1e-12)
    R, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(3, 3)))
    turned = lp.Head(U=R @ np.asarray(head.U) @ R.T, V=np.asarray(head.V) @ R.T)
    rotated = lp.attend(turned, lp.Empirical(tokens @ R.T, weights), z @ R.T)
    assert np.allclose(rotated, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e3, 1e6])
def test_attend_with_extreme_scores_is_finite(scale):
    tokens, _, head, z = _problem()
    out = np.asarray(lp.attend(head, lp.Empirical(tokens), scale * z))
    assert np.all(np.isfinite(out))
    if scale >= 1e6:  # a hard maximum: the output is the read-out of the best token
        best = np.argmax(tokens @ np.asarray(head.U) @ z[0, 0])
        assert np.allclose(out[0, 0], np.asarray(head.V) @ tokens[best], rtol=1e-12)
