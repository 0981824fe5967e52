"""Known numbers go in and come out in float64, whatever JAX's default precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp

from .measures.registry import CASES, direction

KEY = jax.random.key(0)
EYE = np.eye(2)
Z = np.array([0.7, -0.4])

pytestmark = pytest.mark.usefixtures("mode_32")


def _leaves(tree):
    """The floating-point numbers of a result, of any kind."""
    leaves = jax.tree.leaves(tree)
    return [leaf for leaf in leaves if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]


def _is_float64(leaf):
    return not isinstance(leaf, jax.Array) and np.asarray(leaf).dtype == np.float64


def _things(xp):
    eye = xp.eye(2)
    head, mu = lp.Head(U=0.3 * eye, V=0.7 * eye), lp.Gaussian(xp.zeros(2), eye)
    other = lp.MultiHead([head, lp.Head(U=-0.3 * eye, V=eye)])
    task = lp.LinearRegression(eye, task_cov=eye / 2, noise_variance=0.1)
    block = lp.BlockParams(0.3 * eye, 0.3)
    return head, other, mu, xp.asarray(Z), task, block


EXACT = {
    "attend": lambda h, hs, mu, z, task, block: lp.attend(hs, mu, z),
    "attend_linear": lambda h, hs, mu, z, task, block: lp.attend_linear(h, mu, z),
    "attend_jacobians": lambda h, hs, mu, z, task, block: lp.attend_jacobians(hs, mu, z),
    "attend, mixture": lambda h, hs, mu, z, task, block: lp.attend(
        h, lp.Mixture([1, 2], [mu, lp.Rademacher(2)]), z
    ),
    "expect": lambda h, hs, mu, z, task, block: lp.expect(lp.OutputError(), h, mu, z, 10.0)[:2],
    "expect, infinite": lambda h, hs, mu, z, task, block: lp.finite_mean(h, mu, z, np.inf),
    "expect, atoms": lambda h, hs, mu, z, task, block: lp.finite_mean(
        h, lp.Empirical(EYE), z, [3.0, 1e3]
    ),
    "gradient_error": lambda h, hs, mu, z, task, block: lp.gradient_error(h, mu, z, 1e3),
    "output_covariance": lambda h, hs, mu, z, task, block: lp.output_covariance(h, mu, z, z, 9.0),
    "prefix_difference": lambda h, hs, mu, z, task, block: lp.prefix_difference(h, mu, z, 9.0, 1e3),
    "participation": lambda h, hs, mu, z, task, block: lp.participation(1.0, 10.0),
    "pair_moments": lambda h, hs, mu, z, task, block: lp.pair_moments(1.0, 1.0, 0.5, 10.0),
    "risk": lambda h, hs, mu, z, task, block: task.risk(block, [10.0, 1e3])[:2],
    "bayes_risk": lambda h, hs, mu, z, task, block: task.bayes_risk(10)[:2],
    "params.head": lambda h, hs, mu, z, task, block: lp.BlockParams(EYE, 0.3).head,
    "layer": lambda h, hs, mu, z, task, block: lp.Layer([lp.Head(EYE, EYE)])(lp.Dirac(Z)).mean(),
}


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_return_numpy_float64(name, xp):
    found = _leaves(EXACT[name](*_things(xp)))
    assert found
    assert all(map(_is_float64, found))


def test_output_error_survives_arithmetic():
    """At U = 0 the error is tr(V V') / L, far below the range of float32."""
    head = lp.Head(U=0 * EYE, V=0.7 * EYE)
    found = lp.output_error(head, lp.Gaussian(np.zeros(2), EYE), Z, 1e50) * 1.0
    assert found == pytest.approx(0.98e-50, rel=1e-12)


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_finite_mean_less_attend_keeps_its_digits(xp):
    """E T_L - T = -P_2 V G U z, and P_2 approaches e^{sigma^2} / L."""
    head, _, mu, z, *_ = _things(xp)
    U, V = (np.asarray(a, np.float64) for a in (head.U, head.V))
    z = np.asarray(z, np.float64)
    u = U @ z
    wanted = -np.exp(u @ u) / 1e8 * (V @ u)
    assert lp.finite_mean(head, mu, z, 1e8) - lp.attend(head, mu, z) == pytest.approx(
        wanted, rel=1e-6
    )


def test_constructors_do_not_round():
    """0.1 is no float32; every number must come back as it went in."""
    A = 0.1 * EYE
    task = lp.LinearRegression(A, task_cov=A, noise_variance=0.1, query_cov=A)
    factored = lp.FactoredParams(A, A, A, A[:1])
    things = (
        *(lp.Head(A, A), lp.Head.from_kqv(EYE, EYE, A, scale=0.1), lp.Gaussian(A[0], A)),
        *(lp.Dirac([0.1, 0.1]), lp.Empirical(A), lp.KeyValues(A, A), lp.Uniform(2, 0.1)),
        *(lp.Sphere(2, 0.1), lp.HeadParams(A, A[0]), lp.BlockParams(A, 0.1), factored, task),
        lp.ProductRegression(lp.Rademacher(2), A, 0.1),
        lp.Gaussian.from_factor(A[0], EYE),
    )
    for thing in things:
        found = _leaves(thing)
        assert found, thing
        assert all(map(_is_float64, found)), thing
        assert set(np.concatenate([np.ravel(leaf) for leaf in found])) <= {0.0, 0.1, 1.0}, thing


@pytest.mark.parametrize("name", CASES)
def test_measures_of_known_numbers_stay_in_numpy(name):
    """All methods in 32-bit mode give the numbers of 64-bit mode."""
    u = 0.3 * direction(CASES[name].make().dim)

    def results(mu):
        moments = [mu.log_mgf(u), mu.tilted_mean(u), mu.tilted_cov(u), mu.tilt(u).mean(), mu.cov()]
        proxy = mu.subgaussian_proxy() if CASES[name].has_proxy else 0.0
        return *moments, proxy, mu.affine(0.1 * np.eye(mu.dim)).mean(), (mu + mu).cov()

    found = results(CASES[name].make())
    with jax.enable_x64(True):
        wanted = results(CASES[name].make())
    assert all(map(_is_float64, _leaves(found)))
    for got, want in zip(found, wanted, strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("name", CASES)
def test_sample_is_in_single_precision(name):
    """Draws follow JAX's default, and nothing warns about types that it lacks."""
    if CASES[name].samples:
        assert CASES[name].make().sample(KEY, 3).points.dtype == jnp.float32


def test_attend_on_tokens_keeps_their_library_and_type():
    head, points = lp.Head(0.1 * EYE, EYE), np.linspace(-1, 1, 10).reshape(5, 2)
    weights = np.exp(points @ (0.1 * Z))
    wanted = weights @ points / np.sum(weights)
    on_host = lp.attend(head, lp.Empirical(points), Z)
    assert _is_float64(on_host)
    assert np.allclose(on_host, wanted, rtol=1e-14, atol=0)
    on_device = lp.attend(head, lp.Empirical(jnp.asarray(points)), Z)
    assert isinstance(on_device, jax.Array)
    assert on_device.dtype == jnp.float32
    assert np.allclose(on_device, wanted, rtol=1e-6, atol=0)
    single = lp.Empirical(points.astype(np.float32))
    assert single.points.dtype == np.float32
    assert lp.attend(lp.Head(*np.ones((2, 2, 2), np.float32)), single, Z).dtype == np.float32


def test_attend_is_traced_with_numpy_leaves():
    head, _, mu, z, *_ = _things(np)
    wanted = lp.attend(head, mu, z)
    assert np.allclose(jax.jit(lp.attend)(head, mu, z), wanted, rtol=1e-6)
    assert np.allclose(jax.vmap(lambda z: lp.attend(head, mu, z))(z[None])[0], wanted, rtol=1e-6)
    slope = jax.grad(lambda head: lp.attend(head, mu, z).sum())(head)
    assert np.allclose(slope.U, 0.7 * np.stack([z, z]), rtol=1e-6)
    # known numbers inside a program are constants
    assert np.allclose(jax.jit(lambda x: x + lp.attend(head, mu, z))(0.0), wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="needs JAX in 64-bit mode"):
        jax.jit(lambda z: lp.output_error(head, mu, z, 10.0))(z)


def test_head_does_not_follow_changes_of_its_arrays():
    U = EYE.copy()
    head, prompt = lp.Head(U=U, V=U), lp.Empirical(U)
    U[0, 0] = 5.0
    assert np.array_equal(head.U, EYE)
    assert np.array_equal(prompt.points, EYE)
    with pytest.raises(ValueError, match="read-only"):
        head.U[0, 0] = 5.0
    output = lp.attend(head, lp.Gaussian(np.zeros(2), EYE), Z)
    output *= 2  # a result is the caller's own
    assert np.array_equal(output, 2 * Z)


def test_rademacher_takes_the_memory_of_one_number():
    assert lp.Rademacher(2**40).dim == 2**40


def test_gaussian_of_half_precision():
    found = lp.Gaussian(np.zeros(2, np.float16), EYE.astype(np.float16)).cov()
    assert found.dtype == np.float32
    assert np.array_equal(found, EYE)


def test_layer_composes_in_float64():
    """A thousand layers of one dimension against their recurrence in float64."""
    layer, mu, variance = lp.Layer([lp.Head([[-0.01]], [[0.1]])]), lp.Gaussian([0.0], [[1.0]]), 1.0
    for _ in range(1000):
        mu, variance = layer(mu), (1 - 0.001 * variance) ** 2 * variance
    assert mu.cov() == pytest.approx(np.array([[variance]]), rel=1e-12)
