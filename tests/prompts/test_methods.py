"""Monte Carlo and quasi-Monte-Carlo averages agree with exact values within their errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp

from ..terminal import on_a_terminal

pytestmark = pytest.mark.slow
KEY = jax.random.key(3)
HEAD = lp.Head(U=np.array([[0.9, 0.2], [-0.3, 0.5]]), V=np.array([[1.0, 0.4]]))
Z = np.array([0.8, -0.6])
GAUSSIAN = lp.Gaussian(np.array([0.2, -0.1]), np.array([[1.0, 0.3], [0.3, 0.7]]))


def _within(found: lp.Estimate, exact, errors: float = 5.0) -> bool:
    return bool(np.all(np.abs(found.value - np.asarray(exact)) <= errors * found.error))


@pytest.mark.parametrize("quantity", [lp.OutputError(), lp.GradientError("V")])
def test_monte_carlo_of_whole_gaussian_tokens(quantity):
    """5 standard errors: a false alarm has probability below 1e-6."""
    method = lp.MonteCarlo(KEY, max_replicates=4000, whole_tokens=True)
    found = lp.expect(quantity, HEAD, GAUSSIAN, Z, 20, method)
    assert _within(found, lp.expect(quantity, HEAD, GAUSSIAN, Z, 20).value)


def test_monte_carlo_draws_scores_or_tokens():
    """The two draws differ, so `whole_tokens` decides; other measures have tokens only."""
    scores, tokens = (
        lp.MonteCarlo(KEY, max_replicates=64, whole_tokens=whole) for whole in (False, True)
    )
    found = [lp.output_error(HEAD, GAUSSIAN, Z, 20, method) for method in (scores, tokens)]
    assert found[0] != found[1]
    found = [lp.output_error(HEAD, lp.Rademacher(2), Z, 20, method) for method in (scores, tokens)]
    assert found[0] == found[1]


def test_monte_carlo_stops_at_the_relative_error_or_the_budget():
    calls = []

    def counted(key):
        jax.debug.callback(lambda _: calls.append(1), key, ordered=False)
        return 1 + jax.random.normal(key) / 4

    found = lp.MonteCarlo(KEY, relative_error=0.02, batch=128).average(counted)
    assert found.error <= 0.02 * found.value
    assert len(calls) == 256  # 0.25 / sqrt(128) = 0.022 is too large
    capped = lp.MonteCarlo(KEY, relative_error=1e-9, max_replicates=200).average(counted)
    assert capped.error == pytest.approx(0.25 / np.sqrt(200), rel=0.2)


def test_monte_carlo_does_not_depend_on_the_batch():
    methods = [lp.MonteCarlo(KEY, max_replicates=300, batch=batch) for batch in (7, 300)]
    one, other = (
        lp.expect(lp.OutputError(), HEAD, lp.Sphere(2, 1.0), Z, 10, method) for method in methods
    )
    assert np.allclose(one.value, other.value, rtol=1e-12)
    assert np.allclose(one.error, other.error, rtol=1e-10)


def test_monte_carlo_average_of_a_function_of_a_key():
    found = lp.MonteCarlo(KEY, max_replicates=500).average(jax.random.normal)
    assert abs(found.value) < 5 * found.error
    with pytest.raises(ValueError, match="every replicate must be finite"):
        lp.MonteCarlo(KEY, max_replicates=200).average(lambda key: jnp.log(jax.random.normal(key)))


@pytest.mark.parametrize("progress", [False, True])
def test_monte_carlo_progress_goes_to_standard_error(progress, monkeypatch, capsys):
    terminal = on_a_terminal(monkeypatch)
    lp.MonteCarlo(KEY, max_replicates=300, progress=progress).average(jax.random.normal)
    assert ("300/300" in terminal.getvalue()) is progress
    assert capsys.readouterr().out == ""


def test_quasi_monte_carlo_is_exact_for_signs_in_low_dimension():
    """Sobol points give every sign vector its exact weight. A sum with a point keeps the signs
    from being recognised as finitely many atoms.
    """
    head = lp.Head(U=np.diag([0.7, 1.1, 0.4]), V=np.eye(3))
    z = np.array([0.5, -0.8, 1.0])
    signs = lp.Empirical(np.array(list(itertools.product([-1.0, 1.0], repeat=3))))
    L = np.array([2.0, 50.0, 1e6])
    for quantity in (lp.Output(), lp.OutputError()):
        exact = lp.expect(quantity, head, signs, z, L).value
        same = lp.expect(quantity, head, lp.Rademacher(3), z, L)
        np.testing.assert_allclose(same.value, exact, rtol=1e-11)
        represented = lp.expect(
            quantity, head, _Opaque(3), z, L, lp.QuasiMonteCarlo(KEY, points=64)
        )
        assert np.max(np.abs(represented.value / exact - 1)) <= 1e-6


class _Opaque(lp.AbstractAutodiffMeasure):
    """Rademacher tokens, known only by their cumulant function and a map from uniforms."""

    dim: int

    def log_mgf(self, u):
        return lp.Rademacher(self.dim).log_mgf(u)

    def sample(self, key, n):
        return lp.Rademacher(self.dim).sample(key, n)

    @property
    def uniforms_needed(self):
        return self.dim

    def from_uniforms(self, uniforms):
        return lp.Rademacher(self.dim).from_uniforms(uniforms)


class _Unmapped(lp.AbstractAutodiffMeasure):
    """A user's measure: a sampler and a cumulant function, no map from uniforms."""

    dim: int = 2

    def log_mgf(self, u):
        return lp.Rademacher(2).log_mgf(u)

    def sample(self, key, n):
        return lp.Rademacher(2).sample(key, n)


def test_quasi_monte_carlo_of_a_measure_with_a_sampler_only():
    """Within 6 standard errors (4 scramblings): false alarms below 1e-3."""
    method = lp.QuasiMonteCarlo(KEY, points=512, replicates=4)
    found = lp.expect(lp.OutputError(), HEAD, _Unmapped(), Z, 20.0, method)
    assert _within(found, lp.output_error(HEAD, lp.Rademacher(2), Z, 20.0), 6)


def test_methods_are_needed_where_no_exact_average_exists():
    with pytest.raises(ValueError, match=r"QuasiMonteCarlo\(key\) or lp.MonteCarlo\(key\)"):
        lp.output_error(HEAD, lp.Uniform(2, 1.0), Z, 20.0)
    with pytest.raises(ValueError, match=r"pass QuasiMonteCarlo\(jax.random.key\(0\)"):
        lp.output_error(HEAD, lp.Uniform(2, 1.0), Z, 20.0, lp.QuasiMonteCarlo())


def test_estimate_prints_value_error_and_method():
    found = lp.Estimate(np.asarray(0.25), np.asarray(1.5e-9), lp.Exact())
    assert repr(found) == "0.25 +- 1.5e-09, exact"
    found = lp.Estimate(np.array([0.5, 2.0]), np.array([0.012, 0.3]), lp.MonteCarlo())
    assert str(found) == "[0.5 2. ]\n+- [0.012 0.3], Monte Carlo"
    traced = []
    jax.jit(lambda x: traced.append(repr(lp.Estimate(x, x, lp.Exact()))))(1.0)
    assert traced[0].endswith(", exact")
