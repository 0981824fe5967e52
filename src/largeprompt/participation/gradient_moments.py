"""Moments of scores and weights in the exact gradient error of softmax attention.

See docs/finite_prompts.md.

With Y_k = sum_i p_i^k, m = sum_i p_i s_i and Var = sum_i p_i (s_i - m)^2:

    variance_error = E (Var/sigma^2 - 1)^2
    dispersion     = E sum_i p_i^2 (s_i - m)^2 / sigma^2                    (D/sigma^2)
    coupling       = E[Var Y_2]/sigma^2 - P_2
    E(1 - Y_2)^2 - 2(1 - P_2) + 1 = P_22                                    (no 1 is left)

Two exact forms are evaluated and the better conditioned one is kept.  The Stein form is a
polynomial in sigma^2 with participation moments: the leading 1's have cancelled symbolically, so
it is sharp when the moments are small (large L), and it has large coefficients of both signs when
they are not.  The direct form, with scores centred where the weight sits, is sharp when the
result is not small (frozen phase).  sigma = 0 is the Stein form at 0: no limit to take.
"""

from functools import lru_cache

import equinox as eqx
from jaxtyping import Float

from .._arrays import Values, library
from .._typing import Array, ArrayInput
from ._domain import apply, apply_at
from ._laplace import Rule, contract, frozen, laplace_rule
from .score_moments import Factors
from .stein import Combination, Polynomial, combine, moment_probes
from .weight_moments import finite_length

_ROUNDING = 2e-14  # relative error of one participation or score moment
_SMALL = 0.5  # below this sigma the Stein form has nothing to cancel


class GradientMoments(eqx.Module):
    """Moments for the gradient error, float64.

    `error` bounds the rounding error of the last three relative to the larger of the quantity and
    P_22 (`coupling` changes sign, `dispersion` vanishes at L = 1, so their own size is no scale).
    """

    p2: Float[Array, "..."]
    p3: Float[Array, "..."]
    p22: Float[Array, "..."]
    variance_error: Float[Array, "..."]
    dispersion: Float[Array, "..."]
    coupling: Float[Array, "..."]
    error: Float[Array, "..."]
    # differences over powers of sigma^2, finite at 0; sharp for small sigma, 0 for large
    linear: Float[Array, "..."]
    crossed: Float[Array, "..."]
    quadratic: Float[Array, "..."]


# (combination of products of Y(j,k), divided by sigma^2 to the power): each quantity is the sum
# of its parts. Factors (0, 1), which equal 1, bring every product to total order 4, so that one
# set of nodes serves all of the direct form.
_MEAN, _SQUARE, _ONE, _TWO = (1, 1), (2, 1), (0, 1), (0, 2)
_QUANTITIES: dict[str, tuple[tuple[Combination, int], ...]] = {
    "variance_error": (
        (
            {
                (_SQUARE, _SQUARE, _ONE, _ONE): 1,
                (_SQUARE, _MEAN, _MEAN, _ONE): -2,
                (_MEAN, _MEAN, _MEAN, _MEAN): 1,
            },
            2,
        ),
        ({(_SQUARE, _ONE, _ONE, _ONE): -2, (_MEAN, _MEAN, _ONE, _ONE): 2}, 1),
        ({(_ONE, _ONE, _ONE, _ONE): 1}, 0),
    ),
    "dispersion": (
        ({((2, 2), _ONE, _ONE): 1, ((1, 2), _MEAN, _ONE): -2, (_TWO, _MEAN, _MEAN): 1}, 1),
    ),
    "coupling": (
        ({(_SQUARE, _TWO, _ONE): 1, (_MEAN, _MEAN, _TWO): -1}, 1),
        ({(_TWO, _ONE, _ONE): -1}, 0),
    ),
}


@lru_cache(maxsize=8)
def stein_form(name: str) -> Polynomial:
    """{power of sigma^2: {ks: integer}} of one of the quantities; exact."""
    return combine(*_QUANTITIES[name])


_P22 = {(_TWO, _TWO): 1}
# E sum_{i != j} p_i^2 p_j^2 (..) at given weights
_DISTINCT = {(_TWO,): 1, ((0, 3),): -2, (_TWO, _TWO): 1}


@lru_cache(maxsize=1)
def quotients() -> dict[str, Polynomial]:
    """Differences of the quantities that vanish at sigma = 0, over the power of sigma^2 at which
    they do:

        linear    = (dispersion - distinct) / sigma^2
        crossed   = (dispersion - P_22 - distinct - coupling) / sigma^2
        quadratic = (variance_error - 4 dispersion + P_22 + 2 distinct + 2 coupling) / sigma^4

    with distinct = P_2 - 2 P_3 + P_22. Lower powers have cancelled symbolically.
    """
    rows = {
        "linear": ({"dispersion": 1}, 0, -1, 1),
        "crossed": ({"dispersion": 1, "coupling": -1}, -1, -1, 1),
        "quadratic": ({"variance_error": 1, "dispersion": -4, "coupling": 2}, 1, 2, 2),
    }
    found = {}
    for name, (weights, of_p22, of_distinct, power) in rows.items():
        parts = [(weight, *part) for each, weight in weights.items() for part in _QUANTITIES[each]]
        parts += [(of_p22, _P22, 0), (of_distinct, _DISTINCT, 0)]
        found[name] = combine(
            *(
                ({f: weight * c for f, c in terms.items()}, by + power)
                for weight, terms, by in parts
            )
        )
        assert min(found[name]) >= 0
    return found


def _add_up(terms: list[Values]) -> tuple[Values, Values]:
    """(sum, rounding error of the sum) of terms known to relative accuracy _ROUNDING."""
    xp = library(*terms)
    stacked = xp.stack(terms)
    return xp.sum(stacked, axis=0), _ROUNDING * frozen(xp.sum(xp.abs(stacked), axis=0))


def _stein_terms(
    polynomial: Polynomial, moments: dict[tuple[int, ...], Values], variance: Values
) -> list[Values]:
    return [
        c * moments[m] * variance**power
        for power, terms in polynomial.items()
        for m, c in terms.items()
    ]


def _direct_terms(name: str, rule: Rule, L: Values, variance: Values) -> list[Values]:
    return [
        weight * contract(rule, L, _sorted(factors)) / variance**divide_by
        for combination, divide_by in _QUANTITIES[name]
        for factors, weight in combination.items()
    ]


def _sorted(factors: Factors) -> Factors:
    return tuple(sorted(factors, reverse=True))


def gradient_moments_kernel(variance: Values, L: Values) -> tuple[Values, ...]:
    """The fields of `GradientMoments` for scores of this variance."""
    xp = library(variance, L)
    finite, L = finite_length(L)
    wanted = {m for name in _QUANTITIES for terms in stein_form(name).values() for m in terms}
    wanted |= {(2,), (3,), (2, 2)}
    rule = laplace_rule(variance, L, moment_probes(wanted))
    moments = {m: contract(rule, L, tuple((0, k) for k in m)) for m in wanted}

    direct_ok = variance > _SMALL**2
    safe = xp.where(direct_ok, variance, 1.0)
    # the quantities do not depend on the centre
    centre = frozen(xp.minimum(safe, xp.sqrt(2 * safe * xp.log(frozen(L)))))
    direct_rule = laplace_rule(safe, L, ((4,), (2, 2), (1, 1, 1, 1)), 4, centre)

    values, errors = [], []
    for name in _QUANTITIES:
        reduced, reduced_error = _add_up(_stein_terms(stein_form(name), moments, variance))
        direct, direct_error = _add_up(_direct_terms(name, direct_rule, L, safe))
        use_direct = direct_ok & (direct_error < reduced_error)
        value = xp.where(use_direct, direct, reduced)
        values.append(value)
        size = xp.maximum(xp.abs(frozen(value)), frozen(moments[2, 2]))
        error = xp.where(use_direct, direct_error, reduced_error)
        errors.append(xp.where(size > 1e-290, error / xp.where(size > 1e-290, size, 1.0), 0.0))
    gap = frozen(xp.abs(contract(rule, L, ((0, 1),) * 4) - 1))
    error = xp.max(xp.stack(errors), axis=0) + gap + frozen(rule.lost)
    small = xp.where(direct_ok, 0.0, variance)
    ratios = [sum(_stein_terms(each, moments, small)) for each in quotients().values()]
    out = (moments[2,], moments[3,], moments[2, 2], *values, error, *ratios)
    return tuple(xp.where(finite, value, 0.0) for value in out)


def gradient_moments(sigma: ArrayInput, L: ArrayInput) -> GradientMoments:
    """Moments of the exact gradient error at score deviation `sigma` and length `L`.

    Broadcasting, precision, jit, vmap and grad as for `participation`. All vanish at L = infinity.
    """
    return GradientMoments(*apply("gradient_moments", gradient_moments_kernel, sigma, L))


def gradient_moments_at(variance: ArrayInput, L: ArrayInput) -> GradientMoments:
    """`gradient_moments` for scores of variance sigma^2, smooth in it, also at 0."""
    return GradientMoments(*apply_at("gradient_moments", gradient_moments_kernel, variance, L))
