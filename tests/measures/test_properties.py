"""Properties of every measure of the registry."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp

from .registry import CASES

parametrize = pytest.mark.parametrize("name", CASES)

ROWS = 8  # vectors in one call of _moments
DRAWS = 20_000  # in every sample: one program for each measure


def _vectors(d: int, n: int = 3, scale: float = 1.5) -> np.ndarray:
    return scale * np.random.default_rng(7).normal(size=(n, d))


@eqx.filter_jit
def _moments(mu, us):
    """Values of psi, tilted means and covariances at `ROWS` vectors, compiled once per measure."""
    return jax.vmap(lambda u: (mu.log_mgf(u), mu.tilted_mean(u), mu.tilted_cov(u)))(us)


@parametrize
def test_tilted_moments_are_gradient_and_hessian_of_log_mgf(name):
    mu = CASES[name].make()

    @jax.jit
    @jax.vmap
    def by_autodiff(u):
        slope = jax.grad(mu.log_mgf)
        return slope(u), jax.jacfwd(slope)(u), jax.jacrev(mu.tilted_mean)(u)

    us = jnp.asarray(_vectors(mu.dim, ROWS))
    _, mean, cov = _moments(mu, us)
    for got, want in zip(by_autodiff(us), (mean, cov, cov), strict=True):
        assert np.allclose(got, want, rtol=1e-10, atol=1e-11)


@parametrize
def test_tilt_is_the_increment_of_log_mgf_and_tilts_add(name):
    mu = CASES[name].make()
    u, v, w = _vectors(mu.dim)
    tilted = mu.tilt(u)
    increment = mu.log_mgf(u + v) - mu.log_mgf(u)
    assert np.allclose(tilted.log_mgf(v), increment, rtol=1e-11, atol=1e-11)
    assert np.allclose(tilted.mean(), mu.tilted_mean(u), rtol=1e-12, atol=1e-13)
    assert np.allclose(tilted.cov(), mu.tilted_cov(u), rtol=1e-11, atol=1e-12)
    twice, once = mu.tilt(u).tilt(v), mu.tilt(u + v)
    assert np.allclose(twice.log_mgf(w), once.log_mgf(w), rtol=1e-11, atol=1e-11)
    assert np.allclose(twice.tilted_mean(w), once.tilted_mean(w), rtol=1e-11, atol=1e-12)


@parametrize
def test_log_mgf_vanishes_at_zero_and_is_convex(name):
    mu = CASES[name].make()
    assert mu.log_mgf(np.zeros(mu.dim)) == 0.0
    u, v, _ = _vectors(mu.dim)
    for t in (0.1, 0.5, 0.8):
        chord = t * mu.log_mgf(u) + (1 - t) * mu.log_mgf(v)
        assert mu.log_mgf(t * u + (1 - t) * v) <= chord + 1e-13 * (1 + abs(chord))


@parametrize
def test_affine(name):
    mu = CASES[name].make()
    A = np.random.default_rng(1).normal(size=(2, mu.dim))
    b = np.array([0.3, -2.0])
    u = np.array([0.4, -0.9])
    image = mu.affine(A, b)
    assert image.dim == 2
    assert np.allclose(image.log_mgf(u), b @ u + mu.log_mgf(A.T @ u), rtol=1e-12, atol=1e-13)
    assert np.allclose(image.mean(), A @ mu.mean() + b, rtol=1e-12, atol=1e-13)
    assert np.allclose(image.cov(), A @ mu.cov() @ A.T, rtol=1e-12, atol=1e-12)
    assert np.allclose(
        image.tilt(u).mean(), A @ mu.tilted_mean(A.T @ u) + b, rtol=1e-12, atol=1e-12
    )
    if CASES[name].has_proxy:
        assert (
            image.subgaussian_proxy() <= np.linalg.norm(A, 2) ** 2 * mu.subgaussian_proxy() + 1e-12
        )


@parametrize
@pytest.mark.parametrize("other", ["uniform", "gaussian", "dirac"])
def test_add(name, other):
    mu = CASES[name].make()
    d = mu.dim
    nu = {
        "uniform": lp.Uniform(d, 0.9),
        "gaussian": lp.Gaussian(np.ones(d), np.eye(d)),
        "dirac": lp.Dirac(np.arange(1.0, d + 1)),
    }[other]
    u = _vectors(d)[0]
    for total in (mu + nu, nu + mu):
        assert np.allclose(total.log_mgf(u), mu.log_mgf(u) + nu.log_mgf(u), rtol=1e-12, atol=1e-12)
        assert np.allclose(total.mean(), mu.mean() + nu.mean(), rtol=1e-12, atol=1e-12)
        assert np.allclose(
            total.tilted_cov(u), mu.tilted_cov(u) + nu.tilted_cov(u), rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.samples])
def test_sample_has_the_mean_and_covariance(name):
    """Fixed key and |z| <= 6 for at most 12 numbers: a false alarm has probability below 3e-8.

    Standard errors of covariance entries come from the sample; entries without variance must agree
    to rounding.
    """
    mu = CASES[name].make()
    x = np.asarray(mu.sample(jax.random.key(3), DRAWS).points)
    assert x.shape == (DRAWS, mu.dim)
    gaps = x - np.asarray(mu.mean())
    products = gaps[:, :, None] * gaps[:, None, :]
    for draws, expected in ((x, mu.mean()), (products, mu.cov())):
        error = draws.std(axis=0) / np.sqrt(DRAWS)
        assert np.all(np.abs(draws.mean(axis=0) - expected) <= 6 * error + 1e-9)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_proxy])
def test_subgaussian_proxy_bounds_log_mgf(name):
    mu = CASES[name].make()
    proxy, mean = mu.subgaussian_proxy(), np.asarray(mu.mean())
    for scale in (1e-3, 0.1, 1.0, 10.0, 100.0):
        us = _vectors(mu.dim, ROWS, scale)
        values = np.asarray(_moments(mu, jnp.asarray(us))[0])
        bound = proxy * np.sum(us**2, axis=-1) / 2 * (1 + 1e-9) + 1e-12 * (1 + np.abs(us @ mean))
        assert np.all(values - us @ mean <= bound)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.has_proxy])
def test_subgaussian_proxy_missing_names_the_fix(name):
    with pytest.raises(ValueError, match=r"To fix: (add|give)"):
        CASES[name].make().subgaussian_proxy()


@parametrize
def test_log_mgf_and_tilted_moments_under_jit_and_vmap(name):
    """A measure is a pytree: an argument of jit and vmap like any array."""
    mu = CASES[name].make()
    us = _vectors(mu.dim, ROWS)
    batched = [np.asarray(values)[:3] for values in _moments(mu, jnp.asarray(us))]
    for got, method in zip(batched, (mu.log_mgf, mu.tilted_mean, mu.tilted_cov), strict=True):
        one_by_one = np.stack([method(u) for u in us[:3]])
        assert np.allclose(got, one_by_one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.samples])
def test_sample_under_jit_depends_on_the_key_only(name):
    mu = CASES[name].make()
    draw = eqx.filter_jit(lambda m, key: m.sample(key, DRAWS).points)
    key = jax.random.key(11)
    eager = np.asarray(mu.sample(key, DRAWS).points)
    assert np.allclose(draw(mu, key), eager, rtol=1e-12, atol=1e-13)
    assert np.array_equal(mu.sample(key, DRAWS).points, eager)
