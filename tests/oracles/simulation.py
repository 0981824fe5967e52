"""Brute force: draw all scores, take the softmax, average (plain NumPy)."""

import numpy as np


def simulate(statistic, sigma, L, replicates, seed):
    """(mean, standard error) of statistic(s, p) over `replicates` prompts of L scores; arrays are
    (replicates, L).
    """
    rng = np.random.default_rng(seed)
    s = sigma * rng.standard_normal((replicates, L))
    weight = np.exp(s - s.max(axis=1, keepdims=True))
    values = statistic(s, weight / weight.sum(axis=1, keepdims=True))
    return values.mean(), values.std(ddof=1) / np.sqrt(replicates)


def product_of_sums(factors, centre=0.0):
    """The statistic prod_a sum_i (s_i - c)^{j_a} p_i^{k_a}."""

    def statistic(s, p):
        value = 1.0
        for j, k in factors:
            value = value * ((s - centre) ** j * p**k).sum(axis=1)
        return value

    return statistic
