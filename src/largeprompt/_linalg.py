"""Square roots of numbers and of semi-definite matrices, differentiable where `eigh` is not."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from ._arrays import Values, library
from ._typing import Array


def psd_sqrt(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The symmetric square root of a positive semi-definite matrix."""
    if isinstance(matrix, Tracer):
        return _psd_sqrt(matrix)
    values, vectors = np.linalg.eigh(np.asarray(matrix))  # nothing to compile
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return jax.device_put(root) if isinstance(matrix, jax.Array) else root


@jax.custom_jvp
def _psd_sqrt(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T


@_psd_sqrt.defjvp
def _psd_sqrt_jvp(primals: tuple, tangents: tuple) -> tuple:
    """S dS + dS S = dM solved in the eigenbasis.

    Autodiff through `eigh` divides by eigenvalue gaps and fails at the identity; the square root
    itself is smooth there. Along directions inside the null space the root has no derivative; 0 is
    returned for them.
    """
    (matrix,), (tangent,) = primals, tangents
    values, vectors = jnp.linalg.eigh(matrix)
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    sums = roots[:, None] + roots[None, :]
    inner = vectors.T @ tangent @ vectors
    solved = jnp.where(sums > 0, inner / jnp.where(sums > 0, sums, 1.0), 0.0)
    return (vectors * roots) @ vectors.T, vectors @ solved @ vectors.T


def triangular_root(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A matrix B with B B' = gram, for small semi-definite matrices, singular ones too.

    Column by column in plain JAX: a batch of `eigh` inside a compiled program can wait forever for
    the threads that the program occupies. Columns that are rounding errors are 0, and so is their
    derivative.
    """
    count = len(gram)
    least = 8 * count * jnp.finfo(gram.dtype).eps * jnp.diagonal(gram)

    def next_column(left: Array, j: Array) -> tuple[Array, Array]:
        present = left[j, j] > least[j]
        column = jnp.where(present, left[j] / jnp.sqrt(jnp.where(present, left[j, j], 1.0)), 0.0)
        return left - column[:, None] * column, column

    _, columns = jax.lax.scan(next_column, gram, jnp.arange(count), unroll=min(count, 8))
    return columns.T


def safe_sqrt(x: Values) -> Values:
    """Square root with derivative 0 at 0, for functions that are even in the root."""
    xp, positive = library(x), x > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, 1.0)), 0.0)


@jax.custom_jvp
def without_slope(value: Array, where: Array) -> Array:
    """The value, with derivative NaN where no right one is at hand."""
    return value


@without_slope.defjvp
def _without_slope_jvp(primals: tuple, tangents: tuple) -> tuple:
    return primals[0], jnp.where(primals[1], jnp.nan, 1.0) * tangents[0]


def covariance_root(cov: np.ndarray) -> np.ndarray:
    """A matrix B with B B' = cov, for singular covariances too (NumPy)."""
    values, axes = np.linalg.eigh(cov)
    return axes * np.sqrt(np.maximum(values, 0.0))
