"""Mixtures: attention on them is a query-gated combination of attention on the components."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from .. import _checks
from .._arrays import in_dtype, library, log_softmax
from .._typing import Array, ArrayInput, KeyInput, Vector
from ._scalar_cumulants import log_mean_exp
from .abstract import AbstractMeasure
from .empirical import Empirical
from .gaussian import Gaussian
from .scaled import Scaled


class Mixture(AbstractMeasure):
    """$sum_k pi_k mu_k$: $psi(u) = log sum_k pi_k e^{psi_k(u)}$; the tilt is a mixture of tilts.

    The weights of the tilt at u are $softmax_k(log pi_k + psi_k(u))$, a gate set by the query.

    **Arguments:** `weights` of shape (k,), non-negative, normalised by the constructor;
    `components`, k measures of the same dimension. A `Scaled` component of mass e^c has its weight
    multiplied by e^c.

    >>> import largeprompt as lp
    >>> print(lp.Mixture([1, 3], [lp.Dirac([0.0]), lp.Dirac([1.0])]).mean())
    [0.75]
    """

    components: tuple[AbstractMeasure, ...]
    log_weights: Float[Array, " k"]

    def __init__(self, weights: ArrayInput, components: Sequence[AbstractMeasure | Scaled]):
        parts = _checks.measures("components", components, (AbstractMeasure, Scaled))
        self.components = tuple(
            part.measure if isinstance(part, Scaled) else part for part in parts
        )
        dtype = np.result_type(*(part.stored_dtype for part in self.components))
        log_weights = in_dtype(_checks.log_weights("weights", weights, len(parts)), dtype)
        if any(isinstance(part, Scaled) for part in parts):
            masses = [part.log_mass if isinstance(part, Scaled) else 0.0 for part in parts]
            xp = library(masses, log_weights)
            masses = xp.stack([in_dtype(xp.asarray(mass), dtype) for mass in masses])
            log_weights = log_softmax(log_weights + masses)
        self.log_weights = log_weights

    @property
    def dim(self) -> int:
        return self.components[0].dim

    @property
    def weights(self) -> Float[Array, " k"]:
        """The normalised weights pi_k."""
        return library(self.log_weights).exp(self.log_weights)

    def _potentials(self, u: Float[Array, " d"]) -> Float[Array, " k"]:
        return jnp.stack([part.log_mgf(u) for part in self.components])

    def _gate(self, u: Float[Array, " d"]) -> Float[Array, " k"]:
        return jax.nn.softmax(self.log_weights + self._potentials(u))

    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        return log_mean_exp(self.log_weights, self._potentials(u))

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        means = jnp.stack([part.tilted_mean(u) for part in self.components])
        return self._gate(u) @ means

    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        gate = self._gate(u)
        means = jnp.stack([part.tilted_mean(u) for part in self.components])
        covs = jnp.stack([part.tilted_cov(u) for part in self.components])
        gaps = means - gate @ means
        return jnp.einsum("k,kij->ij", gate, covs) + (gate[:, None] * gaps).T @ gaps

    def tilt(self, u: Vector) -> "Mixture":
        return Mixture(self._gate(u), [part.tilt(u) for part in self.components])

    def in_domain(self, u: Vector) -> Bool[Array, ""]:
        return jnp.all(jnp.stack([part.in_domain(u) for part in self.components]))

    @property
    def finite_everywhere(self) -> bool:
        return all(part.finite_everywhere for part in self.components)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        n = _checks.count("n", n)
        choice, *keys = jax.random.split(_checks.key(key), len(self.components) + 1)
        chosen = jax.random.categorical(choice, self.log_weights, shape=(n,))
        draws = jnp.stack(
            [part.sample(k, n).points for part, k in zip(self.components, keys, strict=True)]
        )
        return Empirical(draws[chosen, jnp.arange(n)])

    def subgaussian_proxy(self) -> Float[Array, ""]:
        """max_k proxy_k + max_k |mean_k - mean|^2: valid, not tight."""
        means = jnp.stack([part.mean() for part in self.components])
        within = jnp.stack([part.subgaussian_proxy() for part in self.components])
        between = jnp.sum((means - self.weights @ means) ** 2, axis=-1)
        present = self.log_weights > -jnp.inf
        return jnp.max(jnp.where(present, within, 0.0)) + jnp.max(jnp.where(present, between, 0.0))

    def as_gaussian(self) -> Gaussian | None:
        """The Gaussian of a mixture with one component."""
        return self.components[0].as_gaussian() if len(self.components) == 1 else None

    def atoms(self) -> Empirical | None:
        parts = [part.atoms() for part in self.components]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        weights = [w * part.weights for w, part in zip(self.weights, found, strict=True)]
        return Empirical(jnp.concatenate([part.points for part in found]), jnp.concatenate(weights))

    def mixture(self) -> tuple[Float[Array, " k"], tuple[AbstractMeasure, ...]]:
        return self.weights, self.components

    @property
    def is_bounded(self) -> bool:
        return all(part.is_bounded for part in self.components)

    @property
    def uniforms_needed(self) -> int | None:
        """One uniform chooses the component, the others make its token."""
        needed = [part.uniforms_needed for part in self.components]
        known = [number for number in needed if number is not None]
        return 1 + max(known) if len(known) == len(needed) else None

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        chosen = jnp.searchsorted(jnp.cumsum(self.weights), uniforms[:, 0])
        tokens = [
            part.from_uniforms(uniforms[:, 1 : 1 + (part.uniforms_needed or 0)])
            for part in self.components
        ]
        chosen = chosen.clip(0, len(self.components) - 1)
        return jnp.stack(tokens)[chosen, jnp.arange(len(uniforms))]

    def _affine(self, A: Float[Array, "j d"], b: Float[Array, " j"]) -> "Mixture":
        moved = tuple(part.affine(A, b) for part in self.components)
        return eqx.tree_at(lambda mixture: mixture.components, self, moved)
