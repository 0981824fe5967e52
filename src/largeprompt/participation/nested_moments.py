"""Moments of the softmaxes of the first tokens of a prompt and of all its tokens.

p is the softmax of the scores s_i of the first L_1 tokens and q that of the scores r_i of all L_2,
(s_i, r_i) jointly Gaussian as in `pair_moments`: two heads, or one with s = r. In the Laplace
integral the first tokens have a factor of t and of w, the others of w alone,

    E e^{-t S_1 - w R_2} = phi_00(t, w)^{L_1} phi_00(0, w)^{L_2 - L_1}.

A block of factors with a power of p sits on one of the first tokens, a block of powers of q on any
token.
"""

import itertools
import math

from .. import _checks
from .._arrays import Values, library
from .._lengths import length_array
from .._typing import ArrayInput
from . import _small_variance
from ._domain import apply, apply_at
from ._laplace import frozen, laplace_window
from .pair_moments import (
    PROBES,
    PairMoments,
    aliasing,
    checked_correlation,
    collected,
    for_each_row,
    log_of_phi,
    one_score,
    one_token,
    powers,
    reach_of,
    resolved_deviation,
)
from .partitions import Block, merged_blocks


def _one_prompt(
    variance_a: Values,
    variance_b: Values,
    covariance: Values,
    first: Values,
    rest: Values,
    *placement: Values,
) -> tuple[Values, ...]:
    """The fields of `PairMoments` for one prompt of first + rest tokens: scalars."""
    xp = library(variance_a, variance_b, covariance, first, rest)
    token = one_token(variance_a, variance_b, covariance, placement)
    phi, log_first, good, omega, step, x, spacing = token
    inverse = xp.where(good, xp.exp(-log_first), 0.0)
    scores, normal, _ = one_score(variance_b, x)
    rows = powers(omega[:, None] + scores) @ normal[0]  # the same at t = 0
    log_rest, good_rest = log_of_phi(rows[0], rows[1], _small_variance.ROUNDING)
    rows = xp.where(good_rest, rows[1:] * xp.exp(-log_rest), 0.0)
    weight = xp.where(good & good_rest, step * xp.exp(first * log_first + rest * log_rest), 0.0)

    def moment(*factors: Block) -> Values:
        total = 0.0
        for blocks, multiplicity in merged_blocks(factors):
            for places in itertools.product(*((0,) if k else (0, 1) for k, _ in blocks)):
                product, used = weight * float(multiplicity), [0, 0]
                for block, place in zip(blocks, places, strict=True):
                    value = rows[block[1]] if place else phi[block] * inverse
                    product = product * ((first, rest)[place] - used[place]) * value
                    used[place] += 1
                total = total + product.sum()
        orders = map(sum, zip(*factors, strict=True))
        return total / math.prod(math.factorial(order - 1) for order in orders)

    return collected(moment, aliasing(spacing))


def _kernel(
    variance_a: Values, first: Values, variance_b: Values, covariance: Values, length: Values
) -> tuple[Values, ...]:
    """The fields of `PairMoments` for vectors of arguments."""
    xp = library(variance_a, first, variance_b, covariance, length)
    finite = xp.isfinite(length)
    first, length = (xp.where(finite, size, 1.0) for size in (first, length))
    lengths = frozen(xp.stack([first, length]))
    deviations = xp.sqrt(frozen(xp.stack([variance_a, variance_b])))
    window = laplace_window(deviations, lengths, PROBES)
    reach = xp.max(reach_of(deviations, lengths), axis=0)
    args = (variance_a, variance_b, covariance, first, length - first)
    args = (*args, *window.low, *window.high, reach)
    return tuple(xp.where(finite, value, 0.0) for value in for_each_row(_one_prompt, args))


def nested_moments(sigma: ArrayInput, first: ArrayInput, L: ArrayInput) -> PairMoments:
    """Moments of the softmaxes p of the `first` tokens and q of all `L` tokens of one prompt.

    Deviations `sigma` from 0 to 12; 1 <= first <= L, and L may be infinite. Arguments broadcast.
    Works under jit, vmap and grad in 64-bit mode.

    >>> from largeprompt.participation import nested_moments
    >>> print(f"{nested_moments(1.0, 5, 10).c11:.6f}")  # E sum_i p_i q_i
    0.171421
    """
    return nested_pair_moments(sigma, sigma, 1.0, first, L)


def nested_pair_moments(
    sigma_a: ArrayInput, sigma_b: ArrayInput, rho: ArrayInput, first: ArrayInput, L: ArrayInput
) -> PairMoments:
    """The same for two heads: p is the softmax of the scores of one head on the `first` tokens, q
    that of the other on all tokens; deviations and correlation `rho` as in `pair_moments`.

    >>> from largeprompt.participation import nested_pair_moments
    >>> print(f"{nested_pair_moments(1.0, 1.0, -1.0, 5, 10).c11:.6f}")  # opposite heads
    0.050985
    """
    name = "nested_moments"
    sigma_a, sigma_b = (resolved_deviation(name, sigma) for sigma in (sigma_a, sigma_b))
    covariance = checked_correlation(name, rho) * sigma_a * sigma_b
    first, length = checked_lengths(name, first, L)
    return PairMoments(*apply(name, _kernel, sigma_a, first, sigma_b**2, covariance, length))


def nested_pair_moments_at(
    variance_a: ArrayInput,
    variance_b: ArrayInput,
    covariance: ArrayInput,
    first: ArrayInput,
    L: ArrayInput,
) -> PairMoments:
    """The same for scores of these variances and covariance, smooth in them, also at 0."""
    name = "nested_moments"
    variance_a, variance_b = (resolved_deviation(name, v, 2) for v in (variance_a, variance_b))
    first, length = checked_lengths(name, first, L)
    return PairMoments(*apply_at(name, _kernel, variance_a, first, variance_b, covariance, length))


def checked_lengths(name: str, first: ArrayInput, L: ArrayInput) -> tuple[Values, Values]:
    """Validate numbers of tokens, 1 <= first <= L, and cast them to float64."""
    first, length = length_array(first, name), length_array(L, name)
    first = _checks.require(
        first,
        first > length,
        rule="the first tokens must be at most all tokens of the prompt",
        received="a larger number than L",
        fix="pass first <= L",
    )
    return first, length
