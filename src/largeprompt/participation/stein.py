"""Stein reduction of moments of scores and weights to participation moments.

For s_i iid N(0, sigma^2) and p = softmax(s), Gaussian integration by parts E[s_i F] = sigma^2
E[dF/ds_i] with dp_l/ds_i = p_i (delta_il - p_l) removes one power of a score at a time.  With
Y(j,k) = sum_i s_i^j p_i^k,

    E[Y(j,k) prod_b Y_b] = sigma^2 E[ {(j-1) Y(j-2,k) + k Y(j-1,k) - k Y(j-1,k+1)} prod_b Y_b
        + sum_b {j_b Y(j+j_b-2, k+k_b) + k_b Y(j+j_b-1, k+k_b) - k_b Y(j-1,k+1) Y_b}
          prod_{b' != b} Y_b' ],

and Y(0,1) = 1.  The coefficients are exact integers, so what cancels at large L cancels before
any number is computed.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import lru_cache

from ._laplace import Probes
from .score_moments import Factors

Moment = tuple[int, ...]  # (k_1 >= k_2 >= ...), every k >= 2, for E prod_a sum_i p_i^{k_a}; () is 1
Polynomial = dict[int, dict[Moment, int]]  # power of sigma^2 -> moment -> coefficient
Combination = Mapping[Factors, int]  # linear combination of products of Y(j, k)


def _product(*factors: tuple[int, int]) -> Factors:
    return tuple(sorted((f for f in factors if f != (0, 1)), reverse=True))


def _one_step(factors: Factors) -> dict[Factors, int]:
    """Coefficients of sigma^2 after integrating one score of the first factor by parts."""
    (j, k), rest = factors[0], factors[1:]
    terms: dict[Factors, int] = defaultdict(int)
    if j >= 2:
        terms[_product((j - 2, k), *rest)] += j - 1
    terms[_product((j - 1, k), *rest)] += k
    terms[_product((j - 1, k + 1), *rest)] -= k
    for b, (j_b, k_b) in enumerate(rest):
        others = rest[:b] + rest[b + 1 :]
        if j_b >= 1:
            terms[_product((j + j_b - 2, k + k_b), *others)] += j_b
        terms[_product((j + j_b - 1, k + k_b), *others)] += k_b
        terms[_product((j - 1, k + 1), *rest)] -= k_b
    return {product: c for product, c in terms.items() if c}


@lru_cache(maxsize=4096)
def _reduced(factors: Factors) -> tuple[tuple[int, Moment, int], ...]:
    """((power of sigma^2, moment, coefficient), ...) of E prod Y; sorted, so scores come first."""
    if not factors or factors[0][0] == 0:
        return ((0, tuple(k for _, k in factors), 1),)
    total: dict[tuple[int, Moment], int] = defaultdict(int)
    for product, c in _one_step(factors).items():
        for power, moment, coefficient in _reduced(product):
            total[power + 1, moment] += c * coefficient
    return tuple((*key, c) for key, c in sorted(total.items()) if c)


def combine(*parts: tuple[Combination, int]) -> Polynomial:
    """The reduction of a sum of linear combinations, each divided by a power of sigma^2; exact."""
    total: Polynomial = defaultdict(lambda: defaultdict(int))
    for combination, divide_by in parts:
        for factors, weight in combination.items():
            for power, moment, coefficient in _reduced(_product(*factors)):
                total[power - divide_by][moment] += weight * coefficient
    kept = {
        power: {moment: c for moment, c in sorted(terms.items()) if c}
        for power, terms in sorted(total.items())
    }
    return {power: terms for power, terms in kept.items() if terms}


def moment_probes(moments: Collection[Moment]) -> Probes:
    """Products whose windows contain those of all the given participation moments."""
    orders = {sum(moment) for moment in moments}
    return tuple({product for k in (min(orders), max(orders)) for product in ((k,), (1,) * k)})
