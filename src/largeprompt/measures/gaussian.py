"""Gaussian tokens, for which attention on the infinite prompt is affine in the query."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Float

from .. import _checks
from .._arrays import matmul
from .._linalg import psd_sqrt
from .._typing import Array, ArrayInput, KeyInput
from ._affine_maps import moved, sandwich
from .abstract import AbstractMeasure
from .empirical import Empirical


class Gaussian(AbstractMeasure):
    """$N(m, G)$: $psi(u) = <m, u> + u'Gu/2$, and the tilt at u is $N(m + G u, G)$.

    Hence Lemma 2.1 (Castin et al. 2025; Boursier & Boyer 2026): $T[N(m, G)](z) = V m + V G U z$. G
    may be singular, rank 0 included.

    **Arguments:** `mean` of shape (d,); `cov` of shape (d, d), symmetric positive semi-definite.
    `check=False` skips the validation of `cov`, for matrices that are covariances by construction.

    >>> import largeprompt as lp
    >>> mu = lp.Gaussian([1.0, 0.0], [[2.0, 0.0], [0.0, 0.0]])
    >>> print(mu.tilted_mean([1.0, 1.0]))
    [3. 0.]
    """

    centre: Float[Array, " d"]
    covariance: Float[Array, "d d"]

    @_checks.accepts()
    def __init__(self, mean: ArrayInput, cov: ArrayInput, *, check: bool = True):
        covariance = _checks.covariance("cov", cov) if check else _checks.float_array("cov", cov)
        centre = _checks.shaped("mean", _checks.finite("mean", mean), (covariance.shape[0],))
        self.centre, self.covariance = _checks.same_dtype(centre, covariance)

    @classmethod
    def from_factor(cls, mean: ArrayInput, B: ArrayInput) -> "Gaussian":
        """The law N(m, B B') of m + B g, g standard normal."""
        factor = _checks.shaped("B", _checks.finite("B", B), ("d", "k"))
        return cls(mean, matmul(factor, factor.T), check=False)

    @property
    def dim(self) -> int:
        return self.centre.shape[-1]

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        return self.centre @ u + u @ self.covariance @ u / 2

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        return self.centre + jnp.matmul(self.covariance, jnp.asarray(u), precision="highest")

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        return self.covariance

    def tilt(self, u: ArrayInput) -> "Gaussian":
        return Gaussian(self.tilted_mean(u), self.covariance, check=False)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        shape = (_checks.count("n", n), self.dim)
        noise = jax.random.normal(_checks.key(key), shape, self.dtype)
        return Empirical(
            self.centre + jnp.matmul(noise, psd_sqrt(self.covariance), precision="highest")
        )

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return jnp.maximum(jnp.linalg.eigvalsh(self.covariance)[-1], 0.0)

    def as_gaussian(self) -> "Gaussian":
        return self

    @property
    def uniforms_needed(self) -> int:
        return self.dim

    @eqx.filter_jit
    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        root = psd_sqrt(self.covariance)
        return self.centre + jnp.matmul(ndtri(uniforms), root, precision="highest")

    def _affine(self, A: Float[Array, "k d"], b: Float[Array, " k"]) -> "Gaussian":
        return Gaussian(moved(self.centre, A, b), sandwich(A, self.covariance), check=False)
