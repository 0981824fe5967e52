"""Measures of any total mass, as components of mixtures."""

from typing import TYPE_CHECKING

import equinox as eqx
from jaxtyping import Float

from .._typing import Array, Vector

if TYPE_CHECKING:
    from .abstract import AbstractMeasure


class Scaled(eqx.Module):
    """The measure e^{log_mass} mu, whose cumulant function is log_mass + psi_mu.

    A mass changes no attention on mu alone. In a mixture it counts: `Mixture` accepts scaled
    components. `mu.gaussian_at(u)` returns one.
    """

    log_mass: Float[Array, ""]
    measure: "AbstractMeasure"

    @property
    def dim(self) -> int:
        return self.measure.dim

    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        """The logarithm of the integral of e^{<u, x>}."""
        return self.log_mass + self.measure.log_mgf(u)
