"""The online softmax that engines, kernels and shards share, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from largeprompt._softmax_sums import SoftmaxSums
from largeprompt.measures import tilted_moments

RNG = np.random.default_rng(0)
SCORES = np.array([900.0, -900.0, 3.0, 2.0, 901.0, 4.0])  # e^900 overflows
VALUES = RNG.normal(size=(6, 2))


def _sums(rows: slice) -> SoftmaxSums:
    scores, values = jnp.asarray(SCORES[rows]), jnp.asarray(VALUES[rows])
    top = jnp.max(scores)
    w = jnp.exp(scores - top)
    return SoftmaxSums(top, (jnp.sum(w), w @ values), (jnp.sum(w**2), w**2 @ values))


def _expected() -> tuple[np.ndarray, ...]:
    w = np.exp(SCORES - SCORES.max())
    return SCORES.max(), w.sum(), w @ VALUES, (w**2).sum(), w**2 @ VALUES


def test_softmax_sums_merge_and_total_agree_with_numpy():
    parts = [_sums(slice(0, 2)), _sums(slice(2, 3)), _sums(slice(3, 6))]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    stacked: SoftmaxSums = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    for found in (merged, stacked.total(0)):
        for got, want in zip(jax.tree.leaves(found), _expected(), strict=True):
            assert np.allclose(got, want, rtol=1e-13)
    log_sum, (mean,) = merged.averages()
    top, total, first, *_ = _expected()
    assert np.allclose(log_sum, top + np.log(total), rtol=1e-13)
    assert np.allclose(mean, first / total, rtol=1e-13)


def test_softmax_sums_without_weight_add_nothing():
    nothing = SoftmaxSums(jnp.asarray(-jnp.inf), (jnp.zeros(()), jnp.zeros(2)))
    some = SoftmaxSums(*_sums(slice(0, 6))[:2])
    for merged in (some.merge(nothing), nothing.merge(some)):
        for got, want in zip(jax.tree.leaves(merged), jax.tree.leaves(some), strict=True):
            assert np.allclose(got, want, rtol=1e-13)
    log_sum, (mean,) = nothing.merge(nothing).averages()
    assert log_sum == -jnp.inf
    assert np.array_equal(mean, np.zeros(2))


def test_tilted_moments_merge_with_an_empty_block_has_finite_gradients():
    """A shard or a block may hold padding alone."""
    points, empty = jnp.asarray(VALUES), jnp.full(6, -jnp.inf)

    def total(tilt, with_padding):
        moments = tilted_moments(points, None, tilt[None], with_cov=True)
        if with_padding:
            moments = moments.merge(tilted_moments(points, empty, tilt[None], with_cov=True))
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(moments))

    tilt = jnp.asarray([0.3, -0.5])
    slope = jax.jit(jax.grad(total), static_argnums=1)
    plain, padded = (slope(tilt, with_padding) for with_padding in (False, True))
    assert np.allclose(plain, padded, rtol=1e-12)
