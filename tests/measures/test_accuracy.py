"""Accuracy against mpmath from |u| = 0 and 1e-12 to 1e4 (float64), and safety to 1e2 in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from largeprompt.measures import _bessel
from largeprompt.measures import _scalar_cumulants as scalar

from ..oracles import measures as oracle
from .registry import CASES, direction

SCALES = (0.0, 1e-12, 1e-6, 1e-2, 0.5, 1.0, 3.0, 30.0, 1e3, 1e4)
TOLERANCE = 1e-10


def _relative(got, want) -> float:
    """Largest error relative to the largest entry; entries below 1e-50 count as 0."""
    got = np.atleast_1d(np.asarray(got, dtype=np.float64)).ravel()
    want = list(mp.matrix(want)) if isinstance(want, list) else [want]
    scale = max(abs(w) for w in want)
    if scale < mp.mpf("1e-50"):
        return 0.0 if np.all(np.abs(got) < 1e-50) else np.inf
    return float(max(abs(mp.mpf(float(g)) - w) for g, w in zip(got, want, strict=True)) / scale)


@eqx.filter_jit
def _all_moments(mu, u):
    return mu.log_mgf(u), mu.tilted_mean(u), mu.tilted_cov(u)


@pytest.mark.parametrize("name", CASES)
def test_log_mgf_and_tilted_moments_against_mpmath(name):
    case = CASES[name]
    mu = case.make()
    for scale in SCALES:
        u = scale * direction(mu.dim)
        value, mean, cov = _all_moments(mu, u)
        if case.small_increments or scale == 0 or scale >= 1e-2:
            assert _relative(value, case.psi([mp.mpf(float(x)) for x in u])) <= TOLERANCE, scale
        assert _relative(mean, oracle.gradient(case.psi, u)) <= TOLERANCE, scale
        assert _relative(cov, oracle.hessian(case.psi, u)) <= TOLERANCE, scale


@pytest.mark.parametrize("name", CASES)
def test_log_mgf_and_tilted_moments_in_float32(name):
    exact = CASES[name].make()
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), exact)
    for scale in (0.0, 1e-12, 1e-4, 1.0, 1e2):
        u = (scale * direction(exact.dim)).astype(np.float32)
        wanted = _all_moments(exact, u.astype(np.float64))
        for index, pair in enumerate(zip(_all_moments(single, u), wanted, strict=True)):
            if index == 0 and not CASES[name].small_increments and 0 < scale < 1:
                continue
            got, want = map(np.asarray, pair)
            assert got.dtype == np.float32 or name.startswith("custom")
            assert np.all(np.isfinite(got))
            assert np.max(np.abs(got - want)) <= 2e-4 * max(np.max(np.abs(want)), 1e-30), scale


@pytest.mark.parametrize("x", [0.0, 1e-12, 1e-3, 0.4, 1.4999, 1.5, 1.5001, 4.0, 50.0, 1e4])
@pytest.mark.parametrize("sign", [1, -1])
def test_scalar_cumulants_against_mpmath(x, sign):
    point = mp.mpf(sign * x)
    want = {
        "log_cosh": mp.log(mp.cosh(point)),
        "tanh": mp.tanh(point),
        "sech_squared": mp.sech(point) ** 2,
        "log_sinhc": mp.log(mp.sinh(point) / point) if x else mp.mpf(0),
        "langevin": mp.coth(point) - 1 / point if x else mp.mpf(0),
        "langevin_slope": 1 / point**2 - mp.csch(point) ** 2 if x else mp.mpf(1) / 3,
    }
    for name, value in want.items():
        got = getattr(scalar, name)(jnp.asarray(sign * x))
        assert _relative(got, value) <= 1e-14, name


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 500, 3000])
@pytest.mark.parametrize("kappa", [1e-12, 1e-3, 0.5, 2.0, 7.0, 40.0, 300.0, 1e4, 1e6])
def test_bessel_functions_of_the_sphere_against_mpmath(d, kappa):
    """The functions log M, A/kappa and A' in dimensions from 1 to thousands."""
    square = float(kappa) ** 2
    k, nu = mp.sqrt(mp.mpf(square)), mp.mpf(d) / 2 - 1
    ratio = mp.besseli(nu + 1, k) / mp.besseli(nu, k)
    want_log = mp.loggamma(nu + 1) + nu * mp.log(2 / k) + mp.log(mp.besseli(nu, k))
    assert _relative(_bessel.log_m(d, jnp.asarray(square)), want_log) <= 1e-12
    assert _relative(_bessel.mean_over_kappa(d, jnp.asarray(square)), ratio / k) <= 1e-12
    want_slope = 1 - ratio**2 - (d - 1) * ratio / k
    assert _relative(_bessel.radial_variance(d, jnp.asarray(square)), want_slope) <= 1e-12
