"""Moments of softmax weights and scores together: E prod_a sum_i (s_i - c)^{j_a} p_i^{k_a}.

The general engine (see docs/finite_prompts.md): the partition sum of the participation moments with
psi_{j,k}(t) = E[(s-c)^j e^{ks} exp(-t e^s)] in place of phi_k.  Odd j makes the integrands change
sign, and differences of such moments cancel at large L: `stein` reduces them to participation
moments, and each is the judge of the other.
"""

import math
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values, library
from .._float64 import is_traced
from .._typing import Array, ArrayInput
from ._domain import apply
from ._elementwise import Kernel
from ._laplace import Probes, contract, laplace_rule
from .weight_moments import finite_length

Factors = tuple[tuple[int, int], ...]  # (j, k) stands for sum_i (s_i - c)^j p_i^k


def checked_factors(factors: Factors) -> Factors:
    """Validate the factors (every j >= 0 and k >= 1) and sort them."""
    pairs: Factors = ()
    try:
        pairs = tuple((int(j), int(k)) for j, k in factors)
        good = bool(pairs) and all(j >= 0 and k >= 1 for j, k in pairs)
        good = good and pairs == tuple(tuple(pair) for pair in factors)
    except (TypeError, ValueError, OverflowError, RuntimeError, np.ma.MaskError):
        good = False
    if not good:
        raise _checks.error(
            "factors must be a non-empty tuple of integer pairs (j, k) with j >= 0, k >= 1",
            repr(factors),
            "pass for example ((1, 1), (1, 1)) for (sum_i p_i s_i)^2",
        )
    return tuple(sorted(pairs, reverse=True))


def probes_for(factors: Factors) -> Probes:
    """Products whose windows contain those of all partitions: all apart, as given, all in one."""
    order = sum(k for _, k in factors)
    return tuple({(1,) * order, tuple(sorted(k for _, k in factors)), (order,)})


def _tilted_limit(factors: Factors, variance: Values, centre: Values) -> Values:
    """Limit L -> inf: sum_i (s_i - c)^j p_i tends to E(sigma^2 - c + sigma g)^j; k >= 2 gives 0."""
    xp = library(variance)
    value = xp.ones_like(variance)
    for j, k in factors:
        if k >= 2:
            return xp.zeros_like(variance)
        mean = variance - centre
        value = value * sum(
            math.comb(j, 2 * i) * math.prod(range(1, 2 * i, 2)) * variance**i * mean ** (j - 2 * i)
            for i in range(j // 2 + 1)
        )
    return value


@lru_cache(maxsize=256)
def _kernel(factors: Factors) -> Kernel:
    probes, power = probes_for(factors), sum(j for j, _ in factors)

    def kernel(variance: Values, L: Values, centre: Values) -> tuple[Values]:
        finite, L = finite_length(L)
        rule = laplace_rule(variance, L, probes, power, centre)
        value = contract(rule, L, factors)
        limit = _tilted_limit(factors, variance, centre)
        return (library(variance, L).where(finite, value, limit),)

    return kernel


def score_moment(
    factors: Factors, sigma: ArrayInput, L: ArrayInput, centre: ArrayInput = 0.0
) -> Float[Array, "..."]:
    """$E prod_a sum_i (s_i - centre)^{j_a} p_i^{k_a}$ for `factors` ((j_1, k_1), ...), k_a >= 1.

    `factors` is static: each new tuple compiles once. Accurate to about 1e-13 of E prod_a sum_i
    |s_i - centre|^{j_a} p_i^{k_a}; choose `centre` near where the weight sits (sigma^2 at large
    L) if the scores are far from 0.

    >>> import largeprompt as lp
    >>> print(lp.score_moment(((1, 1),), 1.0, 50).round(6))  # E sum p_i s_i = sigma^2 (1 - P_2)
    0.951294
    """
    if not is_traced(centre):
        centre = _checks.known_finite("centre", centre)
    return apply("score_moment", _kernel(checked_factors(factors)), sigma, L, centre)[0]
