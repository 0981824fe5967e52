"""Sums over tokens weighted by e^{score}, kept relative to the largest score: the online softmax.

With scores s_i, M = max_i s_i and w_i = e^{s_i - M}, the sums sum_i w_i f_i neither overflow nor
vanish. Sums over disjoint sets of tokens merge after both are rescaled to the larger M. Blocks of
tokens, parts of a kernel's grid and shards on several devices are all merged by this class, inside
kernels too.
"""

from typing import NamedTuple

import jax.numpy as jnp

from ._typing import Array

NO_WEIGHT = -1e30  # score of an absent token inside kernels: with -inf, differences are NaN


class SoftmaxSums(NamedTuple):
    """The reference score `top` (M above), the sums of w f, and the sums of w^2 f.

    The axes of `top` are the leading axes of every sum.
    """

    top: Array
    first: tuple[Array, ...]
    second: tuple[Array, ...] = ()

    def rescaled(self, top: Array) -> "SoftmaxSums":
        """The same sums relative to another score."""
        factor = jnp.exp(self.top - top)
        return SoftmaxSums(
            top,
            tuple(_times(factor, s) for s in self.first),
            tuple(_times(factor, _times(factor, s)) for s in self.second),
        )

    def add(self, other: "SoftmaxSums") -> "SoftmaxSums":
        """The sums over both sets of tokens, which must have the same `top`."""
        return SoftmaxSums(
            self.top,
            tuple(x + y for x, y in zip(self.first, other.first, strict=True)),
            tuple(x + y for x, y in zip(self.second, other.second, strict=True)),
        )

    def merge(self, other: "SoftmaxSums") -> "SoftmaxSums":
        """The sums over both sets of tokens."""
        top = finite_top(jnp.maximum(self.top, other.top))
        return self.rescaled(top).add(other.rescaled(top))

    def total(self, axis: int) -> "SoftmaxSums":
        """The sums over all sets of tokens along an axis of `top`."""
        return self.total_from(finite_top(jnp.max(self.top, axis=axis, keepdims=True)), axis)

    def total_from(self, top: Array, axis: int) -> "SoftmaxSums":
        """`total` relative to a given score, whose shape keeps the axis with length 1."""
        scaled = self.rescaled(top)
        return SoftmaxSums(
            jnp.squeeze(top, axis),
            tuple(jnp.sum(s, axis=axis) for s in scaled.first),
            tuple(jnp.sum(s, axis=axis) for s in scaled.second),
        )

    def averages(self) -> tuple[Array, tuple[Array, ...]]:
        """log sum_i e^{s_i} and the softmax averages of f; the first sum must be that of w itself.

        Without any weight the logarithm is -inf and the averages are 0.
        """
        total, *sums = self.first
        present = total > 0
        safe = jnp.where(present, total, 1.0)
        inverse = jnp.where(present, 1 / safe, 0.0)
        log_sum = jnp.where(present, self.top + jnp.log(safe), -jnp.inf)
        return log_sum, tuple(_times(inverse, s) for s in sums)


def finite_top(top: Array) -> Array:
    """Replace -inf, the largest score of a set without weight, by 0: its sums are 0 there."""
    return jnp.where(top > -jnp.inf, top, 0.0)


def _times(factor: Array, values: Array) -> Array:
    """Multiply along the leading axes."""
    return jnp.expand_dims(factor, tuple(range(factor.ndim, values.ndim))) * values
