"""Error bars of one prompt in plain Python and NumPy: loops over tokens, Pareto fits one by one."""

import math

import numpy as np
from scipy.stats import genpareto


def softmax(scores):
    weights = [math.exp(s - max(scores)) for s in scores]
    return [w / sum(weights) for w in weights]


def error_bar(tokens, tilt, V, log_weights=None):
    """(output, covariance, half difference, effective tokens) of one prompt at one tilt."""
    log_weights = np.zeros(len(tokens)) if log_weights is None else log_weights
    scores = [float(x @ tilt + a) for x, a in zip(tokens, log_weights, strict=True)]
    values = [V @ x for x in tokens]

    def output(count):
        return sum(p * v for p, v in zip(softmax(scores[:count]), values, strict=False))

    p, whole = softmax(scores), output(len(tokens))
    covariance = sum(q**2 * np.outer(v - whole, v - whole) for q, v in zip(p, values, strict=True))
    half = output(len(tokens) // 2) - whole
    return whole, covariance, half, 1 / sum(q**2 for q in p)


def influence(tokens, tilt, V):
    """p_i (1 + |v_i - T|^2 / s^2)^(1/2) with s^2 = sum p_i |v_i - T|^2."""
    p, values = np.array(softmax(list(tokens @ tilt))), tokens @ V.T
    squares = ((values - p @ values) ** 2).sum(axis=1)
    return p * np.sqrt(1 + squares / (p @ squares))


def signed_terms(tokens, tilt, V):
    """The positive and the negative parts of p_i (v_i - T), coordinate by coordinate."""
    p, values = np.array(softmax(list(tokens @ tilt))), tokens @ V.T
    terms = p[:, None] * (values - p @ values)
    return [np.maximum(sign * column, 0.0) for column in terms.T for sign in (1, -1)]


def tail_index(terms):
    """Maximum likelihood of the generalised Pareto law for the largest terms, by SciPy, shrunk
    like ten more terms of index 1/2.
    """
    count = math.ceil(min(len(terms) / 5, 3 * math.sqrt(len(terms))))
    ordered = np.sort(terms)
    excess = ordered[-count:] - ordered[-count - 1]
    k, _, _ = genpareto.fit(excess / excess.mean(), floc=0)
    return (count * k + 5) / (count + 10)


def zhang_stephens(terms):
    """The estimator of Zhang & Stephens as published, for terms without ties, shrunk likewise."""
    count = math.ceil(min(len(terms) / 5, 3 * math.sqrt(len(terms))))
    ordered = np.sort(terms)
    x = ordered[-count:] - ordered[-count - 1]
    m, quartile = 30 + int(math.sqrt(count)), x[int(count / 4 + 0.5) - 1]
    theta, profile = [], []
    for j in range(1, m + 1):
        theta.append(1 / x[-1] + (1 - math.sqrt(m / (j - 0.5))) / (3 * quartile))
        k = -sum(math.log(1 - theta[-1] * y) for y in x) / count
        profile.append(count * (math.log(theta[-1] / k) + k - 1))
    weights = softmax(profile)
    best = sum(w * t for w, t in zip(weights, theta, strict=True))
    k = sum(math.log(1 - best * y) for y in x) / count
    return (count * k + 5) / (count + 10)
