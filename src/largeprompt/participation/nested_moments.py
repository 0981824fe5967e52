"""Moments of the softmaxes of a prompt and of its first tokens.

p is the softmax of the first L_1 scores and q that of all L_2, iid N(0, sigma^2). In the Laplace
integral of `pair_moments` the first tokens see t + w and the others w,

    E e^{-t S_1 - w S_2} = phi_0(t + w)^{L_1} phi_0(w)^{L_2 - L_1},

so the one-token functions phi_k(t) = E[e^{ks} exp(-t e^s)] of one softmax suffice. A block of
factors with a power of p sits on one of the first tokens, a block of powers of q on any token.
"""

import itertools
import math

import jax
import numpy as np

from .. import _checks
from .._arrays import Values, library
from .._lengths import length_array
from .._typing import ArrayInput
from ._domain import apply
from ._laplace import frozen, laplace_window
from .pair_moments import (
    LAPLACE_NODES,
    PROBES,
    TOP,
    PairMoments,
    aliasing,
    collected,
    for_each_row,
    log_of_phi,
    powers,
    reach_of,
    resolved_deviation,
    score_nodes,
)
from .partitions import Block, merged_blocks


def _one_prompt(
    sigma: Values, first: Values, rest: Values, *placement: Values
) -> tuple[Values, ...]:
    """The fields of `PairMoments` for one prompt of first + rest tokens: scalars."""
    xp = library(sigma, first, rest)
    low_t, low_w, high_t, high_w, reach = placement
    x = reach * np.linspace(-1.0, 1.0, score_nodes(sigma, sigma, reach))
    normal = xp.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    unit_t, unit_w = (np.linspace(0.0, 1.0, nodes) for nodes in LAPLACE_NODES)
    tau, omega = low_t + (high_t - low_t) * unit_t, low_w + (high_w - low_w) * unit_w
    both = xp.logaddexp(tau[:, None], omega)  # ln(t + w)

    def one_token(log_t: Values) -> tuple[Values, Values]:
        """log phi_0, and t^k phi_k/phi_0 on a leading axis, at a vector of ln t."""
        rows = powers(log_t[:, None] + sigma * x, TOP + 1) @ normal
        log_phi, good = log_of_phi(rows[0], rows[1])
        log_phi = xp.where(good, log_phi, -1e4)
        return log_phi, xp.where(good, rows[1:] * xp.exp(-log_phi), 0.0)

    if xp is np:
        log_first, ratios = map(np.array, zip(*map(one_token, both), strict=True))
    else:
        log_first, ratios = jax.lax.map(one_token, both)
    log_rest, ratios_rest = one_token(omega)
    step = (tau[1] - tau[0]) * (omega[1] - omega[0])
    weight = step * xp.exp(first * log_first + rest * log_rest)
    share_t, share_w = xp.exp(tau[:, None] - both), xp.exp(omega - both)

    def moment(*factors: Block) -> Values:
        total = 0.0
        for blocks, multiplicity in merged_blocks(factors):
            for places in itertools.product(*((0,) if k else (0, 1) for k, _ in blocks)):
                product, used = weight * float(multiplicity), [0, 0]
                for (k, l), place in zip(blocks, places, strict=True):
                    product = product * ((first, rest)[place] - used[place])
                    if place:
                        product = product * ratios_rest[l]
                    else:
                        product = product * ratios[:, k + l] * share_t**k * share_w**l
                    used[place] += 1
                total = total + product.sum()
        orders = map(sum, zip(*factors, strict=True))
        return total / math.prod(math.factorial(order - 1) for order in orders)

    return collected(moment, aliasing(sigma * (x[1] - x[0])))


def _kernel(sigma: Values, first: Values, length: Values) -> tuple[Values, ...]:
    """The fields of `PairMoments` for vectors of arguments."""
    xp = library(sigma, first, length)
    finite = xp.isfinite(length)
    first, length = (xp.where(finite, size, 1.0) for size in (first, length))
    lengths = frozen(xp.stack([first, length]))
    deviations = frozen(xp.stack([sigma, sigma]))
    window = laplace_window(deviations, lengths, PROBES)
    reach = xp.max(reach_of(deviations, lengths), axis=0)
    args = (sigma, first, length - first, *window.low, *window.high, reach)
    return tuple(xp.where(finite, value, 0.0) for value in for_each_row(_one_prompt, args))


def nested_moments(sigma: ArrayInput, first: ArrayInput, L: ArrayInput) -> PairMoments:
    """Moments of the softmaxes p of the `first` tokens and q of all `L` tokens of one prompt.

    Deviations `sigma` from 0 to 12; 1 <= first <= L, and L may be infinite. Arguments broadcast.
    Works under jit, vmap and grad in 64-bit mode.

    >>> from largeprompt.participation import nested_moments
    >>> print(f"{nested_moments(1.0, 5, 10).c11:.6f}")  # E sum_i p_i q_i
    0.171421
    """
    name = "nested_moments"
    sigma = resolved_deviation(name, sigma)
    first, length = length_array(first, name), length_array(L, name)
    first = _checks.require(
        first,
        first > length,
        rule="the first tokens must be at most all tokens of the prompt",
        received="a larger number than L",
        fix="pass first <= L",
    )
    return PairMoments(*apply(name, _kernel, sigma, first, length))
