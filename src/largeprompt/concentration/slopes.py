"""Straight lines through log-log curves that carry error bars."""

import math
from typing import NamedTuple

import numpy as np
import xarray as xr

from .. import _checks
from ._columns import columns


class SlopeFit(NamedTuple):
    """Fit of ln value ~ intercept + slope ln L: slope, standard error and confidence interval.

    `misfit` is chi^2 per degree of freedom: about 1 if the curve is straight within its error bars.
    Above 1 the standard error is enlarged by its root.
    """

    slope: float
    standard_error: float
    low: float
    high: float
    intercept: float
    misfit: float


@_checks.accepts(curve=xr.Dataset)
def fit_slope(curve: xr.Dataset, confidence: float = 0.95) -> SlopeFit:
    """Weighted least squares of ln value against ln L, each point weighted by its relative error.

    **Arguments:** a dataset of `concentration_curve`; select lengths first to fit a part, as in
    `curve.sel(length=slice(100, None))`. For exact curves use `local_slope` instead.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(1) / 4, V=jnp.eye(1)), lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> method = lp.MonteCarlo(jax.random.key(0), relative_error=0.05)
    >>> sampled = lp.concentration_curve(head, mu, mu, [30, 100, 300], method=method)
    >>> fit = lp.fit_slope(sampled)
    >>> fit.low < -1 < fit.high
    True
    """
    from scipy import stats

    confidence = _checks.number("confidence", confidence, "pass 0.95", above=0.0)
    if confidence >= 1:
        raise _checks.error("confidence must be < 1", f"{confidence:g}", "pass 0.95")
    L, value, error = columns(curve)
    usable = np.isfinite(L) & (value > 0) & (error > 0)
    if len(np.unique(L[usable])) < 2:
        raise _checks.error(
            "a slope needs two lengths with finite L, value > 0 and error > 0",
            f"{len(np.unique(L[usable]))}",
            "compute the curve at more lengths",
        )
    x, y, weight = np.log(L[usable]), np.log(value[usable]), (value / error)[usable] ** 2
    centre = np.average(x, weights=weight)
    weighted_square = np.sum(weight * (x - centre) ** 2)
    slope = float(np.sum(weight * (x - centre) * y) / weighted_square)
    intercept = float(np.average(y - slope * x, weights=weight))
    freedom = len(x) - 2
    misfit = float(np.sum(weight * (y - intercept - slope * x) ** 2) / freedom) if freedom else 0.0
    scale = math.sqrt(max(1.0, misfit))
    standard_error = scale / math.sqrt(weighted_square)
    law = stats.t(freedom) if misfit > 1 else stats.norm()
    half = standard_error * float(law.ppf((1 + confidence) / 2))
    return SlopeFit(slope, standard_error, slope - half, slope + half, intercept, misfit)
