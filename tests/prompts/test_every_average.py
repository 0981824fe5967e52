"""Every measure x quantity x law of queries x method that serves: all answers agree."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.prompts.quantities import as_quantity

from ..documented import classes_in

pytestmark = pytest.mark.slow  # every quantity, law and method: a program for each

KEY = jax.random.key(11)
HEAD = lp.Head(U=[[0.5, 0.2], [-0.1, 0.7]], V=[[1.0, 0.3], [0.2, -1.0], [0.5, 0.5]])
GAUSSIAN = lp.Gaussian([0.3, -0.2], [[1.0, 0.3], [0.3, 0.6]])
LENGTH = 5


DOCUMENTED = classes_in("extending.md", lp.AbstractMeasure)

TOKENS = {
    "Gaussian": GAUSSIAN,
    "Dirac": lp.Dirac([0.4, 1.0]),
    "Empirical": lp.Empirical([[0.0, 1.0], [-1.0, 0.5], [0.7, 0.0]], [1.0, 2.0, 1.0]),
    "Rademacher": lp.Rademacher(2),
    "Uniform": lp.Uniform(2, 1.0),
    "Sphere": lp.Sphere(2, 1.0),
    "Mixture": lp.Mixture([1, 2], [GAUSSIAN, lp.Rademacher(2)]),
    "sum": lp.Rademacher(2) + lp.Uniform(2, 0.5),
    "documented Laplace": DOCUMENTED["Laplace"](jnp.array(0.3), 2),
    "documented Die": DOCUMENTED["Die"](jnp.array(0.3)).affine([[1.0], [-0.5]]),
}
QUANTITIES = {
    "Output": lp.Output(),
    "SecondMoment": lp.SecondMoment(),
    "OutputError": lp.OutputError(),
    "distance to linear": lp.OutputError(to="linear"),
    "GradientError U": lp.GradientError("U"),
    "GradientError V": lp.GradientError("V"),
    "user's": lambda output: jnp.max(output),
}
PLACES = {"query": np.array([0.8, -0.6]), "law": lp.Empirical([[0.8, -0.6], [-0.2, 1.0]])}
EXACT_TOKENS = ("Gaussian", "Dirac", "Empirical", "Rademacher", "Mixture", "documented Die")


class Every(lp.AbstractQuantity):
    """Several quantities of one prompt, flat and in a row: one program samples them together."""

    names: tuple[str, ...] = eqx.field(static=True, default=tuple(QUANTITIES))

    @property
    def name(self):
        return "all"

    @property
    def from_output(self):
        return all(as_quantity(QUANTITIES[name]).from_output for name in self.names)

    def limit(self, head, mu, z):
        raise NotImplementedError

    def of_prompt(self, head, mu, prompt, z):
        return self._row("of_prompt", head, mu, prompt, z)

    def of_output(self, head, mu, output, z):
        return self._row("of_output", head, mu, output, z)

    def _row(self, method, *arguments):
        each = [as_quantity(QUANTITIES[name]) for name in self.names]
        return jnp.concatenate([jnp.ravel(getattr(one, method)(*arguments)) for one in each])


SAMPLED = lp.MonteCarlo(KEY, max_replicates=512)
SHAPES = dict.fromkeys(QUANTITIES, ()) | {
    "Output": (HEAD.out_dim,),
    "SecondMoment": (HEAD.out_dim, HEAD.out_dim),
}


def _sampled(mu, z) -> dict[str, lp.Estimate]:
    """Every quantity by Monte Carlo."""
    groups = [tuple(QUANTITIES)]
    if mu is GAUSSIAN:  # quantities of outputs are drawn from the scores alone
        gradients = ("GradientError U", "GradientError V")  # each in its own way
        groups = [tuple(name for name in QUANTITIES if name not in gradients)]
        groups += [(name,) for name in gradients]
    return {name: found for group in groups for name, found in _together(group, mu, z).items()}


def _together(names: tuple[str, ...], mu, z) -> dict[str, lp.Estimate]:
    """Several quantities on the same prompts; one alone as it is."""
    if len(names) == 1:
        return {names[0]: lp.expect(QUANTITIES[names[0]], HEAD, mu, z, LENGTH, SAMPLED)}
    found = lp.expect(Every(names), HEAD, mu, z, LENGTH, SAMPLED)
    ends = np.cumsum([np.prod(SHAPES[name], dtype=int) for name in names])[:-1]
    parts = zip(np.split(found.value, ends), np.split(found.error, ends), strict=True)
    return {
        name: lp.Estimate(value.reshape(SHAPES[name]), error.reshape(SHAPES[name]), SAMPLED)
        for name, (value, error) in zip(names, parts, strict=True)
    }


def _computed(mu, quantity, z) -> dict[str, lp.Estimate]:
    """The quantity by the methods that sample no prompts, where they serve."""
    methods = {"exact": None, "quasi": lp.QuasiMonteCarlo(KEY, points=256, replicates=4)}
    found = {}
    for name, method in methods.items():
        try:
            found[name] = lp.expect(quantity, HEAD, mu, z, LENGTH, method)
        except ValueError as error:
            if "MonteCarlo(key)" not in str(error):  # every error names a method that serves
                raise
    return found


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("place", PLACES)
def test_expect_by_every_method(tokens, place):
    """Within 6 joint errors (4 scramblings, 512 prompts): about 1e-4 false alarms, with a fixed
    key.
    """
    sampled = _sampled(TOKENS[tokens], PLACES[place])
    for name, quantity in QUANTITIES.items():
        found = {"sampled": sampled[name], **_computed(TOKENS[tokens], quantity, PLACES[place])}
        expected = {"sampled"}
        if name != "user's":
            expected |= {"quasi"} | ({"exact"} if tokens in EXACT_TOKENS else set())
        assert set(found) == expected, name
        for first, second in itertools.combinations(found.values(), 2):
            assert np.shape(first.value) == np.shape(second.value) == np.shape(first.error)
            gap = np.abs(np.asarray(first.value) - np.asarray(second.value))
            room = 6 * np.hypot(np.asarray(first.error), np.asarray(second.error)) + 1e-12
            assert np.all(gap <= room), name


@pytest.mark.parametrize(
    "nu",
    [
        lp.Gaussian([0.4, 0.1], [[0.25, 0.1], [0.1, 0.3]]),
        lp.Uniform(2, 1.0),
        lp.Sphere(2, 1.0),
        lp.Mixture([1, 3], [lp.Gaussian([1.0, 0.0], np.eye(2) / 9), lp.Dirac([0.0, -1.0])]),
    ],
    ids=["Gaussian", "Uniform", "Sphere", "Mixture"],
)
def test_expect_of_gaussian_tokens_over_queries(nu):
    """Against pointwise exact values at 300 sampled queries: 5.5 standard errors."""
    z = np.asarray(nu.sample(jax.random.key(2), 300).points)
    asked = np.concatenate([z, [[2.0, 2.0]]])  # one far query: tables of pairs serve all laws
    lengths = np.array([1.0, 30.0, 1e6])
    for name, quantity in QUANTITIES.items():
        if name == "user's":
            continue
        found = lp.expect(quantity, HEAD, GAUSSIAN, nu, lengths)
        each = np.asarray(lp.expect(quantity, HEAD, GAUSSIAN, asked[:, None, :], lengths).value)[
            :-1
        ]
        error = each.std(axis=0) / np.sqrt(len(z))
        assert np.shape(found.value) == each.shape[1:]
        room = 5.5 * error + found.error + 1e-14
        assert np.all(np.abs(each.mean(axis=0) - found.value) <= room), name
        assert np.all(found.error <= 1e-6 * np.max(np.abs(found.value)))


def test_expect_at_infinite_length_serves_every_measure():
    z = PLACES["query"]
    for mu in TOKENS.values():
        limit = np.asarray(lp.attend(HEAD, mu, z))
        np.testing.assert_allclose(lp.finite_mean(HEAD, mu, z, np.inf), limit, rtol=1e-12)
        largest = lp.expect(QUANTITIES["user's"], HEAD, mu, z, np.inf).value
        np.testing.assert_allclose(largest, limit.max(), rtol=1e-12)
        assert lp.output_error(HEAD, mu, z, np.inf) == 0


def test_expect_under_jit_and_vmap():
    """Exact quantities of Gaussian tokens and of atoms, traced in query and length."""
    z, lengths = np.array([[0.8, -0.6], [0.1, 0.3]]), np.array([2.0, 50.0])
    exact = [quantity for quantity in QUANTITIES.values() if not callable(quantity)]
    for mu in (GAUSSIAN, lp.Rademacher(2)):

        def every(z, L, mu=mu):
            return [lp.expect(quantity, HEAD, mu, z, L).value for quantity in exact]

        for found, plain in zip(
            jax.jit(jax.vmap(every))(z, lengths), every(z, lengths), strict=True
        ):
            np.testing.assert_allclose(found, plain, rtol=1e-11)


class Rounded(lp.AbstractMethod):
    """A method written outside: exact values, rounded."""

    def expect(self, quantity, head, mu, z, L):
        found = lp.Exact().expect(quantity, head, mu, z, L)
        return lp.Estimate(np.round(found.value, 3), np.full(np.shape(found.value), 5e-4), self)


def test_expect_by_a_users_method():
    z, method = PLACES["query"], Rounded()
    found = lp.expect(lp.OutputError(), HEAD, GAUSSIAN, z, 30.0, method)
    assert found.method is method
    assert found.value == np.round(lp.output_error(HEAD, GAUSSIAN, z, 30.0), 3)
    curve = lp.concentration_curve(HEAD, GAUSSIAN, lp.Dirac(z), [10.0, 30.0], method=method)
    assert float(curve.value[1]) == found.value
