"""A point mass: every token is the same."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput, KeyInput
from .base import AbstractMeasure
from .empirical import Empirical


class Dirac(AbstractMeasure):
    """The point mass at `point`: psi(u) = <point, u>, and tilting changes nothing.

    >>> import largeprompt as lp
    >>> print(lp.Dirac([1.0, 2.0]).log_mgf([1.0, 1.0]))
    3.0
    """

    point: Float[Array, " d"]

    def __init__(self, point: ArrayInput):
        self.point = _checks.shaped("point", _checks.finite("point", point), ("d",))

    @property
    def dim(self) -> int:
        return self.point.shape[-1]

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        return self.point @ self._vector(u)

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        self._vector(u)
        return self.point

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        self._vector(u)
        return jnp.zeros((self.dim, self.dim), self.dtype)

    def tilt(self, u: ArrayInput) -> "Dirac":
        self._vector(u)
        return self

    def sample(self, key: KeyInput, n: int) -> Empirical:
        _checks.key(key)
        return Empirical(jnp.broadcast_to(self.point, (_checks.count("n", n), self.dim)))

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.zeros((), self.dtype)
