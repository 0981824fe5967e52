"""Affine images, independent sums and tilts of arbitrary measures."""

import math
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from .. import _checks
from .._typing import Array, ArrayInput, KeyInput
from ._affine_maps import moved, sandwich
from .abstract import AbstractMeasure
from .empirical import Empirical
from .gaussian import Gaussian

_MOST_ATOMS = 4096  # of a sum, which has the product of the numbers of atoms of its parts


class AffineImage(AbstractMeasure):
    """The law of A x + b with x ~ measure: $psi(u) = <b, u> + psi_x(A'u)$.

    `measure.affine(A, b)` returns it, unless the measure's family is closed under affine maps.
    """

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
        return jnp.matmul(jnp.asarray(u), self.A, precision="highest")

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        return self.b @ u + self.measure.log_mgf(self._pulled_back(u))

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " k"]:
        inner = self.measure.tilted_mean(self._pulled_back(u))
        return self.b + jnp.matmul(self.A, inner, precision="highest")

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "k k"]:
        inner = self.measure.tilted_cov(self._pulled_back(u))
        return sandwich(self.A, inner)

    def tilt(self, u: ArrayInput) -> "AffineImage":
        return AffineImage(self.measure.tilt(self._pulled_back(u)), self.A, self.b)

    def in_domain(self, u: ArrayInput) -> Bool[Array, ""]:
        return self.measure.in_domain(self._pulled_back(u))

    @property
    def finite_everywhere(self) -> bool:
        return self.measure.finite_everywhere

    def sample(self, key: KeyInput, n: int) -> Empirical:
        return Empirical(moved(self.measure.sample(key, n).points, self.A, self.b))

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.linalg.norm(self.A, 2) ** 2 * self.measure.subgaussian_proxy()

    def as_gaussian(self) -> Gaussian | None:
        inner = self.measure.as_gaussian()
        return None if inner is None else inner._affine(self.A, self.b)

    def atoms(self) -> Empirical | None:
        inner = self.measure.atoms()
        return None if inner is None else inner._affine(self.A, self.b)

    def quadrature(self, level: int = 0) -> Empirical | None:
        inner = self.measure.quadrature(level)
        return None if inner is None else inner._affine(self.A, self.b)

    def mixture(self) -> tuple[Float[Array, " j"], tuple[AbstractMeasure, ...]]:
        weights, components = self.measure.mixture()
        return weights, tuple(part.affine(self.A, self.b) for part in components)

    @property
    def is_bounded(self) -> bool:
        return self.measure.is_bounded

    @property
    def uniforms_needed(self) -> int | None:
        return self.measure.uniforms_needed

    def from_uniforms(self, uniforms: Float[Array, "n j"]) -> Float[Array, "n k"]:
        return moved(self.measure.from_uniforms(uniforms), self.A, self.b)

    def _affine(self, A: Float[Array, "j k"], b: Float[Array, " j"]) -> "AffineImage":
        inner = jnp.matmul(A, self.A, precision="highest")
        return AffineImage(self.measure, inner, moved(self.b, A, b))


class IndependentSum(AbstractMeasure):
    """The law of a sum of independent parts, whose psi add up; returned by `mu + nu`."""

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

    def as_gaussian(self) -> Gaussian | None:
        parts = [part.as_gaussian() for part in self.parts]
        found = [part for part in parts if part is not None]
        return _sum_of_gaussians(found) if len(found) == len(parts) else None

    def atoms(self) -> Empirical | None:
        """All sums of one atom of each part, at most 4096 of them."""
        parts = [part.atoms() for part in self.parts]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or math.prod(part.n for part in found) > _MOST_ATOMS:
            return None
        return reduce(_sums_of_atoms, found)

    @property
    def is_bounded(self) -> bool:
        return all(part.is_bounded for part in self.parts)

    @property
    def uniforms_needed(self) -> int | None:
        needed = [part.uniforms_needed for part in self.parts]
        known = [number for number in needed if number is not None]
        return sum(known) if len(known) == len(needed) else None

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        total, start = jnp.zeros((len(uniforms), self.dim)), 0
        for part in self.parts:
            end = start + (part.uniforms_needed or 0)
            total, start = total + part.from_uniforms(uniforms[:, start:end]), end
        return total

    def _terms(self) -> tuple[AbstractMeasure, ...]:
        return self.parts


class Tilted(AbstractMeasure):
    """The tilt of any measure by theta: $psi(v) = psi_x(theta + v) - psi_x(theta)$.

    Returned by `AbstractAutodiffMeasure.tilt`.
    """

    measure: AbstractMeasure
    natural: Float[Array, " d"]

    def __init__(self, measure: AbstractMeasure, u: ArrayInput):
        self.measure, self.natural = measure, measure._vector(u)

    @property
    def dim(self) -> int:
        return self.measure.dim

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        here = self.measure.log_mgf(self.natural)
        return self.measure.log_mgf(self.natural + u) - here

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        return self.measure.tilted_mean(self.natural + u)

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        return self.measure.tilted_cov(self.natural + u)

    def tilt(self, u: ArrayInput) -> "Tilted":
        return Tilted(self.measure, self.natural + u)

    def in_domain(self, u: ArrayInput) -> Bool[Array, ""]:
        return self.measure.in_domain(self.natural + u)

    @property
    def finite_everywhere(self) -> bool:
        return self.measure.finite_everywhere

    def sample(self, key: KeyInput, n: int) -> Empirical:
        raise _checks.error(
            "sample needs a measure with a sampler",
            f"the tilt of a {type(self.measure).__name__}, known by log_mgf only",
            "reweight a sample, measure.sample(key, n).tilt(u), or give your class a `tilt` method",
        )

    def subgaussian_proxy(self) -> Float[Array, ""]:
        raise _checks.error(
            "subgaussian_proxy of a tilt is only known for built-in measures",
            f"the tilt of a {type(self.measure).__name__}",
            "give your class a `tilt` method that returns a measure with a proxy",
        )

    def as_gaussian(self) -> Gaussian | None:
        inner = self.measure.as_gaussian()
        return None if inner is None else inner.tilt(self.natural)

    def atoms(self) -> Empirical | None:
        inner = self.measure.atoms()
        return None if inner is None else inner.tilt(self.natural)

    def quadrature(self, level: int = 0) -> Empirical | None:
        inner = self.measure.quadrature(level)
        return None if inner is None else inner.tilt(self.natural)

    @property
    def is_bounded(self) -> bool:
        return self.measure.is_bounded


def sum_of(terms: tuple[AbstractMeasure, ...]) -> AbstractMeasure:
    """The law of a sum of independent terms; the Gaussians among them are added up."""
    found = [term.as_gaussian() for term in terms]
    normal = [gaussian for gaussian in found if gaussian is not None]
    if len(normal) < 2:
        return IndependentSum(terms)
    total = _sum_of_gaussians(normal)
    if len(normal) == len(terms):
        return total
    others = [term for term, gaussian in zip(terms, found, strict=True) if gaussian is None]
    place = next(i for i, gaussian in enumerate(found) if gaussian is not None)
    return IndependentSum((*others[:place], total, *others[place:]))


def _sum_of_gaussians(terms: Sequence[Gaussian]) -> Gaussian:
    centre = sum((term.centre for term in terms[1:]), start=terms[0].centre)
    covariance = sum((term.covariance for term in terms[1:]), start=terms[0].covariance)
    return Gaussian(centre, covariance, check=False)


def _sums_of_atoms(first: Empirical, second: Empirical) -> Empirical:
    """x + y for every atom x of the first and y of the second."""
    points = first.points[:, None] + second.points
    weights = first.weights[:, None] * second.weights
    return Empirical(points.reshape(-1, first.dim), weights.ravel())
