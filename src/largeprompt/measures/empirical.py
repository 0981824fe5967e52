"""Finite prompts: weighted points, one for each token."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from .. import _checks
from .._arrays import in_dtype, library
from .._typing import Array, ArrayInput, KeyInput
from ._affine_maps import moved
from ._scalar_cumulants import log_mean_exp
from .abstract import AbstractMeasure
from .tilted_moments import TiltedMoments, tilted_moments


class Empirical(AbstractMeasure):
    """$sum_i w_i delta_{x_i}$: $psi(u) = log sum_i w_i e^{<u, x_i>}$; tilting reweights the points.

    A prompt of L tokens is the empirical measure of its tokens; attention on it is softmax
    attention.

    **Arguments:** `points` of shape (n, d); `weights` of shape (n,), non-negative, normalised by
    the constructor, uniform if left out. `check=False` does not look for non-finite points. NumPy
    arrays in float32 or less are put on JAX's default device, where kernels read them; those in
    float64 stay in NumPy.

    >>> import largeprompt as lp
    >>> prompt = lp.Empirical([[0.0], [1.0]])
    >>> print(prompt.mean(), prompt.cov())
    [0.5] [[0.25]]
    """

    points: Float[Array, "n d"]
    log_weights: Float[Array, " n"] | None

    @_checks.accepts()
    def __init__(
        self, points: ArrayInput, weights: ArrayInput | None = None, *, check: bool = True
    ):
        points = _checks.tokens("points", points)
        if points.ndim == 2 and points.shape[0] == 0:
            raise _checks.error(
                "a prompt must have at least one token",
                f"points of shape {points.shape}",
                "pass at least one point, or use the measure itself for the infinite prompt",
            )
        points = _checks.shaped("points", points, ("n", "d"))
        self.points = _checks.finite("points", points) if check else points
        self.log_weights = None
        if weights is not None:
            size = points.shape[0]
            logs = _checks.log_weights("weights", weights, size)
            self.log_weights = in_dtype(logs, points.dtype)

    @property
    def dim(self) -> int:
        return self.points.shape[-1]

    @property
    def n(self) -> int:
        """The number of points, L."""
        return self.points.shape[-2]

    @property
    def weights(self) -> Float[Array, " n"]:
        """The normalised weights w_i."""
        logs = self._log_weights()
        return library(logs).exp(logs)

    def _log_weights(self) -> Float[Array, " n"]:
        if self.log_weights is not None:
            return self.log_weights
        return library(self.points).full(self.n, -math.log(self.n), self.points.dtype)

    def _scores(self, u: ArrayInput) -> Float[Array, " n"]:
        return jnp.matmul(self.points, jnp.asarray(u), precision="highest")

    def _moments(self, u: ArrayInput, *, with_cov: bool) -> TiltedMoments:
        tilts = jnp.asarray(u)[None]
        batch = tilted_moments(self.points, self.log_weights, tilts, with_cov=with_cov)
        return jax.tree.map(lambda leaf: leaf[0], batch)

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        return log_mean_exp(self._log_weights(), self._scores(u))

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        return self._moments(u, with_cov=False).mean

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        cov = self._moments(u, with_cov=True).cov
        assert cov is not None  # for the type checker: requested above
        return cov

    def tilt(self, u: ArrayInput) -> "Empirical":
        return self.with_log_weights(jax.nn.log_softmax(self._log_weights() + self._scores(u)))

    def with_log_weights(self, log_weights: Float[Array, " n"] | None) -> "Empirical":
        """The same points with other weights, given as normalised logarithms (None: uniform)."""
        return eqx.tree_at(
            lambda mu: mu.log_weights, self, log_weights, is_leaf=lambda leaf: leaf is None
        )

    def sample(self, key: KeyInput, n: int) -> "Empirical":
        n, key = _checks.count("n", n), _checks.key(key)
        if self.log_weights is None:
            chosen = jax.random.randint(key, (n,), 0, self.n)
        else:
            chosen = jax.random.choice(key, self.n, (n,), p=jnp.asarray(self.weights))
        return Empirical(jnp.asarray(self.points)[chosen])

    def subgaussian_proxy(self) -> Float[Array, ""]:
        """$max_i |x_i - mean|^2$ over points of positive weight: valid for all tilts, not tight."""
        distances = jnp.sum((self.points - self.mean()) ** 2, axis=-1)
        return jnp.max(jnp.where(self._log_weights() > -jnp.inf, distances, 0.0))

    def as_prompt(self) -> "Empirical":
        return self

    def atoms(self) -> "Empirical":
        return self

    @property
    def is_bounded(self) -> bool:
        return True

    @property
    def uniforms_needed(self) -> int:
        return 1

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        chosen = jnp.searchsorted(jnp.cumsum(self.weights), uniforms[:, 0])
        return jnp.asarray(self.points)[chosen.clip(0, self.n - 1)]

    def push_forward(self, function: Callable[[Array], Array]) -> "Empirical":
        """The images of the points, with the same weights."""
        return Empirical(function(self.points)).with_log_weights(self.log_weights)

    def _affine(self, A: Float[Array, "k d"], b: Float[Array, " k"]) -> "Empirical":
        return self.push_forward(lambda points: moved(points, A, b))
