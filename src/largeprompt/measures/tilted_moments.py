"""Tilted moments of a finite set of tokens, computed by block and merged.

For tokens x_i with weights w_i and a tilt u these are

    log Z = log sum_i w_i e^{<u, x_i>},
    mean = sum_i p_i x_i,
    cov = sum_i p_i (x_i - mean)(x_i - mean)',

p_i = w_i e^{<u, x_i>} / Z. The moments of disjoint sets of tokens merge into those of their union.
The merge is associative and commutative, so it serves blocks of an array and shards of a prompt.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from .._softmax_sums import SoftmaxSums, finite_top
from .._typing import Array

# sizes to try, nearest to 1000 first: measured flat from 500 to 5000
_CHUNKS = sorted(range(512, 4097), key=lambda size: abs(size - 1000))


class TiltedMoments(eqx.Module):
    """Log normaliser, mean and covariance (or None) of tilted tokens; leading axes are queries."""

    log_normaliser: Float[Array, "*batch"]
    mean: Float[Array, "*batch d"]
    cov: Float[Array, "*batch d d"] | None

    def merge(self, other: "TiltedMoments") -> "TiltedMoments":
        """Moments of the union of two sets of tokens."""
        return jax.tree.map(lambda *pair: jnp.stack(pair), self, other).union()

    def union(self) -> "TiltedMoments":
        """Moments of the union of all sets of tokens along the first axis."""
        logs = self.log_normaliser
        top = finite_top(jax.lax.stop_gradient(jnp.max(logs, axis=0, keepdims=True)))

        def average(values: Array) -> tuple[Array, Array]:
            sums = SoftmaxSums(logs, (jnp.ones_like(logs), values))
            log_normaliser, (found,) = sums.total_from(top, 0).averages()
            return log_normaliser, found

        log_normaliser, mean = average(self.mean)
        if self.cov is None:
            return TiltedMoments(log_normaliser, mean, None)
        gaps = self.mean - mean
        _, cov = average(self.cov + gaps[..., :, None] * gaps[..., None, :])
        return TiltedMoments(log_normaliser, mean, cov)


@partial(jax.jit, static_argnames="with_cov")
def tilted_moments(
    points: Float[Array, "n d"],
    log_weights: Float[Array, " n"] | None,
    tilts: Float[Array, "q d"],
    *,
    with_cov: bool = False,
    values: Float[Array, "n v"] | None = None,
) -> TiltedMoments:
    """Moments of all points at once, for q tilts; `log_weights=None` means weight 1 for each point.

    With `values`, the points give the weights only and the mean is that of the values. Points of
    lower precision than the tilts (bfloat16 tokens) are cast to the dtype of the tilts.
    """
    points = points.astype(tilts.dtype)
    if log_weights is not None:
        log_weights = log_weights.astype(tilts.dtype)
    scores = _scores(points, tilts)
    if log_weights is not None:
        scores = scores + log_weights
    top = finite_top(jax.lax.stop_gradient(jnp.max(scores, axis=-1)))
    terms = jnp.exp(scores - top[:, None])
    read = points if values is None else values.astype(tilts.dtype)
    sums = SoftmaxSums(top, (jnp.sum(terms, axis=-1), _weighted_sums(terms, read)))
    log_normaliser, (mean,) = sums.averages()
    if not with_cov:
        return TiltedMoments(log_normaliser, mean, None)

    def covariance(probabilities: Float[Array, " n"], centre: Float[Array, " d"]) -> Array:
        gaps = points - centre
        return jnp.matmul((probabilities[:, None] * gaps).T, gaps, precision="highest")

    # one tilt at a time: needs memory for n x d numbers instead of q x n x d
    total = sums.first[0]
    probabilities = terms / jnp.where(total > 0, total, 1.0)[:, None]
    cov = jax.lax.map(lambda pair: covariance(*pair), (probabilities, mean))
    return TiltedMoments(log_normaliser, mean, cov)


def _scores(points: Float[Array, "n d"], tilts: Float[Array, "q d"]) -> Float[Array, "q n"]:
    if tilts.shape[0] == 1:  # XLA runs a matrix-vector product on all cores, a 1-row product not
        return jnp.matmul(points, tilts[0], precision="highest")[None]
    return jnp.matmul(tilts, points.T, precision="highest")


def _weighted_sums(terms: Float[Array, "q n"], points: Float[Array, "n d"]) -> Float[Array, "q d"]:
    """The product terms @ points; for one query and many tokens it is summed by chunks.

    XLA on a CPU runs a plain vector-matrix product on one core and adds its n terms sequentially,
    which in float32 loses two digits at n = 1e6. A batch of short products is threaded and summed
    pairwise. Slicing or padding the tokens would copy them, so the chunk must divide n; if no
    divisor fits, a second row of zeros makes it a matrix product.
    """
    n = points.shape[0]
    if terms.shape[0] != 1 or n < 4 * _CHUNKS[0]:
        return jnp.matmul(terms, points, precision="highest")
    chunk = next((size for size in _CHUNKS if n % size == 0), None)
    if chunk is None:
        padded = jnp.concatenate([terms, jnp.zeros_like(terms)])
        return jnp.matmul(padded, points, precision="highest")[:1]
    weights, tokens = terms.reshape(-1, chunk), points.reshape(n // chunk, chunk, -1)
    return jnp.sum(jnp.einsum("cb,cbd->cd", weights, tokens, precision="highest"), axis=0)[None]
