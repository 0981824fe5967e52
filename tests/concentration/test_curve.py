"""Error curves against brute force, against other quadratures, and against sampling."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import largeprompt as lp
from largeprompt.prompts.quadratic_form import Feature, gaussian_average

from ..oracles.prompts import enumerate_prompts

KEY = jax.random.key(5)
QUANTITIES = {
    "output": lp.OutputError(),
    "gradient_U": lp.GradientError("U"),
    "gradient_V": lp.GradientError("V"),
}
REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text())


def _scalar(kappa):
    return lp.Head(U=[[np.sqrt(kappa)]], V=[[1.0]])


def _standard(d):
    return lp.Gaussian(np.zeros(d), np.eye(d))


def _plane():
    """Two dimensions, nothing symmetric."""
    head = lp.Head(U=[[0.9, 0.3], [-0.2, 0.5]], V=[[1.0, 0.5], [0.0, 2.0], [1.0, -1.0]])
    mu = lp.Gaussian([0.3, -0.1], [[1.0, 0.3], [0.3, 0.5]])
    return head, mu


@pytest.mark.parametrize("kappa", [0.25, 1.0, 4.0])
def test_concentration_curve_with_heavy_tails_against_brute_force(kappa):
    """At kappa > 1/2 rare large queries carry the average; the reference places nothing cleverly
    (generate_reference.py).
    """
    curve = lp.concentration_curve(_scalar(kappa), _standard(1), _standard(1), REFERENCE["lengths"])
    expected = np.array(REFERENCE["average_squared_error"][str(kappa)])
    np.testing.assert_allclose(curve.value, expected, rtol=1e-8)
    assert np.all(np.abs(curve.value - expected) <= curve.error + 1e-10 * expected)
    assert np.all(curve.error < 1e-6 * expected)


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["output", "gradient_U", "gradient_V"])
def test_concentration_curve_against_a_product_rule(quantity):
    """A tensor Gauss-Hermite rule over the exact error at each query: converges at small L, where
    no tail matters.
    """
    head, mu = _plane()
    nu = lp.Gaussian([0.2, 0.4], [[0.5, 0.1], [0.1, 0.3]])
    x, w = np.polynomial.hermite_e.hermegauss(50)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(w, w).ravel() / w.sum() ** 2
    grid, weights = grid[weights > 1e-13], weights[weights > 1e-13]
    z = np.asarray(nu.centre) + grid @ np.linalg.cholesky(np.asarray(nu.covariance)).T
    lengths = np.array([1.0, 2.0, 30.0])
    pointwise = lp.expect(QUANTITIES[quantity], head, mu, z[:, None, :], lengths).value
    curve = lp.concentration_curve(head, mu, nu, lengths, QUANTITIES[quantity])
    np.testing.assert_allclose(curve.value, weights @ np.asarray(pointwise), rtol=1e-7)


def test_sharp_exponent_is_the_limit_of_slopes():
    """E_z P_2 between L = 1e18 and 1e27 for kappa = 1/4, 1, 4 has slopes 1.000, 0.629, 0.221
    against theta = 1, 0.618, 0.207.
    """
    lengths = np.array([1e9, 1e18, 1e27])
    for kappa, expected in ((0.25, 1.000), (1.0, 0.629), (4.0, 0.221)):
        factor = np.array([[np.sqrt(kappa)]])
        rule = gaussian_average(np.zeros(1), np.eye(1), factor, [Feature()], np.log(lengths[-1]), 1)
        p2 = np.asarray(lp.participation(np.sqrt(rule.variances)[:, None], lengths).p2)
        slopes = -np.diff(np.log(rule.weights[0] @ p2)) / np.log(1e9)
        assert slopes[1] == pytest.approx(expected, abs=6e-4)
        gaps = np.abs(slopes - lp.sharp_exponent(kappa))
        assert gaps[1] < gaps[0]


def test_local_slope_is_the_derivative():
    head, mu = _plane()
    near = np.array([50.0, 50.0 * np.exp(-1e-4), 50.0 * np.exp(1e-4)])
    for quantity in ("output", "gradient_U", "gradient_V"):
        curve = lp.concentration_curve(head, mu, _standard(2), near, QUANTITIES[quantity])
        difference = np.log(curve.value[2] / curve.value[1]) / 2e-4
        assert float(curve.local_slope[0]) == pytest.approx(float(difference), rel=1e-6)


def test_local_slope_at_repeated_lengths():
    """A sampled curve has one slope at equal lengths, and none if all are equal."""
    head, mu = lp.Head(U=np.eye(1), V=np.eye(1)), lp.Gaussian([0.0], [[1.0]])
    method = lp.MonteCarlo(jax.random.key(0), max_replicates=200)
    slopes = [
        lp.concentration_curve(head, mu, np.ones(1), lengths, method=method).local_slope.values
        for lengths in ([10, 10, 100], [10, 10])
    ]
    assert slopes[0][0] == slopes[0][1] < 0
    assert np.all(np.isnan(slopes[1]))


def test_concentration_curve_of_one_query_is_the_exact_error():
    head, mu = _plane()
    z, lengths = np.array([0.4, -1.0]), np.array([1.0, 7.0, 1e9, np.inf])
    curve = lp.concentration_curve(head, mu, z, lengths)
    np.testing.assert_allclose(curve.value, lp.output_error(head, mu, z, lengths), rtol=1e-12)
    assert curve.value[-1] == 0
    assert np.isnan(curve.local_slope[-1])
    assert np.all(np.isfinite(curve.local_slope[:-1]))
    gradients = lp.gradient_error(head, mu, z, lengths)
    by_U = lp.concentration_curve(head, mu, lp.Dirac(z), lengths, lp.GradientError("U")).value
    np.testing.assert_allclose(by_U, gradients.U, rtol=1e-11)
    by_V = lp.concentration_curve(head, mu, lp.Dirac(z), lengths, lp.GradientError("V")).value
    np.testing.assert_allclose(by_V, gradients.V, rtol=1e-11)


def test_concentration_curve_of_constant_scores():
    """U = 0: the error of a plain mean, tr(VGV')/L, and the gradient in U of the head stays."""
    mu = _standard(2)
    head = lp.Head(U=np.zeros((2, 2)), V=np.eye(2))
    curve = lp.concentration_curve(head, mu, mu, [1.0, 10.0, 1e12])
    np.testing.assert_allclose(curve.value, [2.0, 0.2, 2e-12], rtol=1e-12)
    by_U = lp.concentration_curve(head, mu, mu, [1.0, 10.0], lp.GradientError("U"))
    pointwise = lp.gradient_error(head, mu, np.array([1.0, 0.0]), np.array([1.0, 10.0])).U
    np.testing.assert_allclose(by_U.value, 2 * np.asarray(pointwise), rtol=1e-12)  # E|z|^2 = 2


def test_concentration_curve_of_many_queries():
    head, mu = _plane()
    z = np.random.default_rng(0).normal(size=(1200, 2))
    lengths = np.array([2.0, 1e4, 1e12])
    curve = lp.concentration_curve(head, mu, lp.Empirical(z), lengths)
    direct = np.mean(np.asarray(lp.output_error(head, mu, z[:, None, :], lengths)), axis=0)
    np.testing.assert_allclose(curve.value, direct, rtol=1e-9)
    assert np.all(curve.error < 1e-6 * curve.value)


def test_concentration_curve_of_a_mixture_of_queries():
    head, mu = _plane()
    parts = [lp.Gaussian([0.0, 1.0], 0.2 * np.eye(2)), lp.Dirac([1.0, 0.0])]
    curves = [lp.concentration_curve(head, mu, part, [20.0]).value for part in parts]
    mixed = lp.concentration_curve(head, mu, lp.Mixture([0.25, 0.75], parts), [20.0])
    assert float(mixed.value[0]) == pytest.approx(
        0.25 * float(curves[0][0]) + 0.75 * float(curves[1][0])
    )


_LAWS = {
    "box": lp.Uniform(2, 1.5),
    "tilted box": lp.Uniform(2, 1.5).tilt([30.0, -2.0]),
    "circle": lp.Sphere(2, 1.3),
    "von Mises": lp.Sphere(2, 1.0).tilt([600.0, -800.0]),
    "sphere": lp.Sphere(3, 0.8),
    "von Mises-Fisher": lp.Sphere(3, 1.0).tilt([3.0, 400.0, 1.0]),
    "two points": lp.Sphere(1, 2.0).tilt([0.3]),
    "signs": lp.Rademacher(3),
}


@pytest.mark.slow
@pytest.mark.parametrize("law", _LAWS.values(), ids=list(_LAWS))
def test_quadrature_has_the_moments_of_the_law(law):
    """Means, covariances and a smooth function: the moment generating function."""
    found = law.atoms() or law.quadrature(1)
    assert found is not None
    points, weights = np.asarray(found.points), np.asarray(found.weights)
    assert weights.sum() == pytest.approx(1)
    mean = weights @ points
    np.testing.assert_allclose(mean, law.mean(), atol=1e-12)
    cov = (weights[:, None] * (points - mean)).T @ (points - mean)
    np.testing.assert_allclose(cov, law.cov(), atol=1e-12)
    u = np.linspace(0.5, 1.0, law.dim)
    mgf = np.log(weights @ np.exp(points @ u))
    assert mgf == pytest.approx(float(law.log_mgf(u)), rel=1e-12)


def test_concentration_curve_over_scrambled_queries():
    """A sphere in five dimensions: randomised points. Five standard errors of 8 scramblings: false
    alarms below 1% (Student).
    """
    rng = np.random.default_rng(3)
    head = lp.Head(U=rng.normal(size=(5, 5)) / 3, V=np.eye(5))
    nu = lp.Sphere(5, 2.0)
    curve = lp.concentration_curve(head, _standard(5), nu, [100.0], method=lp.QuasiMonteCarlo(KEY))
    z = np.asarray(nu.sample(jax.random.key(9), 4000).points)
    values = np.asarray(lp.output_error(head, _standard(5), z, 100.0))
    spread = values.std() / np.sqrt(len(values))
    assert abs(float(curve.value[0]) - values.mean()) < 5 * spread
    assert float(curve.error[0]) < spread / 10


def test_concentration_curve_of_atoms_against_enumeration():
    head, _ = _plane()
    mu = lp.Rademacher(2)
    queries = np.array([[0.5, 1.0], [-1.0, 0.2]])
    signs = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    curve = lp.concentration_curve(head, mu, lp.Empirical(queries), [1.0, 3.0])
    for i, L in enumerate((1, 3)):
        expected = []
        for z in queries:
            found = enumerate_prompts(
                atoms=signs,
                weights=np.full(4, 0.25),
                U=np.asarray(head.U),
                V=np.asarray(head.V),
                z=z,
                L=L,
            )
            expected.append(found["output"])
        assert float(curve.value[i]) == pytest.approx(np.mean(expected), rel=1e-8)


@pytest.mark.parametrize(
    ("tokens", "quantity"),
    [("gaussian", "output"), ("gaussian", "gradient_U"), ("uniform", "output")],
)
def test_concentration_curve_against_sampling(tokens, quantity):
    """Monte Carlo within 5 combined standard errors: false alarms below 1e-5."""
    head, mu = _plane()
    nu = lp.Uniform(2, 1.0)
    if tokens == "uniform":  # quasi-random sums for every query: two of them
        mu, nu = lp.Uniform(2, 1.0), lp.Empirical([[0.9, 0.4], [-0.3, 0.8]])
    args = (head, mu, nu, [5, 20], QUANTITIES[quantity])
    exact = lp.concentration_curve(*args, lp.QuasiMonteCarlo(KEY))
    sampled = lp.concentration_curve(*args, lp.MonteCarlo(KEY, relative_error=0.02))
    gap = np.abs(exact.value - sampled.value)
    assert np.all(gap <= 5 * np.hypot(exact.error, sampled.error))
    assert np.all(sampled.error <= 0.02 * sampled.value)


def test_concentration_curve_survives_netcdf(tmp_path):
    head, mu = _plane()
    curve = lp.concentration_curve(
        head, mu, lp.Dirac([1.0, 0.0]), [2.0, np.inf], method=lp.QuasiMonteCarlo(KEY)
    )
    curve.to_netcdf(tmp_path / "curve.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "curve.nc") as back:
        back.load()
    xr.testing.assert_identical(curve, back)
    record = json.loads(back.attrs["configuration"])
    np.testing.assert_array_equal(record["head"]["U"], head.U)
    np.testing.assert_array_equal(record["mu"]["covariance"], mu.covariance)
    assert {"largeprompt", "jax", "backend", "key", "quantity", "method"} <= set(back.attrs)


def test_limit_comparison_of_rademacher_tokens():
    head = lp.Head(U=np.eye(2), V=np.eye(2))
    z = np.array([1.0, 0.5])
    far = lp.limit_comparison(head, lp.Rademacher(2), lp.Dirac(z), [1.0, 1e12])
    gap = np.sum((np.tanh(z) - z) ** 2)
    assert float(far.linear[1]) == pytest.approx(gap, rel=1e-6)
    # at L = 1 the output is a token: E|x - z|^2 = |z|^2 + 2
    assert float(far.linear[0]) == pytest.approx(z @ z + 2, rel=1e-9)
    assert float(far.own_limit[1]) < 1e-10


def test_limit_comparison_of_centred_gaussian_tokens():
    head, _ = _plane()
    near = lp.limit_comparison(
        head, lp.Gaussian(np.zeros(2), np.eye(2)), lp.Dirac([1.0, 0.5]), [5.0, 1e9]
    )
    np.testing.assert_allclose(near.linear, near.own_limit, rtol=1e-12)
    assert np.all(near.between_limits < 1e-20)


def test_limit_comparison_of_gaussian_tokens_off_centre():
    head, mu = _plane()
    z = np.array([1.0, 0.5])
    far = lp.limit_comparison(head, mu, lp.Dirac(z), [1e15])
    gap = np.asarray(lp.attend(head, mu, z) - lp.attend_linear(head, mu, z))
    assert float(far.linear[0]) == pytest.approx(gap @ gap, rel=1e-9)


@pytest.mark.parametrize("tokens", ["gaussian", "signs"])
@pytest.mark.slow
def test_concentration_curve_in_32_bit_mode(tokens):
    def curve():
        head = lp.Head(U=0.5 * np.eye(2), V=np.eye(2))
        mu = _standard(2) if tokens == "gaussian" else lp.Rademacher(2)
        return lp.concentration_curve(head, mu, lp.Sphere(2, 1.0), [3.0, 1e9])

    expected = curve().value
    with jax.enable_x64(False):
        found = curve().value
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # the radius was rounded to float32
