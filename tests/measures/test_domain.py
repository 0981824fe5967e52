# pyright: reportOperatorIssue=false
"""Measures with a cumulant function that is infinite somewhere: infinity or an error outside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import largeprompt as lp
from largeprompt.measures import IndependentSum

from ..documented import classes_in
from ..errors import RAISED_UNDER_JIT
from .registry import CASES

Laplace = classes_in("extending.md", lp.AbstractMeasure)["Laplace"]


class Undeclared(lp.AbstractAutodiffMeasure):
    """The same law without `in_domain`; with `infinite`, log_mgf is +inf outside the domain."""

    infinite: bool = eqx.field(static=True, default=False)
    dim: int = eqx.field(static=True, default=2)

    def log_mgf(self, u):
        psi = -jnp.sum(jnp.log1p(-((0.5 * u) ** 2)))
        return jnp.where(jnp.all(jnp.abs(0.5 * u) < 1), psi, jnp.inf) if self.infinite else psi

    def sample(self, key, n):
        return lp.Empirical(0.5 * jax.random.laplace(key, (n, self.dim)))


HALF = Laplace(jnp.array(0.5), 2)  # |u_j| < 2
MAP = np.array([[1.0, 0.5], [0.0, 2.0]])  # A'u = (u_1, u_1 / 2 + 2 u_2)
WITH = lp.Gaussian(np.zeros(2), np.eye(2))

# measure, a vector inside its domain, one outside
LIMITED = {
    "laplace": (lambda: HALF, [1.9, -1.5], [3.0, 0.0]),
    "affine": (lambda: HALF.affine(MAP, [1.0, -1.0]), [1.0, 0.5], [0.0, 1.1]),
    "mixture": (lambda: lp.Mixture([1, 3], [WITH, HALF]), [1.9, 0.3], [2.1, 0.0]),
    "sum": (lambda: WITH + HALF, [1.9, 0.3], [0.5, -2.1]),
    "tilted": (lambda: HALF.tilt([1.5, 0.0]), [0.4, 1.0], [0.6, 0.0]),
    "tilted mixture": (
        lambda: lp.Mixture([1, 3], [WITH, HALF]).tilt([1.5, 0.0]),
        [0.4, 1.0],
        [0.6, 0.0],
    ),
    "affine of a sum": (lambda: (HALF + lp.Uniform(2)).affine(MAP), [1.0, 0.5], [0.0, 1.1]),
}
parametrize = pytest.mark.parametrize("name", LIMITED)
TILTING = ("tilted_mean", "tilted_cov", "tilt")


def _mgf(u, order=0):
    """E x^order e^{ux} of the Laplace law of scale 1/2, by quadrature over both sides."""
    return sum(
        integrate.quad(lambda x, s=s: (s * x) ** order * np.exp(s * u * x - 2 * x), 0, np.inf)[0]
        for s in (1, -1)
    )


def test_tilted_moments_inside_the_domain_against_quadrature():
    u = np.array([1.9, -1.5])
    totals = np.array([[_mgf(v, order) for order in range(3)] for v in u])
    mean = totals[:, 1] / totals[:, 0]
    assert np.allclose(HALF.log_mgf(u), np.sum(np.log(totals[:, 0])), rtol=1e-8)
    assert np.allclose(HALF.tilted_mean(u), mean, rtol=1e-8)
    assert np.allclose(
        np.diag(HALF.tilted_cov(u)), totals[:, 2] / totals[:, 0] - mean**2, rtol=1e-7
    )
    moved = HALF.affine(MAP, [1.0, -1.0])
    pulled = np.linalg.solve(MAP.T, u)
    assert np.allclose(moved.tilted_mean(pulled), MAP @ mean + [1.0, -1.0], rtol=1e-8)
    assert np.allclose((WITH + HALF).tilted_mean(u), mean + u, rtol=1e-8)


@parametrize
def test_log_mgf_is_infinite_outside_the_domain_and_tilting_raises(name):
    make, inside, outside = LIMITED[name]
    mu = make()
    assert not mu.finite_everywhere
    assert bool(mu.in_domain(inside))
    assert not bool(mu.in_domain(outside))
    assert np.isfinite(mu.log_mgf(inside))
    assert np.isfinite(mu.tilt(inside).log_mgf(np.zeros(2)))
    assert mu.log_mgf(outside) == np.inf
    for method in TILTING:
        getattr(mu, method)(inside)
        with pytest.raises(ValueError, match=r"must lie in the domain of this .* To fix: scale U"):
            getattr(mu, method)(outside)


@parametrize
def test_log_mgf_outside_the_domain_under_jit_vmap_and_grad(name):
    """In a batch with rows inside and outside, the rows inside are not affected."""
    make, inside, outside = LIMITED[name]
    mu, us = make(), jnp.array([inside, outside])

    @jax.jit
    @jax.vmap
    def psi(u):
        return mu.log_mgf(u), jax.grad(mu.log_mgf)(u), jax.hessian(mu.log_mgf)(u)

    value, slope, curvature = psi(us)
    assert np.isfinite(value[0])
    assert value[1] == np.inf
    assert np.allclose(slope[0], mu.tilted_mean(inside), rtol=1e-11, atol=1e-13)
    assert np.allclose(curvature[0], mu.tilted_cov(inside), rtol=1e-11, atol=1e-13)
    assert np.all(np.isnan(slope[1]))
    assert np.all(np.isnan(curvature[1]))
    for method in ("tilted_mean", "tilted_cov"):
        batched = jax.jit(jax.vmap(getattr(mu, method)))
        jax.block_until_ready(batched(us[:1]))
        with pytest.raises(RAISED_UNDER_JIT, match="must lie in the domain of this"):
            jax.block_until_ready(batched(us))


HEAD = lp.Head(U=2 * np.eye(2), V=np.eye(2))
GOOD, BAD = np.array([0.9, 0.1]), np.array([1.5, 0.0])  # U z = (1.8, 0.2) and (3, 0)
KEY = jax.random.key(0)
AT = {
    "attend": lambda z: lp.attend(HEAD, HALF, z),
    "attend, a batch": lambda z: lp.attend(HEAD, HALF, np.stack([GOOD, z])),
    "attend_jacobians": lambda z: lp.attend_jacobians(HEAD, HALF, z),
    "expect, Monte Carlo": lambda z: lp.expect(
        lp.OutputError(), HEAD, HALF, z, 4, lp.MonteCarlo(KEY, max_replicates=2, batch=2)
    ),
    "expect, quasi-Monte Carlo": lambda z: lp.expect(
        lp.OutputError(), HEAD, HALF, z, 4.0, lp.QuasiMonteCarlo(KEY, points=8, replicates=2)
    ),
    "concentration_curve": lambda z: lp.concentration_curve(
        HEAD, HALF, lp.Dirac(z), [4.0], method=lp.QuasiMonteCarlo(KEY)
    ),
}


@pytest.mark.parametrize("name", AT)
def test_attend_and_expect_raise_outside_the_domain(name):
    AT[name](GOOD)
    with pytest.raises(ValueError, match=r"U z must lie in the domain of this Laplace measure"):
        AT[name](BAD)


def test_expect_output_of_a_finite_prompt_outside_the_domain():
    method = lp.QuasiMonteCarlo(KEY, points=8, replicates=2)
    found = lp.expect(lp.Output(), HEAD, HALF, BAD, 4.0, method)
    assert np.all(np.isfinite(found.value))


def test_attend_under_jit_and_grad_in_the_parameter_of_the_measure():
    def output(scale, z):
        return lp.attend(HEAD, Laplace(scale, 2), z)[0]

    slope = jax.jit(jax.grad(output))
    s, u = 0.5, 1.8
    # d/ds of 2 s^2 u / (1 - s^2 u^2)
    assert slope(s, GOOD) == pytest.approx(4 * s * u / (1 - (s * u) ** 2) ** 2)
    with pytest.raises(RAISED_UNDER_JIT, match="must lie in the domain of this"):
        jax.block_until_ready(slope(s, BAD))


@pytest.mark.parametrize("infinite", [False, True])
def test_tilt_without_in_domain_raises_where_log_mgf_is_not_finite(infinite):
    mu, bad = Undeclared(infinite), np.array([3.0, 0.0])
    assert mu.tilted_mean([1.0, 0.0])[0] == pytest.approx(2 / 3)
    for call in (mu.tilted_mean, mu.tilted_cov, lambda u: mu.tilt(u).mean()):
        with pytest.raises(ValueError, match="method in_domain"):
            call(bad)
    for law in (mu, mu.affine(np.eye(2)) + WITH):
        with pytest.raises(ValueError, match=r"^log_mgf must be finite.*method in_domain"):
            lp.attend(HEAD, law, BAD)
    with pytest.raises(RAISED_UNDER_JIT, match="method in_domain"):
        jax.block_until_ready(jax.jit(jax.vmap(mu.tilted_cov))(bad[None]))
    assert np.all(np.isnan(jax.jit(jax.grad(mu.log_mgf))(bad)))
    if infinite:
        assert mu.log_mgf(bad) == np.inf
    else:
        with pytest.raises(ValueError, match="method in_domain"):
            mu.log_mgf(bad)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("custom")])
def test_finite_everywhere_traces_no_checks(name):
    """No check is traced where psi is finite everywhere."""
    mu = CASES[name].make()
    assert mu.finite_everywhere
    assert bool(mu.in_domain(np.zeros(mu.dim)))
    for method in (mu.log_mgf, mu.tilted_mean, mu.tilted_cov):
        program = str(jax.make_jaxpr(method)(np.zeros(mu.dim)))
        assert "callback" not in program


def test_add_gaussians_is_gaussian():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 2, 2))
    first, second = lp.Gaussian([1.0, 2.0], A @ A.T), lp.Gaussian([0.5, -1.0], B @ B.T)
    point = lp.Dirac([3.0, 4.0])
    for total, shift in (
        (first + second, 0.0),
        (first + point + second, [3.0, 4.0]),
        (point + (second + first), [3.0, 4.0]),
    ):
        assert isinstance(total, lp.Gaussian)
        assert np.allclose(total.centre, np.array([1.5, 1.0]) + shift)
        assert np.allclose(total.covariance, A @ A.T + B @ B.T)
    # the exact route at L = 1, where the error is known: E |x - T(z)|^2 with T(z) = m + Gz
    z, G = np.array([0.3, -0.7]), A @ A.T + B @ B.T
    head = lp.Head(U=np.eye(2), V=np.eye(2))
    assert lp.output_error(head, first + second, z, 1.0) == pytest.approx(
        np.trace(G) + np.sum((G @ z) ** 2)
    )
    image = (first + second).affine(MAP)
    assert isinstance(image, lp.Gaussian)
    assert np.allclose(image.covariance, MAP @ G @ MAP.T)


def test_add_another_law_keeps_one_gaussian():
    normal = lp.Gaussian(np.zeros(2), np.eye(2))
    total = normal + lp.Uniform(2) + normal + lp.Rademacher(2) + normal
    assert isinstance(total, IndependentSum)
    assert [type(part) for part in total.parts] == [lp.Gaussian, lp.Uniform, lp.Rademacher]
    assert np.allclose(total.cov(), (3 + 1 / 3 + 1) * np.eye(2))
