"""Participation moments of the softmax of Gaussian scores, at a cost independent of L.

For s_i iid N(0, sigma^2), i = 1..L, and p = softmax(s):

    P_k = E sum_i p_i^k,      P_22 = E (sum_i p_i^2)^2,      in general  E prod_a sum_i p_i^{k_a}.

They determine the exact finite-prompt errors of softmax attention (docs/finite_prompts.md).
"""

from functools import lru_cache

import equinox as eqx
import numpy as np
from jaxtyping import Float
from numpy.polynomial import Chebyshev

from .. import _checks
from .._arrays import Values, library
from .._typing import Array, ArrayInput
from ._domain import RESOLVED, SHORT, apply, apply_at
from ._elementwise import Kernel
from ._laplace import contract, frozen, laplace_rule

_ROUNDING = 2e-14  # rounding error of the sums in float64
# the identities weigh the errors differently than the moments do
_SAFETY = 4.0
_PROBES = ((2,), (4,), (1, 1))  # their windows contain those of the other products of order 2 to 4
# the last sigma at which `moment_functions` calls `participation`, for short and long prompts
_LAST_SHORT, _LAST_LONG = 18.0, 400.0
_HIGHEST = 64  # total order of a moment: beyond, the integrals leave the range of float64
_SERIES = 10  # degree of its series in 1/sigma


class Participation(eqx.Module):
    """P_2, P_3, P_22 of one or many (sigma, L), float64, and an estimate of the relative error."""

    p2: Float[Array, "..."]
    p3: Float[Array, "..."]
    p22: Float[Array, "..."]
    error: Float[Array, "..."]


def finite_length(L: Values) -> tuple[Values, Values]:
    """(whether `L` is finite, `L` or 2 where it is not, since an inf would spoil derivatives)."""
    xp = library(L)
    finite = xp.isfinite(L)
    return finite, xp.where(finite, L, 2.0)


def _powers(*ks: int) -> tuple[tuple[int, int], ...]:
    return tuple((0, k) for k in ks)


def participation_kernel(variance: Values, L: Values) -> tuple[Values, ...]:
    """(P_2, P_3, P_22, error) for scores of this variance.

    The error comes from sum_i p_i = 1, which holds exactly and costs nothing on the nodes at
    hand: E (sum p)^4 = 1 tests phi_0..phi_4 in the proportions of the constant 1, and E[Y_2 (sum
    p)^2] = P_2, E[Y_3 sum p] = P_3, with Y_k = sum p^k, test them relative to the small numbers
    returned.
    """
    xp = library(variance, L)
    finite, L = finite_length(L)
    rule = laplace_rule(variance, L, _PROBES)

    def moment(*ks: int) -> Values:
        return contract(rule, L, _powers(*ks))

    p2, p3, p22 = moment(2), moment(3), moment(2, 2)

    gaps = [
        xp.abs(moment(1, 1, 1, 1) - 1),
        xp.abs(moment(2, 1, 1) / p2 - 1),
        xp.abs(moment(3, 1) / p3 - 1),
    ]
    nodes = 2.0**-52 * xp.log(L)  # the rounding of nodes t = e^tau, about 1/L
    error = frozen(_ROUNDING + nodes + _SAFETY * xp.max(xp.stack(gaps), axis=0) + rule.lost)
    return tuple(xp.where(finite, value, 0.0) for value in (p2, p3, p22, error))


def participation(sigma: ArrayInput, L: ArrayInput) -> Participation:
    """P_2, P_3 and P_22 for score deviation `sigma` >= 0 and length `L`.

    `L` is real, from 1 to 1e100, or infinity. Arguments broadcast. Works under jit, vmap and grad
    in 64-bit mode; concrete arguments give float64 in any mode. The relative error is about 1e-14
    for sigma up to 12 and L up to 1e12, and is estimated in `error`. Raises for sigma > 40 with
    fewer than 100 tokens, where the quadrature is not accurate.

    >>> import largeprompt as lp
    >>> print(lp.participation(1.0, 50).p2.round(6))
    0.048706
    """
    return Participation(*apply("participation", participation_kernel, sigma, L))


def participation_at(variance: ArrayInput, L: ArrayInput) -> Participation:
    """`participation` for scores of variance sigma^2, smooth in it, also at 0."""
    return Participation(*apply_at("participation", participation_kernel, variance, L))


def moment_functions(sigma: np.ndarray, L: float) -> np.ndarray:
    """P_2 and P_2 + 6 P_3 - 6 P_22 on a leading axis, for any sigma >= 0.

    `participation` is resolved up to some deviation. Beyond it (1 - h) sigma is a power series in
    1/sigma for both functions h: two tokens share the weight only where their scores are within
    O(1) of each other, which has probability O(1/sigma).
    """
    last = _LAST_SHORT if L < SHORT / 2 else RESOLVED if L < SHORT else _LAST_LONG
    nodes = np.cos(np.pi * (np.arange(_SERIES + 1) + 0.5) / (_SERIES + 1))
    nodes = (2 + nodes) / last  # of 1/sigma
    near = sigma <= last
    found = participation(np.concatenate([1 / nodes, sigma[near]]), L)
    p2, p3, p22 = (np.asarray(a) for a in (found.p2, found.p3, found.p22))
    h = np.empty((2, *sigma.shape))
    for i, known in enumerate((p2, p2 + 6 * p3 - 6 * p22)):
        series = Chebyshev.fit(nodes, (1 - known[: _SERIES + 1]) / nodes, _SERIES)
        h[i][near] = known[_SERIES + 1 :]
        h[i][~near] = 1 - series(1 / sigma[~near]) / sigma[~near]
    return h


@lru_cache(maxsize=256)
def moment_kernel(ks: tuple[int, ...]) -> Kernel:
    """The kernel of E prod_a sum_i p_i^{k_a}; every k_a >= 2."""
    probes = tuple({(sum(ks),), ks, (1,) * sum(ks)})

    def kernel(variance: Values, L: Values) -> tuple[Values]:
        finite, L = finite_length(L)
        rule = laplace_rule(variance, L, probes)
        return (library(variance, L).where(finite, contract(rule, L, _powers(*ks)), 0.0),)

    return kernel


def _ones(variance: Values, L: Values) -> tuple[Values]:
    return (library(variance, L).ones_like(variance),)


def participation_moment(
    ks: tuple[int, ...], sigma: ArrayInput, L: ArrayInput
) -> Float[Array, "..."]:
    """$E prod_a sum_i p_i^{k_a}$ for positive integers k_a: (2,) is P_2, (2, 2) is P_22.

    Factors with k_a = 1 equal 1 and are dropped; the others add up to at most 64. `ks` is static:
    each new tuple compiles once. Relative error about 1e-13 for sum of the k_a up to 8, where the
    value is above 1e-200.

    >>> import largeprompt as lp
    >>> print(f"{lp.participation_moment((2, 2), 1.0, 50):.6f}")
    0.002710
    """
    ks = tuple(ks) if isinstance(ks, (tuple, list)) else (ks,)
    if not all(isinstance(k, int) and not isinstance(k, bool) and k >= 1 for k in ks):
        raise _checks.error(
            "ks must be a tuple of positive integers",
            repr(ks),
            "pass for example (2, 2) for E (sum p^2)^2",
        )
    ks = tuple(sorted((k for k in ks if k > 1), reverse=True))
    if sum(ks) > _HIGHEST:
        raise _checks.error(
            f"the orders in ks must add up to at most {_HIGHEST}",
            f"{_checks.shown(ks)}, which add up to {_checks.shown(sum(ks))}",
            "take lower orders: for large k the largest weight alone matters",
        )
    kernel = moment_kernel(ks) if ks else _ones
    return apply("participation_moment", kernel, sigma, L)[0]
