"""Discrete laws: small errors to their last digits, and one table for all lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.prompts.error_table import error_table

from ..differences import assert_slopes
from ..oracles import prompts as oracle

LENGTHS = (1, 2, 3, 5)
QUANTITIES = {"output": "output", "U": "gradient_U", "V": "gradient_V"}


def _law(rng: np.random.Generator, gap: float) -> tuple[lp.Head, lp.Empirical, np.ndarray]:
    """Two or three atoms in the plane, of uneven weights; scores between 0 and `gap`."""
    atoms, U, V, z = (rng.normal(size=shape) for shape in ((3, 2), (2, 2), (2, 2), 2))
    weights = np.exp(rng.uniform(-8, 0, size=3)) * np.array([1.0, 1.0, rng.integers(2)])
    scores = (atoms @ U @ z)[weights > 0]
    return lp.Head(U=U * gap / np.ptp(scores), V=V), lp.Empirical(atoms, weights), z


def _enumerated(head: lp.Head, mu: lp.Empirical, z: np.ndarray, L: int) -> dict:
    return oracle.enumerate_in_digits(
        atoms=mu.points, weights=mu.weights, U=head.U, V=head.V, z=z, L=L
    )


@pytest.mark.parametrize("gap", [0.0, 1.0, 20.0, 80.0])
def test_error_table_against_enumeration(gap):
    """Squared errors down to 1e-70: within the relative error that is claimed, which is small."""
    rng = np.random.default_rng(int(gap))
    for _ in range(4):
        head, mu, z = _law(rng, gap)
        exact = [_enumerated(head, mu, z, L) for L in LENGTHS]
        for name, quantity in QUANTITIES.items():
            found = error_table(head, [mu], z, quantity).at(LENGTHS)
            want = np.array([values[name] for values in exact])
            assert np.all(np.abs(found.value - want) <= found.relative_error * want), name
            assert np.all(found.relative_error < 1e-11), name


@pytest.mark.parametrize("gap", [0.0, 20.0, 60.0])
def test_finite_mean_against_enumeration(gap):
    """E T_L - T_inf may be 1e-26 beside the tokens: measured from the heaviest atom, put at 0."""
    rng = np.random.default_rng(5)
    atoms, weights = rng.normal(size=(3, 2)), np.array([0.7, 0.2, 0.1])
    atoms[0] = 0.0
    z = np.linalg.solve(atoms[1:], [-gap, -gap / 2])
    head, mu = lp.Head(U=np.eye(2), V=[[1.0, 0.5], [-0.3, 2.0]]), lp.Empirical(atoms, weights)
    for L in (1, 4):
        want = _enumerated(head, mu, z, L)["mean"]
        np.testing.assert_allclose(lp.finite_mean(head, mu, z, float(L)), want, rtol=1e-11)


def test_gradient_error_of_a_degenerate_law():
    """x = +-1 at u = 0: Cov_p - Cov_inf = -(mean)^2 and E mean^4 = 3/L^2 - 2/L^3: no term 1/L."""
    head, mu = lp.Head(U=[[0.0]], V=[[1.0]]), lp.Empirical([[-1.0], [1.0]])
    L = np.array([1.0, 2.0, 10.0, 1e6, 1e12, 1e15])
    found = lp.gradient_error(head, mu, [1.0], L)
    np.testing.assert_allclose(found.U, 3 / L**2 - 2 / L**3, rtol=1e-11)
    np.testing.assert_allclose(found.V, 1 / L, rtol=1e-11)


def _table_case():
    rng = np.random.default_rng(2)
    head = lp.Head(U=rng.normal(size=(2, 2)), V=rng.normal(size=(3, 2)))
    return (
        head,
        lp.Empirical(rng.normal(size=(20, 2)), rng.uniform(size=20)),
        rng.normal(size=(4, 2)),
    )


@pytest.mark.slow
def test_error_table_gives_the_values_of_the_functions():
    head, mu, z = _table_case()
    L = np.array([1.0, 7.0, 1e4, 1e15, np.inf])
    gradient = lp.gradient_error(head, mu, z[:, None], L)
    want = {
        "output": lp.output_error(head, mu, z[:, None], L),
        "gradient_U": gradient.U,
        "gradient_V": gradient.V,
    }
    for quantity, values in want.items():
        found = error_table(head, [mu], z, quantity).at(L)
        np.testing.assert_allclose(found.value, values, rtol=1e-11)
        assert np.all(found.value[:, -1] == 0)


def test_output_error_at_one_length_and_at_many():
    """Other nodes serve them: the same number."""
    head, mu, z = _table_case()
    L = np.array([1.0, 3.0, 1e3, 1e9])
    together = lp.output_error(head, mu, z[0], L)
    apart = [lp.output_error(head, mu, z[0], length) for length in L]
    np.testing.assert_allclose(together, apart, rtol=1e-12)


@pytest.mark.slow
def test_output_error_of_atoms_under_jit_vmap_and_grad():
    """In query, head and tokens."""
    head, mu, z = _table_case()

    def quantity(z, V, points):
        here, law = lp.Head(U=head.U, V=V), lp.Empirical(points, mu.weights)
        gradient = lp.gradient_error(here, law, z, 30.0)
        mean = lp.finite_mean(here, law, z, 30.0)
        return jnp.log(lp.output_error(here, law, z, 30.0) * gradient.U * gradient.V) + mean.sum()

    at = (z[0], np.asarray(head.V), np.asarray(mu.points))
    value, slopes = jax.jit(jax.value_and_grad(quantity, argnums=(0, 1, 2)))(*at)
    np.testing.assert_allclose(value, quantity(*at), rtol=1e-11)
    assert_slopes(quantity, at, slopes)
    mapped = jax.jit(jax.vmap(lambda z: lp.output_error(head, mu, z, 30.0)))(z)
    np.testing.assert_allclose(mapped, lp.output_error(head, mu, z, 30.0), rtol=1e-12)


def test_output_error_of_atoms_that_never_matter():
    """Scores to -400, which many tokens never all have.

    With atoms 40 apart the output is the largest score, to e^-40; the top one is absent from
    1000 tokens with probability 0.99^1000.
    """
    scores, weights = -40.0 * np.arange(11), np.array([0.01] + [0.099] * 10)
    head, mu = lp.Head(U=[[1.0]], V=[[1.0]]), lp.Empirical(scores[:, None], weights)
    for L in (1.0, 2.0, 1000.0):
        none_above = (1 - np.cumsum(weights)).clip(0) ** L
        chance = -np.diff(none_above, prepend=1.0)
        found = lp.output_error(head, mu, [1.0], L)
        np.testing.assert_allclose(found, np.sum(chance * scores**2), rtol=1e-12)


def test_error_table_raises_beyond_its_longest_prompt():
    head, mu, z = _table_case()
    table = error_table(head, [mu], z, longest=1e3)
    with pytest.raises(ValueError, match="at most 1000"):
        table.at([10.0, 2000.0])
