"""Laws with independent coordinates: Rademacher and Uniform tokens.

A product law tilts coordinate by coordinate, so each family here is closed under tilting. Its
natural parameter theta is 0 for the law named by the class, and `tilt(u)` adds u to it.
"""

import itertools
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import in_dtype
from .._typing import Array, ArrayInput, KeyInput, Vector
from . import _scalar_cumulants as scalar
from ._affine_maps import zeros
from ._gauss_points import LOG_CUTOFF, POINTS_PER_AXIS, gauss_legendre
from .abstract import AbstractMeasure
from .empirical import Empirical

_MOST_SIGNS = 10  # dimensions of a Rademacher law whose 2^d atoms are enumerated


class AbstractProduct(AbstractMeasure):
    """d independent coordinates; coordinate j has cumulant function psi_1 and is tilted by theta_j.

    psi(u) = sum_j psi_1(theta_j + u_j) - psi_1(theta_j). A subclass defines psi_1 and its first two
    derivatives (elementwise on arrays of shape (d,)), a sampler, and the largest value of psi_1'',
    which is a variance proxy of every tilt.
    """

    natural: eqx.AbstractVar[Float[Array, " d"]]

    @property
    def dim(self) -> int:
        return self.natural.shape[-1]

    @abstractmethod
    def _psi(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """psi_1, coordinate by coordinate."""

    @abstractmethod
    def _psi_slope(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """psi_1'."""

    @abstractmethod
    def _psi_curvature(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """psi_1''."""

    @abstractmethod
    def _draw(self, key: KeyInput, n: int) -> Float[Array, "n d"]:
        """`n` draws of the law tilted by `natural`."""

    @eqx.filter_jit
    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        def total(theta: Array) -> Array:
            return jnp.sum(self._psi(theta))

        scale = jnp.sqrt(self.subgaussian_proxy())
        return scalar.increment(total, self._psi_slope, self.natural, u, scale)

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        return self._psi_slope(self.natural + u)

    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        return jnp.diag(self._psi_curvature(self.natural + u))

    def tilt(self, u: Vector) -> "AbstractProduct":
        return eqx.tree_at(lambda mu: mu.natural, self, self.natural + u)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        return Empirical(self._draw(_checks.key(key), _checks.count("n", n)))

    @property
    def is_bounded(self) -> bool:
        return True

    @property
    def uniforms_needed(self) -> int:
        return self.dim


class Rademacher(AbstractProduct):
    """Independent signs: $psi_1(u) = log cosh u$, so that $T[mu](z) = V tanh(U z)$, elementwise.

    The negative control of Lemma 2.1: mean and covariance are those of N(0, I), but attention is
    not linear.

    >>> import largeprompt as lp
    >>> print(lp.Rademacher(2).tilted_mean([0.0, 100.0]))
    [0. 1.]
    """

    natural: Float[Array, " d"]

    def __init__(self, d: int):
        self.natural = zeros(d, np.float64)

    def _psi(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return scalar.log_cosh(theta)

    def _psi_slope(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return scalar.tanh(theta)

    def _psi_curvature(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return scalar.sech_squared(theta)

    def _draw(self, key: KeyInput, n: int) -> Float[Array, "n d"]:
        plus = jax.random.bernoulli(key, jax.nn.sigmoid(2 * self.natural), (n, self.dim))
        return jnp.where(plus, 1.0, -1.0).astype(self.dtype)

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.ones((), self.dtype)

    def atoms(self) -> Empirical | None:
        """All sign vectors, in at most 10 dimensions."""
        if self.dim > _MOST_SIGNS:
            return None
        signs = jnp.array(list(itertools.product((-1.0, 1.0), repeat=self.dim)), self.dtype)
        return Empirical(signs, jax.nn.softmax(signs @ self.natural))

    @eqx.filter_jit
    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        return jnp.where(uniforms < jax.nn.sigmoid(2 * self.natural), 1.0, -1.0)


class Uniform(AbstractProduct):
    """Independent coordinates, uniform on [-a, a]: $psi_1(u) = log(sinh(a u) / (a u))$.

    **Arguments:** `d`, the dimension; `a`, the half-width, one positive number.

    >>> import largeprompt as lp
    >>> print(lp.Uniform(1, 3.0).cov())
    [[3.]]
    """

    natural: Float[Array, " d"]
    half_width: Float[Array, ""]

    def __init__(self, d: int, a: ArrayInput = 1.0):
        self.half_width = _checks.shaped("a", _checks.positive("a", a), ())
        self.natural = zeros(d, self.half_width.dtype)

    def _psi(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return scalar.log_sinhc(self.half_width * theta)

    def _psi_slope(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.half_width * scalar.langevin(self.half_width * theta)

    def _psi_curvature(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.half_width**2 * scalar.langevin_slope(self.half_width * theta)

    def _draw(self, key: KeyInput, n: int) -> Float[Array, "n d"]:
        return self.quantile(jax.random.uniform(key, (n, self.dim), self.dtype))

    def quantile(self, uniforms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Inverse distribution function of each coordinate, measured from the end with the mode."""
        rate = 2 * jnp.abs(self.half_width * self.natural)
        safe = jnp.where(rate > 0, rate, 1.0)
        depth = jnp.where(rate > 0, -jnp.log1p(uniforms * jnp.expm1(-safe)) / safe, uniforms)
        side = jnp.where(self.natural < 0, -1.0, 1.0)
        return self.half_width * side * (1 - 2 * depth)

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return self.half_width**2 / 3

    def quadrature(self, level: int = 0) -> Empirical | None:
        """Gauss points along each axis, in at most 3 dimensions; needs concrete numbers.

        They cover the part of the interval where the density e^{natural x} is not negligible.
        """
        if self.dim not in POINTS_PER_AXIS:
            return None
        natural, a = np.asarray(self.natural, np.float64), float(self.half_width)
        reach = np.minimum(2 * a, LOG_CUTOFF / np.maximum(np.abs(natural), 1e-300))
        low = np.where(natural < 0, -a, a - reach)
        x, w = gauss_legendre(low, low + reach, int(POINTS_PER_AXIS[self.dim] * 2**level))
        w = w * np.exp(natural[:, None] * x - np.abs(natural[:, None]) * a)
        points = np.stack(np.meshgrid(*x, indexing="ij"), -1).reshape(-1, self.dim)
        weights = np.prod(np.stack(np.meshgrid(*w, indexing="ij"), -1), -1).ravel()
        return Empirical(in_dtype(points, self.stored_dtype), weights)

    @eqx.filter_jit
    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        return self.quantile(uniforms)
