"""Tail index of positive terms by a generalised Pareto fit, as in Pareto-smoothed importance
sampling.

The largest terms beyond a cutoff x_0 are fitted by P(x - x_0 > y) = (1 + k y / s)^(-1/k). A mean of
such terms has a finite variance for k < 1/2, and converges at a practical rate for k < 0.7.

References: Zhang & Stephens, Technometrics 51 (2009); Vehtari, Simpson, Gelman, Yao & Gabry,
Journal of Machine Learning Research 25 (2024).
"""

import math

from .._arrays import Values, library

_FEWEST = 5  # terms beyond the cutoff that a fit needs
_PRIOR_TERMS, _PRIOR_INDEX = 10, 0.5  # the fit is shrunk as by ten more terms of index 1/2
_SMALLEST = 1e-200  # lower quartile beyond the cutoff, relative to the largest term


def pareto_index(terms: Values, rounding: Values) -> Values:
    """Tail index k of terms >= 0 along the last axis.

    The largest min(n/5, 3 sqrt(n)) of n terms are fitted by the estimator of Zhang & Stephens, with
    the weak prior of Vehtari et al. Terms that exceed the cutoff by less than the relative
    `rounding`, one number for each index, do not count. If no term exceeds it the tail is light,
    k = -inf; with 1 to 4 terms beyond it, or with 20 different terms or fewer in all, the index is
    unknown, k = inf.

    >>> import numpy as np
    >>> u = (np.arange(10_000) + 0.5) / 10_000
    >>> terms = np.stack([u**-0.25, u**-0.9, 1 - u, np.ones_like(u)])
    >>> print(pareto_index(terms, np.zeros(4)).round(1))
    [ 0.3  0.9 -0.9 -inf]
    """
    xp, count = library(terms), terms.shape[-1]
    size = math.ceil(min(count / 5, 3 * math.sqrt(count)))
    enough = size >= _FEWEST
    # of too few terms all that matters is whether they are equal
    largest = xp.sort(terms, axis=-1)[..., -(size + 1 if enough else count) :]
    cutoff, top = largest[..., :1], largest[..., -1:]
    beyond = largest > cutoff * (1 + rounding[..., None])
    excess = xp.where(beyond, largest - cutoff, 0.0) / xp.where(top > 0, top, 1.0)
    number = beyond.sum(-1)
    unknown = xp.where(number > 0, xp.inf, -xp.inf)
    if not enough:
        return unknown
    return xp.where(number >= _FEWEST, _fitted(excess[..., 1:], beyond[..., 1:]), unknown)


def _fitted(excess: Values, beyond: Values) -> Values:
    """Index of the sorted excesses that are `beyond` the cutoff, any number if there are none.

    The posterior mean of b = -k/s over a grid, then k = mean ln(1 - b y) (Zhang & Stephens).
    """
    xp, size, count = library(excess), excess.shape[-1], beyond.sum(-1, keepdims=True)
    number = xp.maximum(count, 1).astype(excess.dtype)
    weights = beyond.astype(excess.dtype) / number
    place = xp.clip(size - count + (count + 2) // 4 - 1, 0, size - 1)
    quartile = xp.take_along_axis(excess, place, axis=-1)
    nodes = 30 + math.isqrt(size)
    grid = 1 - xp.sqrt(nodes / xp.arange(0.5, nodes))
    b = 1 / xp.where(count > 0, excess[..., -1:], 1.0)
    b = b + grid / (3 * xp.maximum(quartile, _SMALLEST))
    k = _index(excess, weights, b)
    mean = xp.where(count > 0, (weights * excess).sum(-1, keepdims=True), 1.0)
    inverse_scale = xp.where(k == 0, 1 / mean, -b / xp.where(k == 0, 1.0, k))
    log_likelihood = number * (xp.log(inverse_scale) - k - 1)
    posterior = xp.exp(log_likelihood - log_likelihood.max(-1, keepdims=True))
    b = (posterior * b).sum(-1, keepdims=True) / posterior.sum(-1, keepdims=True)
    found = number * _index(excess, weights, b) + _PRIOR_TERMS * _PRIOR_INDEX
    return (found / (number + _PRIOR_TERMS))[..., 0]


def _index(excess: Values, weights: Values, b: Values) -> Values:
    """Weighted mean of ln(1 - b y), for every b."""
    logs = library(excess).log1p(-b[..., :, None] * excess[..., None, :])
    return (weights[..., None, :] * logs).sum(-1)
