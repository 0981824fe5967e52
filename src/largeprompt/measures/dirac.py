"""Point masses: all tokens are equal."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._typing import Array, ArrayInput, KeyInput, Vector
from ._affine_maps import moved
from .abstract import AbstractMeasure
from .empirical import Empirical
from .gaussian import Gaussian


class Dirac(AbstractMeasure):
    """The point mass at `point`: $psi(u) = <point, u>$, and tilting changes nothing.

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

    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        return self.point @ u

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        return self.point

    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        return jnp.zeros((self.dim, self.dim), self.dtype)

    def tilt(self, u: Vector) -> "Dirac":
        return self

    def sample(self, key: KeyInput, n: int) -> Empirical:
        _checks.key(key)
        return Empirical(jnp.broadcast_to(self.point, (_checks.count("n", n), self.dim)))

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.zeros((), self.dtype)

    def as_gaussian(self) -> Gaussian:
        """N(point, 0)."""
        return Gaussian(self.point, np.zeros((self.dim, self.dim)), check=False)

    def atoms(self) -> Empirical:
        return Empirical(self.point[None])

    @property
    def is_bounded(self) -> bool:
        return True

    @property
    def uniforms_needed(self) -> int:
        return 0

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        return jnp.broadcast_to(self.point, (len(uniforms), self.dim))

    def push_forward(self, function: Callable[[Array], Array]) -> "Dirac":
        return Dirac(function(self.point[None])[0])

    def _affine(self, A: Float[Array, "k d"], b: Float[Array, " k"]) -> "Dirac":
        return Dirac(moved(self.point, A, b))

    def _point(self) -> Float[Array, " d"]:
        return self.point
