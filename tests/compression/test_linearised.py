"""The affine maps nearest to attention, their residuals, and the experts of mixtures."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp

from ..oracles import attention as oracle


def _problem(seed=0, n=30, d=3, k=2, m=2):
    rng = np.random.default_rng(seed)
    U, V = 0.7 * rng.normal(size=(d, k)), rng.normal(size=(m, d))
    return rng, rng.normal(size=(n, d)), U, V


def _attention(tokens, U, V, z):
    weights = np.full(len(tokens), 1 / len(tokens))
    return np.stack([oracle.attention(tokens=tokens, weights=weights, U=U, V=V, z=q) for q in z])


def _least_squares(z, outputs, weights):
    """Slope, intercept and relative residual by normal equations."""
    design = np.column_stack([z, np.ones(len(z))])
    gram = design.T @ (weights[:, None] * design)
    fit = np.linalg.solve(gram, design.T @ (weights[:, None] * outputs))
    error = weights @ np.sum((outputs - design @ fit) ** 2, axis=1)
    deviation = weights @ np.sum((outputs - weights @ outputs) ** 2, axis=1)
    return fit[:-1].T, fit[-1], error / deviation


def test_linearise_of_a_sign_is_the_mean_slope_of_tanh():
    """Independent: trapezoidal sums over a fine grid of the query."""
    head = lp.Head(U=[[1.5]], V=[[2.0]])
    found = lp.linearise(head, lp.Rademacher(1), lp.Gaussian([0.4], [[0.49]]))
    g = np.linspace(-9, 9, 20001)
    density = np.exp(-(g**2) / 2) / np.exp(-(g**2) / 2).sum()
    z = 0.4 + 0.7 * g
    slope, intercept, residual = _least_squares(z[:, None], 2 * np.tanh(1.5 * z)[:, None], density)
    assert np.allclose(found.slope, slope, rtol=1e-9)
    assert np.isclose(found.slope.item(), density @ (3 / np.cosh(1.5 * z) ** 2), rtol=1e-9)
    assert np.allclose(found.intercept, intercept, atol=1e-9)
    assert np.isclose(found.residual.value, residual, rtol=1e-7)
    assert found.residual.error < 1e-8


@pytest.mark.parametrize("at", ["best", "mean query", "origin"])
def test_linearise_of_gaussian_tokens_is_lemma_2_1(at):
    rng, _, U, V = _problem()
    factor = rng.normal(size=(3, 3))
    mean = rng.normal(size=3)
    head, mu = lp.Head(U=U, V=V), lp.Gaussian(mean, factor @ factor.T)
    for nu in (lp.Gaussian(np.ones(2), np.eye(2)), rng.normal(size=(20, 2))):
        found = lp.linearise(head, mu, nu, at)
        assert np.allclose(found.slope, V @ factor @ factor.T @ U, rtol=1e-9)
        assert np.allclose(found.intercept, V @ mean, rtol=1e-9)
        assert found.residual.value < 1e-18
        z = rng.normal(size=(2, 4, 2))
        assert np.allclose(found(z), lp.attend(head, mu, z), rtol=1e-8)


@pytest.mark.slow
def test_linearise_over_gaussian_queries_against_least_squares_on_samples():
    rng, tokens, U, V = _problem()
    mean, root = np.array([0.5, -0.3]), np.array([[0.8, 0.0], [0.3, 0.5]])
    head, mu = lp.Head(U=U, V=V), lp.Empirical(tokens)
    found = lp.linearise(head, mu, lp.Gaussian(mean, root @ root.T))
    g = rng.normal(size=(4000, 2))
    z = mean + np.concatenate([g, -g]) @ root.T
    slope, intercept, residual = _least_squares(
        z, _attention(tokens, U, V, z), np.full(8000, 1 / 8000)
    )
    assert np.allclose(found.slope, slope, atol=0.02)
    assert np.allclose(found.intercept, intercept, atol=0.02)
    assert np.isclose(found.residual.value, residual, rtol=0.1)
    worse = [
        lp.linearise(head, mu, lp.Gaussian(mean, root @ root.T), at).residual.value
        for at in ("mean query", "origin")
    ]
    assert min(worse) > found.residual.value


@pytest.mark.parametrize("at", ["mean query", "origin"])
def test_linearise_by_taylor_expansion(at):
    _, tokens, U, V = _problem()
    head, mu = lp.Head(U=U, V=V), lp.Empirical(tokens)
    mean = np.array([0.5, -0.3])
    found = lp.linearise(head, mu, lp.Gaussian(mean, 0.1 * np.eye(2)), at)
    centre = np.zeros(2) if at == "origin" else mean
    steps = 1e-5 * np.eye(2)
    ends = _attention(tokens, U, V, np.concatenate([centre + steps, centre - steps]))
    assert np.allclose(found.slope, (ends[:2] - ends[2:]).T / 2e-5, rtol=1e-6, atol=1e-9)
    assert np.allclose(found(centre), _attention(tokens, U, V, centre[None])[0], rtol=1e-10)


def test_linearise_over_a_discrete_law_is_weighted_least_squares():
    rng, tokens, U, V = _problem()
    z, weights = rng.normal(size=(12, 2)), rng.uniform(size=12)
    found = lp.linearise(lp.Head(U=U, V=V), lp.Empirical(tokens), lp.Empirical(z, weights))
    slope, intercept, residual = _least_squares(
        z, _attention(tokens, U, V, z), weights / weights.sum()
    )
    assert np.allclose(found.slope, slope, rtol=1e-9)
    assert np.allclose(found.intercept, intercept, rtol=1e-9)
    assert np.isclose(found.residual.value, residual, rtol=1e-9)


def test_linearise_over_samples_holds_queries_out():
    rng, tokens, U, V = _problem()
    z = 2 * rng.normal(size=(15, 2))
    found = lp.linearise(lp.Head(U=U, V=V), lp.Empirical(tokens), z)
    outputs = _attention(tokens, U, V, z)
    slope, _, within = _least_squares(z, outputs, np.full(15, 1 / 15))
    error = 0.0
    for fold in range(5):
        out = np.arange(15) % 5 == fold
        A, b, _ = _least_squares(z[~out], outputs[~out], np.full(12, 1 / 12))
        error += np.sum((outputs[out] - z[out] @ A.T - b) ** 2)
    want = error / np.sum((outputs - outputs.mean(axis=0)) ** 2)
    assert np.allclose(found.slope, slope, rtol=1e-9)
    assert np.isclose(found.residual.value, want, rtol=1e-9)
    assert found.residual.value > 1.2 * within
    assert 0 < found.residual.error < 1


def test_linearise_over_queries_of_many_dimensions():
    rng = np.random.default_rng(5)
    U = 0.5 * rng.normal(size=(4, 4))
    head, nu = lp.Head(U=U, V=np.eye(4)), lp.Gaussian(np.full(4, 0.3), np.eye(4))
    method = lp.QuasiMonteCarlo(jax.random.key(0), points=256)
    found = lp.linearise(head, lp.Rademacher(4), nu, method=method)
    # output j depends on <U_j, z> alone: one-dimensional integrals
    g = np.linspace(-9, 9, 4001)
    density = np.exp(-(g**2) / 2) / np.exp(-(g**2) / 2).sum()
    scores = 0.3 * U.sum(axis=1)[:, None] + np.linalg.norm(U, axis=1)[:, None] * g
    rates, tanh = (1 / np.cosh(scores) ** 2) @ density, np.tanh(scores)
    assert np.allclose(found.slope, rates[:, None] * U, atol=0.003)
    variance = (tanh**2) @ density - (tanh @ density) ** 2
    residual = 1 - np.sum((rates[:, None] * U) ** 2) / np.sum(variance)
    assert abs(found.residual.value - residual) < 5 * found.residual.error


def test_linearise_of_recorded_arrays_in_single_precision():
    """Keys and values of NumPy in float32, as recordings have them, are computed in float64."""
    rng = np.random.default_rng(0)
    keys, values = (rng.normal(size=(50, d)).astype(np.float32) for d in (3, 2))
    queries = rng.normal(size=(40, 3)).astype(np.float32)
    found, expected = (
        lp.linearise(lp.Head.key_value(3, 2), lp.KeyValues(*arrays), queries.astype(kind))
        for kind, arrays in (
            (np.float32, (keys, values)),
            (np.float64, (keys.astype(np.float64), values.astype(np.float64))),
        )
    )
    assert np.asarray(found.slope).dtype == np.float64
    np.testing.assert_allclose(found.slope, expected.slope, rtol=1e-12)


def test_linearise_of_a_constant_output():
    """One token: the output does not depend on the query."""
    head = lp.Head(U=np.eye(2), V=np.eye(2))
    found = lp.linearise(head, lp.Empirical([[1.0, 2.0]]), lp.Gaussian(np.zeros(2), np.eye(2)))
    assert np.allclose(found.slope, 0)
    assert np.allclose(found.intercept, [1, 2])
    assert found.residual.value == 0


@pytest.mark.parametrize("at", ["best", "mean query", "origin"])
@pytest.mark.parametrize("method", [None, "scrambled", "sampled"])
def test_linearise_over_one_query_is_the_expansion_there(at, method):
    """The limit of narrow Gaussian queries, in all directions or in one."""
    _, tokens, U, V = _problem()
    head, mu, z = lp.Head(U=U, V=V), lp.Empirical(tokens), np.array([0.5, -0.3])
    methods = {
        "scrambled": lp.QuasiMonteCarlo(jax.random.key(0)),
        "sampled": lp.MonteCarlo(jax.random.key(0)),
    }
    centre = np.zeros(2) if at == "origin" else z
    steps = 1e-5 * np.eye(2)
    ends = _attention(tokens, U, V, np.concatenate([centre + steps, centre - steps]))
    slope = (ends[:2] - ends[2:]).T / 2e-5
    laws = [lp.Dirac(z)] + [lp.Gaussian(z, np.zeros((2, 2)))] * (method is None)
    for nu in laws:
        found = lp.linearise(head, mu, nu, at, method=methods.get(method))
        assert np.allclose(found.slope, slope, rtol=1e-6, atol=1e-9)
        assert np.allclose(found(centre), _attention(tokens, U, V, centre[None])[0], rtol=1e-10)
        if at != "origin":
            assert found.residual.value == 0
    narrow = lp.linearise(head, mu, lp.Gaussian(z, 1e-10 * np.diag([1.0, 0.0])), at)
    assert np.allclose(narrow.slope, slope, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_linearise_does_not_call_an_unconverged_rule_exact():
    """Scores of deviation 10 in three dimensions: no tensor rule converges, other methods serve."""
    rng = np.random.default_rng(0)
    tokens, U, V = rng.normal(size=(50, 3)), 6 * np.eye(3), np.eye(3)
    head, mu, nu = lp.Head(U=U, V=V), lp.Empirical(tokens), lp.Gaussian(np.zeros(3), np.eye(3))
    with pytest.raises(ValueError, match="QuasiMonteCarlo"):
        lp.linearise(head, mu, nu)
    z = rng.normal(size=(20_000, 3))
    slope, _, residual = _least_squares(z, _attention(tokens, U, V, z), np.full(20_000, 1 / 20_000))
    key = jax.random.key(0)
    for method in (
        lp.QuasiMonteCarlo(key, points=2**13, replicates=4),
        lp.MonteCarlo(key, max_replicates=20_000),
    ):
        found = lp.linearise(head, mu, nu, method=method)
        assert isinstance(found.residual.method, type(method))
        # least squares on samples has a standard error of about sqrt(residual / 20,000) = 0.004
        assert np.allclose(found.slope, slope, atol=0.05)
        assert abs(found.residual.value - residual) < 5 * (found.residual.error + 0.003)


def test_linearise_by_a_given_method():
    """A method is used also where an exact rule exists, and for Gaussian tokens."""
    _, tokens, U, V = _problem()
    head, nu = lp.Head(U=U, V=V), lp.Gaussian(np.zeros(2), 0.25 * np.eye(2))
    method = lp.QuasiMonteCarlo(jax.random.key(0), points=256)
    laws = lp.Empirical(tokens), lp.Gaussian(np.ones(3), np.eye(3))
    for mu, error in zip(laws, (0.02, 1e-9), strict=True):
        found, exact = (lp.linearise(head, mu, nu, method=m) for m in (method, lp.Exact()))
        assert isinstance(found.residual.method, type(method))
        assert isinstance(exact.residual.method, lp.Exact)
        assert np.allclose(found.slope, exact.slope, atol=error)
        assert abs(found.residual.value - exact.residual.value) < 1e-18 + 5 * found.residual.error


def test_linearise_in_32_bit_mode(mode_32):
    head = lp.Head(U=[[1.0]], V=[[1.0]])
    found = lp.linearise(head, lp.Rademacher(1), lp.Gaussian([0.0], [[1.0]]))
    assert found.slope.dtype == np.float64
    assert np.isclose(found.slope.item(), 0.605705509, rtol=1e-8)


def _mixture(rng):
    factors = rng.normal(size=(2, 2, 2))
    parts = [lp.Gaussian(rng.normal(size=2), 0.5 * f @ f.T) for f in factors]
    return lp.Mixture([1.0, 2.0, 3.0], [*parts, lp.Dirac([0.4, -1.0])])


def test_experts_are_attention_on_the_mixture():
    rng = np.random.default_rng(0)
    mu, head = _mixture(rng), lp.Head(U=rng.normal(size=(2, 3)), V=rng.normal(size=(1, 2)))
    found, z = lp.compression.experts(head, mu), rng.normal(size=(4, 5, 3))
    assert np.allclose(found(z), lp.attend(head, mu, z), rtol=1e-10)
    gates = found.gates(z)
    u = z @ np.asarray(head.U).T
    masses = []
    for weight, part in zip(*mu.mixture(), strict=True):
        m, G = np.asarray(part.mean()), np.asarray(part.cov())
        masses.append(weight * np.exp(u @ m + np.einsum("...i,ij,...j", u, G, u) / 2))
    masses = np.stack(masses, axis=-1)
    assert np.allclose(gates, masses / masses.sum(axis=-1, keepdims=True), rtol=1e-10)
    assert np.allclose(found.slopes[2], 0)


@pytest.mark.slow
def test_experts_of_prompts_and_compressed_prompts():
    """Tokens are experts of slope 0; a mixture may contain prompts and compressed prompts."""
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    head, z = lp.Head.key_value(2, 2), rng.normal(size=(5, 2))
    small = lp.compress(lp.KeyValues(keys, values), z, atoms=7, rank=1)
    assert small.tail is not None
    prompt = lp.KeyValues(keys[:9], values[:9], rng.normal(size=9))
    gaussian = lp.Gaussian(np.ones(4), np.eye(4))
    tokens = lp.Empirical(rng.normal(size=(3, 4)), [1.0, 2.0, 3.0])
    for mu, count in (
        (prompt, 9),
        (small, 8),
        (lp.Mixture([1, 2, 3], [small, tokens, lp.Mixture([1, 1], [gaussian, prompt])]), 21),
    ):
        found = lp.compression.experts(head, mu)
        assert found.intercepts.shape == (count, 2)
        assert np.allclose(eqx.filter_jit(found)(z), lp.attend(head, mu, z), rtol=1e-9)
    assert np.allclose(lp.compression.experts(lp.MultiHead([head]), prompt).slopes, 0)


@pytest.mark.parametrize("mu", [lp.Empirical([[0.3, 1.0], [2.0, -1.0], [0.0, 0.5]]), "mixture"])
def test_gaussian_at_agrees_to_second_order(mu):
    mu = _mixture(np.random.default_rng(1)) if isinstance(mu, str) else mu
    u = jnp.array([0.7, -0.4])
    found = mu.gaussian_at(u)
    assert np.isclose(found.log_mgf(u), mu.log_mgf(u), rtol=1e-12)
    for axis in np.array([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]]):  # the gap is of third order
        gaps = [found.log_mgf(u + h * axis) - mu.log_mgf(u + h * axis) for h in (0.005, 0.01)]
        assert np.isclose(gaps[1] / gaps[0], 8, rtol=0.1)
    plain = mu.gaussian_at(jnp.zeros(2))
    assert abs(plain.log_mass) < 1e-15
    assert np.allclose(plain.measure.mean(), mu.mean())


def test_gaussian_at_of_a_gaussian_is_itself():
    mu = lp.Gaussian([0.5, -1.0], [[2.0, 0.3], [0.3, 1.0]])
    found = mu.gaussian_at([3.0, -2.0])
    assert abs(found.log_mass) < 1e-13
    assert np.allclose(found.measure.mean(), mu.mean(), rtol=1e-13)


@pytest.mark.slow
def test_mixture_of_scaled_components():
    """Half of the tokens kept, the others as one scaled Gaussian: exact near the tilt."""
    tokens = np.random.default_rng(2).normal(size=(40, 2))
    u = jnp.array([0.5, 1.0])
    tail = lp.Empirical(tokens[20:]).gaussian_at(u)
    mu = lp.Mixture([20, 20], [lp.Empirical(tokens[:20]), tail])
    whole = lp.Empirical(tokens)
    assert np.allclose(mu.tilted_mean(u), whole.tilted_mean(u), rtol=1e-12)
    assert np.allclose(mu.tilted_cov(u), whole.tilted_cov(u), rtol=1e-11)
    wrong = lp.Mixture([20, 20], [lp.Empirical(tokens[:20]), tail.measure])
    assert not np.allclose(wrong.tilted_mean(u), whole.tilted_mean(u), rtol=1e-3)
    moved = mu.affine([[2.0, 1.0]], [1.0])
    assert np.allclose(
        moved.tilted_mean([0.3]), 1 + np.array([2.0, 1.0]) @ mu.tilted_mean([0.6, 0.3])
    )


def test_mixture_of_a_component_of_tiny_mass():
    """Masses that underflow as numbers still gate."""
    small = lp.measures.Scaled(jnp.asarray(-2000.0), lp.Dirac([2.0]))
    mu = lp.Mixture([1, 1], [lp.Dirac([0.0]), small])
    assert np.isclose(mu.tilted_mean([1000.0])[0], 1.0, rtol=1e-12)


def test_linearise_result_says_its_numbers_when_printed():
    head = lp.Head(U=np.eye(1), V=np.eye(1))
    found = lp.linearise(head, lp.Rademacher(1), lp.Gaussian([0.0], [[1.0]]))
    text = repr(found)
    assert text.startswith("AffineMap: best, residual 0.06953 +- ")
    assert "[[0.6057]]" in text
    mu = lp.Gaussian(np.zeros(20), np.eye(20))
    wide = lp.linearise(lp.Head(U=np.eye(20), V=np.eye(20)), mu, mu)
    assert len(repr(wide)) < 1000
    traced = []
    eqx.filter_jit(lambda one: traced.append(repr(one)) or one.slope)(found)
    assert "[1,1]" in traced[0]
