"""Tokens on a sphere: the uniform law and its tilts, the von Mises-Fisher laws."""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Float, Key

from .. import _checks
from .._arrays import in_dtype
from .._float64 import is_traced
from .._typing import Array, ArrayInput, KeyInput, Vector
from . import _bessel
from . import _scalar_cumulants as scalar
from ._affine_maps import zeros
from ._gauss_points import LOG_CUTOFF, POINTS_PER_AXIS, gauss_legendre
from .abstract import AbstractMeasure
from .empirical import Empirical


class Sphere(AbstractMeasure):
    """Uniform law on the sphere of radius r in R^d.

    psi(u) is the logarithm of the normalised Bessel function $I_{d/2-1}(r |u|)$. The tilts are the
    von Mises-Fisher laws, which this class also represents: their natural parameter `natural` is 0
    for the uniform law, and `tilt(u)` adds u to it.

    **Arguments:** `d`, the dimension of the space; `radius` > 0.

    >>> import largeprompt as lp
    >>> print(lp.Sphere(3, 3.0).cov())
    [[3. 0. 0.]
     [0. 3. 0.]
     [0. 0. 3.]]
    """

    natural: Float[Array, " d"]
    radius: Float[Array, ""]

    def __init__(self, d: int, radius: ArrayInput = 1.0):
        self.radius = _checks.shaped("radius", _checks.positive("radius", radius), ())
        self.natural = zeros(d, self.radius.dtype)

    @property
    def dim(self) -> int:
        return self.natural.shape[-1]

    def _square(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.radius**2 * (theta @ theta)

    def _mean_at(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.radius**2 * _bessel.mean_over_kappa(self.dim, self._square(theta)) * theta

    @eqx.filter_jit
    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        def psi(theta: Array) -> Array:
            return _bessel.log_m(self.dim, self._square(theta))

        return scalar.increment(psi, self._mean_at, self.natural, u, self.radius)

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        return self._mean_at(self.natural + u)

    @eqx.filter_jit
    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        theta = self.natural + u
        square = self._square(theta)
        across = _bessel.mean_over_kappa(self.dim, square)
        along = _bessel.radial_variance(self.dim, square)
        length = theta @ theta
        safe = jnp.where(length > 0, length, 1.0)
        projector = jnp.outer(theta, theta) / safe
        identity = jnp.eye(self.dim, dtype=self.dtype)
        return self.radius**2 * (across * (identity - projector) + along * projector)

    def tilt(self, u: Vector) -> "Sphere":
        return eqx.tree_at(lambda mu: mu.natural, self, self.natural + u)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        """Draws by rejection (Wood 1994) of the height along the mean direction."""
        n = _checks.count("n", n)
        for_height, for_rest = jax.random.split(_checks.key(key))
        kappa = jnp.sqrt(self._square(self.natural))
        axis = jnp.where(
            kappa > 0,
            self.natural * self.radius / jnp.where(kappa > 0, kappa, 1.0),
            jnp.zeros(self.dim, self.dtype).at[0].set(1.0),
        )
        if self.dim == 1:
            up = jax.random.bernoulli(for_height, jax.nn.sigmoid(2 * kappa), (n, 1))
            return Empirical(self.radius * axis * jnp.where(up, 1.0, -1.0).astype(self.dtype))
        height = _vmf_heights(for_height, n, self.dim, kappa)
        rest = jax.random.normal(for_rest, (n, self.dim), self.dtype)
        rest = rest - (rest @ axis)[:, None] * axis
        rest = rest / jnp.linalg.norm(rest, axis=-1, keepdims=True)
        across = jnp.sqrt(jnp.maximum(1 - height**2, 0.0))
        return Empirical(self.radius * (height[:, None] * axis + across[:, None] * rest))

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return self.radius**2 / self.dim

    def atoms(self) -> Empirical | None:
        """The two points of a sphere in dimension 1."""
        if self.dim > 1:
            return None
        ends = self.radius * jnp.array([[-1.0], [1.0]], self.dtype)
        return Empirical(ends, jax.nn.softmax(ends @ self.natural))

    def quadrature(self, level: int = 0) -> Empirical | None:
        """Points on the circle, or a product rule on the sphere of R^3; needs concrete numbers."""
        if self.dim not in (2, 3):
            return None
        natural, radius = np.asarray(self.natural, np.float64), float(self.radius)
        points, weights = _polar_rule(natural, radius, int(POINTS_PER_AXIS[2] * 2**level))
        return Empirical(in_dtype(points, self.stored_dtype), weights)

    @property
    def is_bounded(self) -> bool:
        return True

    @property
    def uniforms_needed(self) -> int | None:
        """d for the uniform law; None for a von Mises-Fisher law and for traced parameters."""
        uniform = not is_traced(self.natural) and not np.any(np.asarray(self.natural))
        return self.dim if uniform else None

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        normal = ndtri(uniforms)
        return self.radius * normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)


@partial(jax.jit, static_argnums=(1, 2))
def _vmf_heights(
    key: Key[Array, ""], n: int, dim: int, kappa: Float[Array, ""]
) -> Float[Array, " n"]:
    """`n` draws of the density proportional to e^{kappa w} (1 - w^2)^{(d-3)/2} on [-1, 1].

    A. T. A. Wood, Simulation of the von Mises Fisher distribution, Comm. Statist. Simulation
    Comput. 23 (1994). About two thirds of the proposals or more are accepted for all kappa and d,
    so the loop ends after a few rounds.
    """
    kappa = jax.lax.stop_gradient(kappa)
    half = (dim - 1) / 2
    b = half / (kappa + jnp.sqrt(kappa**2 + half**2))
    x0 = (1 - b) / (1 + b)
    level = kappa * x0 + 2 * half * jnp.log1p(-(x0**2))

    def propose(state: tuple) -> tuple:
        key, heights, accepted = state
        key, for_beta, for_test = jax.random.split(key, 3)
        # Beta(half, half) from two chi-squares with d - 1 degrees: compiles faster than
        # jax.random.beta
        squares = jnp.sum(jax.random.normal(for_beta, (2, n, dim - 1), kappa.dtype) ** 2, axis=-1)
        beta = squares[0] / (squares[0] + squares[1])
        fresh = (1 - (1 + b) * beta) / (1 - (1 - b) * beta)
        log_ratio = kappa * fresh + 2 * half * jnp.log1p(-x0 * fresh) - level
        passes = jnp.log(jax.random.uniform(for_test, (n,), kappa.dtype)) <= log_ratio
        return key, jnp.where(accepted, heights, fresh), accepted | passes

    start = (key, jnp.zeros(n, kappa.dtype), jnp.zeros(n, bool))
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), propose, start)[1]


def _polar_rule(natural: np.ndarray, radius: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights in polar coordinates about the mean direction, d = 2 or 3.

    The density there is e^{kappa cos(angle)}.
    """
    dim, size = len(natural), float(np.linalg.norm(natural))
    kappa = radius * size
    around = np.pi * np.arange(4 * count) / (2 * count)
    if dim == 2 and kappa > LOG_CUTOFF:
        # 2 sin(angle/2) = r / sqrt(kappa) makes the density exactly e^{-r^2/2}
        r = math.sqrt(2 * LOG_CUTOFF) * (2 * np.arange(2 * count) + 1 - 2 * count) / (2 * count)
        angle = 2 * np.arcsin(r / (2 * math.sqrt(kappa)))
        height, across = np.cos(angle)[:, None], np.sin(angle)[:, None]
        weights = np.exp(-(r**2) / 2) / np.cos(angle / 2)
    elif dim == 2:
        height, across = np.cos(around)[:, None], np.sin(around)[:, None]
        weights = np.exp(kappa * (height[:, 0] - 1))
    else:
        end = np.array(min(2.0, LOG_CUTOFF / max(kappa, 1e-300)))
        depth, w = gauss_legendre(np.array(0.0), end, 2 * count)
        h, a = (g.ravel() for g in np.meshgrid(depth, around, indexing="ij"))
        flat = np.sqrt(h * (2 - h))
        height, across = 1 - h[:, None], np.stack([flat * np.cos(a), flat * np.sin(a)], -1)
        weights = np.repeat(w, len(around)) * np.exp(-kappa * h)
    axis = natural / size if size > 0 else np.eye(dim)[0]
    # the axis and an orthonormal basis of its complement
    frame = np.linalg.svd(axis[None], full_matrices=True)[2]
    return radius * (height * axis + across @ frame[1:]), weights
