"""Images and sums of measures, the tilt of a user's own measure, and the families that are closed under them."""

from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._typing import ArrayInput, KeyInput
from .base import AbstractMeasure
from .dirac import Dirac
from .empirical import Empirical
from .gaussian import Gaussian
from .mixture import Mixture


class AffineImage(AbstractMeasure):
    """The law of A x + b with x ~ measure: psi(u) = <b, u> + psi_x(A'u). Made by `measure.affine(A, b)`."""

    measure: AbstractMeasure
    A: Float[Array, "k d"]
    b: Float[Array, " k"]

    def __init__(
        self, measure: AbstractMeasure, A: Float[Array, "k d"], b: Float[Array, " k"]
    ) -> None:
        self.measure, self.A, self.b = measure, A, b

    @property
    def dim(self) -> int:
        return self.b.shape[-1]

    def _pulled_back(self, u: ArrayInput) -> Float[Array, " d"]:
        return jnp.matmul(self._vector(u), self.A, precision="highest")

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        return self.b @ self._vector(u) + self.measure.log_mgf(self._pulled_back(u))

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " k"]:
        inner = self.measure.tilted_mean(self._pulled_back(u))
        return self.b + jnp.matmul(self.A, inner, precision="highest")

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "k k"]:
        inner = self.measure.tilted_cov(self._pulled_back(u))
        return _sandwich(self.A, inner)

    def tilt(self, u: ArrayInput) -> "AffineImage":
        return AffineImage(self.measure.tilt(self._pulled_back(u)), self.A, self.b)

    def in_domain(self, u: ArrayInput) -> Bool[Array, ""]:
        return self.measure.in_domain(self._pulled_back(u))

    @property
    def finite_everywhere(self) -> bool:
        return self.measure.finite_everywhere

    def sample(self, key: KeyInput, n: int) -> Empirical:
        return Empirical(_pushed(self.measure.sample(key, n).points, self.A, self.b))

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.linalg.norm(self.A, 2) ** 2 * self.measure.subgaussian_proxy()


class IndependentSum(AbstractMeasure):
    """The law of a sum of independent parts: psi is the sum of the psi's. Made by `mu + nu`."""

    parts: tuple[AbstractMeasure, ...]

    def __init__(self, parts: tuple[AbstractMeasure, ...]) -> None:
        self.parts = parts

    @property
    def dim(self) -> int:
        return self.parts[0].dim

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        return sum((part.log_mgf(u) for part in self.parts), start=jnp.zeros((), self.dtype))

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        return jnp.sum(jnp.stack([part.tilted_mean(u) for part in self.parts]), axis=0)

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        return jnp.sum(jnp.stack([part.tilted_cov(u) for part in self.parts]), axis=0)

    def tilt(self, u: ArrayInput) -> "IndependentSum":
        return IndependentSum(tuple(part.tilt(u) for part in self.parts))

    def in_domain(self, u: ArrayInput) -> Bool[Array, ""]:
        return jnp.all(jnp.stack([part.in_domain(u) for part in self.parts]))

    @property
    def finite_everywhere(self) -> bool:
        return all(part.finite_everywhere for part in self.parts)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        keys = jax.random.split(_checks.key(key), len(self.parts))
        draws = [part.sample(k, n).points for part, k in zip(self.parts, keys, strict=True)]
        return Empirical(jnp.sum(jnp.stack(draws), axis=0))

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.sum(jnp.stack([part.subgaussian_proxy() for part in self.parts]))


class Tilted(AbstractMeasure):
    """The tilt of a measure known only by its cumulant function: psi(v) = psi_x(theta + v) - psi_x(theta)."""

    measure: AbstractMeasure
    natural: Float[Array, " d"]

    def __init__(self, measure: AbstractMeasure, u: ArrayInput):
        self.measure, self.natural = measure, measure._vector(u)

    @property
    def dim(self) -> int:
        return self.measure.dim

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        here = self.measure.log_mgf(self.natural)
        return self.measure.log_mgf(self.natural + self._vector(u)) - here

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        return self.measure.tilted_mean(self.natural + self._vector(u))

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        return self.measure.tilted_cov(self.natural + self._vector(u))

    def tilt(self, u: ArrayInput) -> "Tilted":
        return Tilted(self.measure, self.natural + self._vector(u))

    def in_domain(self, u: ArrayInput) -> Bool[Array, ""]:
        return self.measure.in_domain(self.natural + self._vector(u))

    @property
    def finite_everywhere(self) -> bool:
        return self.measure.finite_everywhere

    def sample(self, key: KeyInput, n: int) -> Empirical:
        raise ValueError(
            _checks.message(
                "a tilt can be sampled only where the measure says how",
                f"the tilt of a {type(self.measure).__name__}, known by log_mgf alone",
                "reweight a sample, measure.sample(key, n).tilt(u), or give your class a `tilt` method",
            )
        )

    def subgaussian_proxy(self) -> Float[Array, ""]:
        raise ValueError(
            _checks.message(
                "the variance proxy of a tilt is known only for the built-in families",
                f"the tilt of a {type(self.measure).__name__}",
                "give your class a `tilt` method that returns a measure with a proxy",
            )
        )


def affine_image(
    measure: AbstractMeasure, A: ArrayInput, b: ArrayInput | None = None
) -> AbstractMeasure:
    """The law of A x + b, inside its own family where that family is closed under affine maps."""
    A = _checks.shaped("A", _checks.finite("A", A), ("k", measure.dim)).astype(measure.dtype)
    b = jnp.zeros(A.shape[0], A.dtype) if b is None else _checks.finite("b", b).astype(A.dtype)
    b = _checks.shaped("b", b, (A.shape[0],))
    match measure:
        case Dirac():
            return Dirac(_pushed(measure.point, A, b))
        case Gaussian():
            cov = _sandwich(A, measure.covariance)
            return Gaussian(_pushed(measure.centre, A, b), cov, check=False)
        case Empirical():
            moved = Empirical(_pushed(measure.points, A, b))
            return moved.with_log_weights(measure.log_weights)
        case Mixture():
            parts = [affine_image(part, A, b) for part in measure.components]
            return Mixture(measure.weights, parts)
        case AffineImage():
            inner = jnp.matmul(A, measure.A, precision="highest")
            return AffineImage(measure.measure, inner, _pushed(measure.b, A, b))
        case _:
            return AffineImage(measure, A, b)


def without_spread(measure: Dirac) -> Gaussian:
    """A point mass as the Gaussian of covariance zero: formulas for Gaussians then serve it too."""
    return Gaussian(measure.point, jnp.zeros((measure.dim, measure.dim)), check=False)


def independent_sum(first: AbstractMeasure, second: AbstractMeasure) -> AbstractMeasure:
    """The law of x + y, x and y independent: Gaussians add up to a Gaussian, a point mass only shifts."""
    first, second = _checks.measures("the terms of a sum", (first, second), AbstractMeasure)
    match first, second:
        case Gaussian(), Gaussian():
            cov = first.covariance + second.covariance
            return Gaussian(first.centre + second.centre, cov, check=False)
        case Dirac(), _:
            return second.affine(jnp.eye(second.dim), first.point)
        case _, Dirac():
            return first.affine(jnp.eye(first.dim), second.point)
        case _:
            return IndependentSum(_gathered((*_terms(first), *_terms(second))))


def _gathered(terms: tuple[AbstractMeasure, ...]) -> tuple[AbstractMeasure, ...]:
    """The terms, all Gaussians among them added up in the place of the first."""
    normal = [i for i, term in enumerate(terms) if isinstance(term, Gaussian)]
    if len(normal) < 2:
        return terms
    others = [term for term in terms if not isinstance(term, Gaussian)]
    others.insert(normal[0], reduce(independent_sum, [terms[i] for i in normal]))
    return tuple(others)


def _terms(measure: AbstractMeasure) -> tuple[AbstractMeasure, ...]:
    return measure.parts if isinstance(measure, IndependentSum) else (measure,)


def _pushed(points: Array, A: Float[Array, "k d"], b: Float[Array, " k"]) -> Array:
    return jnp.matmul(points, A.T, precision="highest") + b


def _sandwich(A: Float[Array, "k d"], cov: Float[Array, "d d"]) -> Float[Array, "k k"]:
    """A cov A', symmetric to the last bit."""
    image = jnp.matmul(jnp.matmul(A, cov, precision="highest"), A.T, precision="highest")
    return (image + image.T) / 2
