"""What measures declare (atoms, quadrature, transport, ...), against their moments and NumPy."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.measures import Tilted

from .registry import AT3, COV, MEAN, POINTS, WEIGHTS, A, B, Triangular

U3 = np.array([0.5, -0.2, 0.3])


class Coin(lp.AbstractAutodiffMeasure):
    """A custom measure that declares all it can: a fair coin on {0, 1}."""

    dim: int = eqx.field(static=True, default=1)

    def log_mgf(self, u):
        return jnp.logaddexp(0.0, jnp.sum(jnp.asarray(u))) - np.log(2.0)

    def sample(self, key, n):
        return lp.Empirical(jax.random.bernoulli(key, 0.5, (n, 1)).astype(float))

    def atoms(self):
        return lp.Empirical(jnp.array([[0.0], [1.0]]))

    @property
    def is_bounded(self):
        return True

    @property
    def uniforms_needed(self):
        return 1

    def from_uniforms(self, uniforms):
        return jnp.round(uniforms)


class Normal(lp.AbstractAutodiffMeasure):
    """A custom class for the standard normal law."""

    dim: int = eqx.field(static=True, default=2)

    def log_mgf(self, u):
        return jnp.sum(jnp.asarray(u) ** 2) / 2

    def sample(self, key, n):
        return lp.Empirical(jax.random.normal(key, (n, self.dim)))

    def as_gaussian(self):
        return lp.Gaussian(jnp.zeros(self.dim), jnp.eye(self.dim))


def _mixture():
    return lp.Mixture([1.0, 3.0], [lp.Rademacher(2), lp.Dirac([2.0, 1.0])])


FINITE = {
    "dirac": lambda: lp.Dirac(MEAN),
    "empirical": lambda: lp.Empirical(POINTS, WEIGHTS),
    "rademacher": lambda: lp.Rademacher(3),
    "rademacher-tilted": lambda: lp.Rademacher(3).tilt(U3),
    "sphere-1": lambda: lp.Sphere(1, 1.3),
    "sphere-1-tilted": lambda: lp.Sphere(1, 1.3).tilt([0.7]),
    "affine": lambda: lp.Rademacher(2).affine(A, B),
    "mixture": _mixture,
    "sum": lambda: lp.Rademacher(2) + lp.Empirical(POINTS[:4], WEIGHTS[:4]),
    "custom": Coin,
    "custom-tilted": lambda: Coin().tilt([0.8]),
    "custom-affine": lambda: Coin().affine([[2.0], [-1.0]], [0.5, 0.5]),
}
NOT_FINITE = {
    "gaussian": lambda: lp.Gaussian(MEAN, COV),
    "uniform": lambda: lp.Uniform(2, 1.0),
    "sphere": lambda: lp.Sphere(2, 1.0),
    "many signs": lambda: lp.Rademacher(11),
    "many sums": lambda: lp.Rademacher(7) + lp.Empirical(np.eye(7)[np.arange(33) % 7]),
    "mixture": lambda: lp.Mixture([1, 1], [lp.Dirac([0.0]), lp.Uniform(1, 1.0)]),
    "affine": lambda: lp.Uniform(2, 1.0).affine(A, B),
    "custom": Triangular,
    "custom-tilted": lambda: Triangular().tilt([0.1, 0.2]),
}


def _moments(law: lp.Empirical) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.asarray(law.points), np.asarray(law.weights)
    mean = w @ x
    return mean, (w[:, None] * (x - mean)).T @ (x - mean)


def _tilted(law: lp.Empirical, u: np.ndarray) -> np.ndarray:
    """The softmax-weighted mean, in NumPy."""
    x, w = np.asarray(law.points), np.asarray(law.weights)
    scores = x @ u
    tilted = w * np.exp(scores - scores.max())
    return tilted @ x / tilted.sum()


@pytest.mark.parametrize("name", FINITE)
def test_atoms_have_the_moments_of_the_law(name):
    mu = FINITE[name]()
    atoms = mu.atoms()
    assert isinstance(atoms, lp.Empirical)
    assert np.isclose(np.sum(atoms.weights), 1.0, rtol=1e-13)
    mean, cov = _moments(atoms)
    assert np.allclose(mean, mu.mean(), rtol=1e-12, atol=1e-13)
    assert np.allclose(cov, mu.cov(), rtol=1e-12, atol=1e-13)
    u = np.linspace(-0.7, 0.9, mu.dim)
    assert np.allclose(_tilted(atoms, u), mu.tilted_mean(u), rtol=1e-12, atol=1e-13)


def test_atoms_of_signs_are_all_signs():
    atoms = lp.Rademacher(2).tilt([0.3, -0.4]).atoms()
    assert atoms is not None
    signs = np.array(list(itertools.product((-1, 1), repeat=2)))
    odds = np.exp(signs @ [0.3, -0.4])
    assert np.array_equal(atoms.points, signs)
    assert np.allclose(atoms.weights, odds / odds.sum(), rtol=1e-13)


@pytest.mark.parametrize("name", NOT_FINITE)
def test_atoms_are_none_without_finitely_many(name):
    assert NOT_FINITE[name]().atoms() is None


RULES = {
    "uniform-1": (lambda: lp.Uniform(1, 1.4), 0.7),
    "uniform-2": (lambda: lp.Uniform(2, 1.4), 0.7),
    "uniform-2-tilted": (lambda: lp.Uniform(2, 1.4).tilt([3.0, -0.2]), 0.7),
    "uniform-3": (lambda: lp.Uniform(3, 0.8), 0.7),
    "uniform-1-peaked": (lambda: lp.Uniform(1, 1.0).tilt([200.0]), 0.7),
    "circle": (lambda: lp.Sphere(2, 0.7), 0.7),
    "circle-tilted": (lambda: lp.Sphere(2, 0.7).tilt([2.0, 1.0]), 0.7),
    "circle-peaked": (lambda: lp.Sphere(2, 1.0).tilt([60.0, -80.0]), 0.7),
    "sphere": (lambda: lp.Sphere(3, 2.0), 0.7),
    "sphere-tilted": (lambda: lp.Sphere(3, 2.0).tilt(AT3), 0.7),
    "affine": (lambda: lp.Uniform(2, 1.4).affine(A, B), 0.4),
}


@pytest.mark.parametrize("name", RULES)
def test_quadrature_sums_are_averages_of_the_law(name):
    make, scale = RULES[name]
    mu = make()
    u = scale * np.linspace(-1.0, 0.6, mu.dim)
    for level in (0, 1):
        points = mu.quadrature(level)
        assert isinstance(points, lp.Empirical)
        mean, cov = _moments(points)
        assert np.allclose(mean, mu.mean(), rtol=1e-9, atol=1e-11)
        assert np.allclose(cov, mu.cov(), rtol=1e-8, atol=1e-11)
        exponential = np.asarray(points.weights) @ np.exp(np.asarray(points.points) @ u)
        assert np.isclose(exponential, np.exp(mu.log_mgf(u)), rtol=1e-10)


def test_quadrature_doubles_the_points_of_an_axis_with_every_level():
    for mu in (lp.Uniform(2, 1.0), lp.Sphere(3, 1.0)):
        rules = [mu.quadrature(level) for level in (-1, 0, 1)]
        sizes = [rule.n for rule in rules if rule is not None]
        assert sizes[1] == 4 * sizes[0]
        assert sizes[2] == 4 * sizes[1]


@pytest.mark.parametrize(
    "mu",
    [
        lp.Gaussian(MEAN, COV),
        lp.Uniform(4, 1.0),
        lp.Sphere(4, 1.0),
        lp.Empirical(POINTS),
        Triangular(),
    ],
    ids=lambda mu: type(mu).__name__,
)
def test_quadrature_is_none_where_no_rule_is_known(mu):
    assert mu.quadrature() is None


TRANSPORTED = {
    "dirac": (lambda: lp.Dirac(MEAN), 0),
    "gaussian": (lambda: lp.Gaussian(MEAN, COV), 3),
    "rademacher-tilted": (lambda: lp.Rademacher(3).tilt(U3), 3),
    "uniform-tilted": (lambda: lp.Uniform(2, 1.4).tilt([0.6, -1.1]), 2),
    "sphere": (lambda: lp.Sphere(3, 2.0), 3),
    "empirical": (lambda: lp.Empirical(POINTS, WEIGHTS), 1),
    "affine": (lambda: lp.Uniform(2, 1.4).affine(A, B), 2),
    "mixture": (lambda: lp.Mixture([1, 3], [lp.Gaussian(MEAN, COV), lp.Dirac(MEAN)]), 4),
    "sum": (lambda: lp.Uniform(3, 1.4) + lp.Gaussian(MEAN, COV), 6),
    "custom": (Coin, 1),
}


@pytest.mark.parametrize("name", TRANSPORTED)
def test_from_uniforms_reproduces_the_moments(name):
    """The errors of 2^13 scrambled Sobol points are about 1e-3 for these functions."""
    from scipy.stats import qmc

    make, needed = TRANSPORTED[name]
    mu = make()
    assert mu.uniforms_needed == needed
    numbers = qmc.Sobol(max(needed, 1), rng=np.random.default_rng(0)).random_base2(13)
    tokens = mu.from_uniforms(jnp.asarray(np.clip(numbers, 2.0**-53, 1 - 2.0**-53)))
    assert tokens.shape == (2**13, mu.dim)
    mean, cov = _moments(lp.Empirical(tokens))
    assert np.allclose(mean, mu.mean(), atol=2e-2)
    assert np.allclose(cov, mu.cov(), atol=2e-2)


def test_from_uniforms_of_a_gaussian_is_the_normal_quantile():
    from scipy.stats import norm

    uniforms = np.array([[0.1, 0.5, 0.9]])
    mu = lp.Gaussian(MEAN, np.diag([4.0, 1.0, 0.25]))
    want = MEAN + norm.ppf(uniforms) * [2.0, 1.0, 0.5]
    assert np.allclose(mu.from_uniforms(jnp.asarray(uniforms)), want, rtol=1e-13)


@pytest.mark.parametrize(
    "make",
    [
        Triangular,
        lambda: Triangular().tilt([0.1, 0.2]),
        lambda: lp.Sphere(2, 1.0).tilt([1.0, 0.0]),
        lambda: lp.Mixture([1, 1], [Triangular(), lp.Rademacher(2)]),
        lambda: Triangular() + lp.Gaussian(np.zeros(2), np.eye(2)),
        lambda: Triangular().affine(A, B),
    ],
)
def test_uniforms_needed_is_none_without_a_map(make):
    assert make().uniforms_needed is None


def test_from_uniforms_without_a_map_says_so():
    with pytest.raises(ValueError, match="uniforms_needed is None"):
        Triangular().from_uniforms(jnp.zeros((2, 2)))


def test_uniforms_needed_of_a_traced_sphere_is_none():
    """Whether it is uniform depends on a value that is unknown while tracing."""
    seen = []

    @jax.jit
    def trace(mu):
        seen.append(mu.uniforms_needed)
        return mu.radius

    trace(lp.Sphere(2, 1.0))
    assert seen == [None]


@pytest.mark.parametrize(
    ("make", "bounded"),
    [
        (lambda: lp.Dirac(MEAN), True),
        (lambda: lp.Empirical(POINTS), True),
        (lambda: lp.Rademacher(12), True),
        (lambda: lp.Uniform(2, 1.0), True),
        (lambda: lp.Sphere(4, 1.0).tilt([1.0, 0, 0, 0]), True),
        (lambda: lp.Gaussian(MEAN, COV), False),
        (lambda: lp.Uniform(2, 1.0).affine(A, B), True),
        (lambda: lp.Uniform(3, 1.0) + lp.Rademacher(3), True),
        (lambda: lp.Uniform(3, 1.0) + lp.Gaussian(MEAN, COV), False),
        (lambda: lp.Mixture([1, 1], [lp.Dirac([0.0]), lp.Uniform(1, 1.0)]), True),
        (lambda: lp.Mixture([1, 1], [lp.Dirac(MEAN), lp.Gaussian(MEAN, COV)]), False),
        (Triangular, False),
        (lambda: Coin().tilt([1.0]), True),
    ],
)
def test_is_bounded(make, bounded):
    assert make().is_bounded is bounded


@pytest.mark.parametrize(
    ("make", "mean", "cov"),
    [
        (lambda: lp.Gaussian(MEAN, COV), MEAN, COV),
        (lambda: lp.Dirac(MEAN), MEAN, np.zeros((3, 3))),
        (lambda: Normal().affine(A, B), B, A @ A.T),
        (lambda: Normal().tilt([1.0, 2.0]), [1.0, 2.0], np.eye(2)),
        (lambda: lp.Mixture([2.0], [lp.Gaussian(MEAN, COV)]), MEAN, COV),
        (lambda: Normal() + lp.Gaussian([1.0, 0.0], np.eye(2)), [1.0, 0.0], 2 * np.eye(2)),
        (lambda: Normal() + Normal() + lp.Dirac([0.0, 3.0]), [0.0, 3.0], 2 * np.eye(2)),
    ],
)
def test_as_gaussian(make, mean, cov):
    found = make().as_gaussian()
    assert isinstance(found, lp.Gaussian)
    assert np.allclose(found.centre, mean, rtol=1e-13)
    assert np.allclose(found.covariance, cov)


@pytest.mark.parametrize("make", [lambda: lp.Empirical(POINTS), Triangular, _mixture])
def test_as_gaussian_is_none_for_other_laws(make):
    assert make().as_gaussian() is None


def test_mixture_gives_weights_and_components():
    weights, components = _mixture().mixture()
    assert np.allclose(weights, [0.25, 0.75])
    assert len(components) == 2
    weights, (part,) = Triangular().mixture()
    assert np.array_equal(weights, [1.0])
    assert isinstance(part, Triangular)
    weights, components = _mixture().affine(A, B).mixture()
    assert np.allclose(components[1].mean(), A @ [2.0, 1.0] + B)
    total = sum(w * np.asarray(part.mean()) for w, part in zip(weights, components, strict=True))
    assert np.allclose(total, _mixture().affine(A, B).mean())


def test_as_prompt_serves_attention_for_a_users_measure():
    class Recorded(lp.AbstractAutodiffMeasure):
        """A custom class that stores tokens."""

        tokens: jax.Array
        dim: int = eqx.field(static=True, default=2)

        def log_mgf(self, u):
            return self.as_prompt().log_mgf(u)

        def sample(self, key, n):
            return self.as_prompt().sample(key, n)

        def as_prompt(self):
            return lp.Empirical(self.tokens)

    head = lp.Head(U=np.eye(2), V=np.eye(2))
    mu, z = Recorded(tokens=jnp.asarray(POINTS)), np.array([0.3, -0.2])
    plain = lp.Empirical(POINTS)
    assert np.array_equal(lp.attend(head, mu, z), lp.attend(head, plain, z))
    assert np.array_equal(lp.attend_linear(head, mu, z), lp.attend_linear(head, plain, z))
    streamed = lp.attend(head, mu, z, engine="streamed", block_size=2)
    assert np.allclose(streamed, lp.attend(head, plain, z), rtol=1e-13)
    assert lp.Rademacher(2).as_prompt() is None


def test_push_forward_maps_atoms_and_keeps_weights():
    for mu in (lp.Empirical(POINTS, WEIGHTS), _mixture()):
        pushed = mu.push_forward(jnp.exp)
        assert isinstance(pushed, lp.Empirical)
        atoms = mu.atoms()
        assert atoms is not None
        want = np.asarray(atoms.weights) @ np.exp(np.asarray(atoms.points))
        assert np.allclose(pushed.mean(), want, rtol=1e-13)
    assert isinstance(lp.Dirac(MEAN).push_forward(jnp.exp), lp.Dirac)
    assert lp.Uniform(2, 1.0).push_forward(jnp.exp) is None


def test_atoms_and_transport_go_through_jit():
    mu = lp.Rademacher(2).affine(A, B) + lp.Empirical(np.eye(3))
    points = eqx.filter_jit(lambda law: law.atoms().points)(mu)
    atoms = mu.atoms()
    assert atoms is not None
    assert np.allclose(points, atoms.points, rtol=1e-13)
    uniforms = jnp.asarray(np.random.default_rng(0).uniform(size=(5, 3)))
    moved = eqx.filter_jit(lambda law, x: law.from_uniforms(x))(mu, uniforms)
    assert np.allclose(moved, mu.from_uniforms(uniforms), rtol=1e-13)
    assert isinstance(Coin().tilt([0.3]), Tilted)
