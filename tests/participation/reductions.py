"""Moments of scores and weights from their Stein reductions."""

import numpy as np

from largeprompt.participation import participation_moment
from largeprompt.participation.stein import combine


def stein_moment(factors, sigma, L):
    """E prod_a sum_i s_i^{j_a} p_i^{k_a} as a sum of participation moments."""
    return sum(
        c * np.square(sigma) ** power * participation_moment(ks, sigma, L)
        for power, terms in combine(({factors: 1}, 0)).items()
        for ks, c in terms.items()
    )
