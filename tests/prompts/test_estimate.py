"""Monte Carlo and quasi-Monte-Carlo estimates agree with the exact values and carry honest errors."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

import largeprompt as lp

KEY = jax.random.key(3)
HEAD = lp.Head(U=np.array([[0.9, 0.2], [-0.3, 0.5]]), V=np.array([[1.0, 0.4]]))
Z = np.array([0.8, -0.6])
GAUSSIAN = lp.Gaussian(np.array([0.2, -0.1]), np.array([[1.0, 0.3], [0.3, 0.7]]))


def _within(found: lp.Estimate, exact, errors: float = 5.0) -> bool:
    return bool(np.all(np.abs(found.value - np.asarray(exact)) <= errors * found.standard_error))


@pytest.mark.parametrize("route", ["tokens", "scores"])
@pytest.mark.parametrize("quantity", ["finite_mean", "output_error"])
def test_outputs_of_gaussian_tokens(route, quantity):
    """Fixed key, 5 standard errors: a false alarm has probability below 1e-6."""
    found = lp.estimate(KEY, quantity, HEAD, GAUSSIAN, Z, 20, route=route, max_replicates=4000)
    assert _within(found, getattr(lp, quantity)(HEAD, GAUSSIAN, Z, 20.0))


@pytest.mark.parametrize("quantity", ["gradient_U_error", "gradient_V_error"])
def test_gradient_errors(quantity):
    found = lp.estimate(KEY, quantity, HEAD, GAUSSIAN, Z, 10, max_replicates=4000)
    exact = lp.gradient_error(HEAD, GAUSSIAN, Z, 10.0)
    assert _within(found, exact.U if quantity == "gradient_U_error" else exact.V)


def test_stops_at_the_relative_error_or_the_budget():
    found = lp.estimate(KEY, "output_error", HEAD, lp.Rademacher(2), Z, 10, relative_error=0.05)
    assert found.standard_error <= 0.05 * found.value
    assert found.replicates in (128, 256, 512, 1024, 2048, 4096)
    capped = lp.estimate(
        KEY, "output_error", HEAD, lp.Rademacher(2), Z, 10, relative_error=1e-9, max_replicates=200
    )
    assert capped.replicates == 200
    assert capped.standard_error > 1e-9 * capped.value


def test_the_result_does_not_depend_on_the_batch():
    results = [
        lp.estimate(
            KEY, "output_error", HEAD, lp.Sphere(2, 1.0), Z, 10, max_replicates=300, batch=batch
        )
        for batch in (7, 128, 300)
    ]
    for found in results[1:]:
        assert found.replicates == results[0].replicates
        assert np.allclose(found.value, results[0].value, rtol=1e-12)
        assert np.allclose(found.standard_error, results[0].standard_error, rtol=1e-10)


def test_a_function_of_a_key_and_its_failures():
    found = lp.estimate(KEY, jax.random.normal, max_replicates=500)
    assert abs(found.value) < 5 * found.standard_error
    with pytest.raises(ValueError, match="every replicate must be finite"):
        lp.estimate(KEY, lambda key: jax.numpy.log(jax.random.normal(key)), max_replicates=200)


def test_progress_goes_to_standard_error(capfd):
    lp.estimate(KEY, jax.random.normal, max_replicates=300, progress=True)
    assert capfd.readouterr().out == ""


def test_quasi_is_exact_for_signs_in_low_dimension():
    """Sobol points give every sign vector its exact weight: agreement with the discrete law to 1e-6."""
    head = lp.Head(U=np.diag([0.7, 1.1, 0.4]), V=np.eye(3))
    z = np.array([0.5, -0.8, 1.0])
    signs = lp.Empirical(np.array(list(itertools.product([-1.0, 1.0], repeat=3))))
    L = np.array([2.0, 50.0, 1e6])
    for quantity in ("finite_mean", "output_error"):
        found = lp.quasi_estimate(
            KEY, quantity, head, lp.Rademacher(3), z, L, points=256, replicates=3
        )
        exact = getattr(lp, quantity)(head, signs, z, L)
        assert np.max(np.abs(found.value / exact - 1)) <= 1e-6


def test_quasi_on_a_gaussian_agrees_with_the_closed_form():
    """8 scramblings: within 8 standard errors, a Student-t with 7 degrees of freedom exceeds it with probability 1e-4."""
    L = np.array([3.0, 1e4])
    found = lp.quasi_estimate(KEY, "output_error", HEAD, GAUSSIAN, Z, L, points=1024)
    exact = lp.output_error(HEAD, GAUSSIAN, Z, L)
    assert _within(found, exact, errors=8.0)
    assert np.all(found.standard_error < 0.02 * exact)


class Unmapped(lp.AbstractAutodiffMeasure):
    """A user's measure: a sampler and a cumulant function, no transport map."""

    dim: int = eqx.field(static=True, default=2)

    def log_mgf(self, u):
        return lp.Rademacher(2).log_mgf(u)

    def sample(self, key, n):
        return lp.Rademacher(2).sample(key, n)


@pytest.mark.parametrize(
    "mu",
    [
        lp.Uniform(2, 1.0),
        lp.Sphere(2, 1.0),
        lp.Rademacher(2).affine(np.array([[1.0, 0.2], [0.0, 0.8]])),
        lp.Rademacher(2) + lp.Uniform(2, 0.5),
        lp.Mixture([1, 2], [lp.Rademacher(2), GAUSSIAN]),
        Unmapped(),
    ],
    ids=["uniform", "sphere", "affine", "sum", "mixture", "own"],
)
def test_quasi_agrees_with_monte_carlo_for_other_measures(mu):
    """The two estimates within 6 joint standard errors (the quasi one has 4 scramblings): false alarms below 1e-3 each."""
    quasi = lp.quasi_estimate(KEY, "output_error", HEAD, mu, Z, 20.0, points=512, replicates=4)
    brute = lp.estimate(jax.random.key(8), "output_error", HEAD, mu, Z, 20, max_replicates=4096)
    joint = np.hypot(quasi.standard_error, brute.standard_error)
    assert abs(quasi.value - brute.value) <= 6 * joint
