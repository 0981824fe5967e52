"""Tilted moments of a finite set of tokens: one summary, computed per block and merged across blocks.

For tokens x_i with weights w_i and a tilt u the summary holds

    log Z = log sum_i w_i e^{<u, x_i>},    mean = sum_i p_i x_i,    cov = sum_i p_i (x_i - mean)(x_i - mean)',

p_i = w_i e^{<u, x_i>} / Z. Two summaries of disjoint sets of tokens merge into the summary of their union; the merge is
associative and commutative, so blocks of one array, and shards of one prompt, are put together by the same function.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._softmax_sums import SoftmaxSums, finite_top

# sizes to try, nearest to 1000 first: measured flat from 500 to 5000
_CHUNKS = sorted(range(512, 4097), key=lambda size: abs(size - 1000))


class TiltedMoments(eqx.Module):
    """(log normaliser, weighted mean, weighted covariance or None) of tokens tilted by u; leading axes are queries."""

    log_normaliser: Float[Array, "*batch"]
    mean: Float[Array, "*batch d"]
    cov: Float[Array, "*batch d d"] | None

    def merge(self, other: "TiltedMoments") -> "TiltedMoments":
        """The summary of the union of the two sets of tokens."""
        return jax.tree.map(lambda *pair: jnp.stack(pair), self, other).union()

    def union(self) -> "TiltedMoments":
        """The summary of all sets of tokens along the first axis."""
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
) -> TiltedMoments:
    """The summary of all points at once, for q tilts; `log_weights=None` means weight 1 each (not normalised).

    Points narrower than the tilts (bfloat16 tokens) are widened here, a block at a time: all arithmetic has the tilts' precision.
    """
    points = points.astype(tilts.dtype)
    if log_weights is not None:
        log_weights = log_weights.astype(tilts.dtype)
    scores = _scores(points, tilts)
    if log_weights is not None:
        scores = scores + log_weights
    top = finite_top(jax.lax.stop_gradient(jnp.max(scores, axis=-1)))
    terms = jnp.exp(scores - top[:, None])
    sums = SoftmaxSums(top, (jnp.sum(terms, axis=-1), _weighted_sums(terms, points)))
    log_normaliser, (mean,) = sums.averages()
    if not with_cov:
        return TiltedMoments(log_normaliser, mean, None)

    def covariance(probabilities: Float[Array, " n"], centre: Float[Array, " d"]) -> Array:
        gaps = points - centre
        return jnp.matmul((probabilities[:, None] * gaps).T, gaps, precision="highest")

    # one tilt at a time: n x d numbers of work space instead of q x n x d
    total = sums.first[0]
    probabilities = terms / jnp.where(total > 0, total, 1.0)[:, None]
    cov = jax.lax.map(lambda pair: covariance(*pair), (probabilities, mean))
    return TiltedMoments(log_normaliser, mean, cov)


def _scores(points: Float[Array, "n d"], tilts: Float[Array, "q d"]) -> Float[Array, "q n"]:
    if (
        tilts.shape[0] == 1
    ):  # a matrix-vector product, which XLA runs on all cores; its 1-row product it does not
        return jnp.matmul(points, tilts[0], precision="highest")[None]
    return jnp.matmul(tilts, points.T, precision="highest")


def _weighted_sums(terms: Float[Array, "q n"], points: Float[Array, "n d"]) -> Float[Array, "q d"]:
    """Terms @ points. For one query a long vector-matrix product is summed chunk by chunk.

    XLA on a CPU runs a plain vector-matrix product on one core and adds its n terms one after the other, which in float32
    costs two digits at n = 1e6. A batch of short products is threaded and pairwise. Slicing or padding the tokens would
    copy them, so the chunk must divide n; where no divisor fits, a product with a second row of zeros serves.
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
