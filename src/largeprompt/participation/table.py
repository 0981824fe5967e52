"""Tables of moments at one prompt length: piecewise polynomials, microseconds per value.

Every moment here is positive, and its logarithm is analytic in r = log(1 + sigma^2). On equal
panels of r it is stored as the polynomial through its values at Chebyshev points. An evaluation is
one look-up and one Horner scheme, and derivatives are those of the polynomial (dr/dsigma = 0 at
sigma = 0).
`ParticipationTable` holds P_2, P_3, P_22 and is what users see; `output_moment_table` holds
P_2 and P_2 + 6 P_3 - 6 P_22, which decide the error of a head's output, for use inside solvers.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.polynomial import Chebyshev, Polynomial, chebyshev

from .. import _checks
from .._float64 import is_traced, require_x64
from .._typing import Array, ArrayInput
from ._domain import checked, checked_deviation
from .exponential import LARGEST
from .weight_moments import Participation, moment_functions, participation

_TOLERANCE = 1e-10  # relative error of a ParticipationTable
_DEGREE = 12
_WIDEST_PANEL = 0.25  # of r, where the search for enough panels starts
_MOST_PANELS = 1024
# few multiplications for each value, many panels: these tables are evaluated more often than built
_OUTPUT_DEGREE, _OUTPUT_PANELS = 6, 480

# score deviations -> (moments on a leading axis, largest relative error of them)
Moments = Callable[[np.ndarray], tuple[np.ndarray, float]]


class MomentTable(eqx.Module):
    """Positive moments at one length as functions of the score variance s.

    A pytree of arrays. Tables with equally many panels stack, and are evaluated under `vmap`.
    """

    coefficients: Float[Array, "*lengths moments panels powers"]  # of x in [0, 1)
    width: Float[Array, "*lengths"]  # of a panel of r
    finite: Float[Array, "*lengths"]  # 1 at finite length; 0 at infinity, where the moments vanish
    error: Float[Array, "*lengths"]  # bound on the relative error

    def __call__(self, s: Float[Array, "*n"]) -> Float[Array, "moments *n"]:
        """Evaluate the moments at score variance `s`; NaN beyond the last panel."""
        panels = self.coefficients.shape[-2]
        position = jnp.log1p(s) / self.width
        panel = jnp.trunc(jax.lax.stop_gradient(position))
        here = self.coefficients[:, jnp.clip(panel.astype(jnp.int32), 0, panels - 1)]
        x = position - panel
        logarithm = here[..., -1]
        for k in reversed(range(here.shape[-1] - 1)):
            logarithm = logarithm * x + here[..., k]
        return self.finite * jnp.exp(jnp.where(panel < panels, logarithm, jnp.nan))


def _moment_table(coefficients: np.ndarray, largest: float, error: float, L: float) -> MomentTable:
    width = math.log1p(largest) / coefficients.shape[1]
    # concrete arrays even while JAX traces: a cached table outlives the trace
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        numbers = (coefficients, width, float(np.isfinite(L)), error)
        return MomentTable(*(jax.device_put(np.asarray(number, np.float64)) for number in numbers))


def _fitted(moments: Moments, largest: float, panels: int, degree: int) -> tuple[np.ndarray, float]:
    """Coefficients (moments, panels, degree + 1), and a bound on the relative error.

    The bound is twice the largest error at the ends of the panels, where the interpolation error is
    about as large as anywhere: there |T_{degree + 1}| = 1.
    """
    width = np.log1p(largest) / panels

    def logarithms(positions: np.ndarray) -> tuple[np.ndarray, float]:
        values, error = moments(np.sqrt(np.expm1(width * positions)))
        return np.log(values), error

    nodes, starts = chebyshev.chebpts1(degree + 1), np.arange(panels)[:, None]
    modes = chebyshev.chebvander(nodes, degree) * (2 / (degree + 1))
    modes[:, 0] /= 2
    powers = np.zeros((degree + 1, degree + 1))
    for k in range(degree + 1):
        powers[k, : k + 1] = Chebyshev.basis(k, domain=[0, 1]).convert(kind=Polynomial).coef
    coefficients = logarithms(starts + (nodes + 1) / 2)[0] @ modes @ powers

    ends, own_error = logarithms(np.arange(panels + 1.0))
    left, right = coefficients[..., 0], np.sum(coefficients, -1)
    gaps = np.stack([left - ends[:, :-1], right - ends[:, 1:]])
    return coefficients, 2 * (float(np.max(np.abs(np.expm1(gaps)))) + own_error)


@lru_cache(maxsize=128)
def output_moment_table(L: float) -> MomentTable:
    """Table of P_2 and P_2 + 6 P_3 - 6 P_22 at one length, for score variances up to `LARGEST`.

    Its arrays have one shape for every length. `error` leaves out that of the moments themselves.
    """
    if not np.isfinite(L):
        return _moment_table(np.zeros((2, _OUTPUT_PANELS, _OUTPUT_DEGREE + 1)), LARGEST, 0.0, L)
    fit = _fitted(
        lambda sigma: (moment_functions(sigma, L), 0.0), LARGEST, _OUTPUT_PANELS, _OUTPUT_DEGREE
    )
    return _moment_table(fit[0], LARGEST, fit[1], L)


def _participation_moments(L: float, sigma_max: float) -> MomentTable:
    """Table of P_2, P_3, P_22 on enough panels to meet the tolerance."""

    def moments(sigma: np.ndarray) -> tuple[np.ndarray, float]:
        found = participation(np.minimum(sigma, sigma_max), L)
        values = np.stack([np.asarray(value) for value in (found.p2, found.p3, found.p22)])
        return values, float(np.max(np.asarray(found.error)))

    # a little further, so that sigma_max itself lies inside the last panel
    largest, error = sigma_max**2 * (1 + 1e-12), math.inf
    if not np.isfinite(L):
        return _moment_table(np.zeros((3, 1, _DEGREE + 1)), largest, 0.0, L)
    panels = max(2, math.ceil(math.log1p(largest) / _WIDEST_PANEL))
    while panels <= _MOST_PANELS:
        coefficients, error = _fitted(moments, largest, panels, _DEGREE)
        if error <= _TOLERANCE:
            return _moment_table(coefficients, largest, error, L)
        panels *= 2
    raise _checks.error(
        f"a ParticipationTable must reach relative error {_TOLERANCE:g}",
        f"L = {L:g} and sigma_max = {sigma_max:g}, where it reaches {error:.1e}",
        "lower sigma_max or L, or call participation directly",
    )


class ParticipationTable(eqx.Module):
    """P_2, P_3, P_22 at one length `L` for sigma in [0, sigma_max], certified to 1e-10.

    `table(sigma)` returns a `Participation`; jit, vmap, grad and higher derivatives in sigma.
    Raises outside the range. `error` bounds the relative error. A pytree: pass it through jit as an
    argument.

    >>> import largeprompt as lp
    >>> print(lp.ParticipationTable(L=50, sigma_max=2.0)(1.0).p2.round(6))
    0.048706
    """

    moments: MomentTable
    L: Float[Array, ""]
    sigma_max: Float[Array, ""]

    def __init__(self, L: ArrayInput, sigma_max: ArrayInput):
        if is_traced(L, sigma_max):
            raise _checks.error(
                "L and sigma_max of a ParticipationTable must be known numbers",
                "traced values",
                "build the table outside jit and pass it in",
            )
        top, length = checked("ParticipationTable", sigma_max, L)
        if top.shape or length.shape or top <= 0:
            raise _checks.error(
                "L and sigma_max must be single numbers, sigma_max > 0",
                f"shapes {length.shape} and {top.shape}, sigma_max {sigma_max}",
                "build one table for each L",
            )
        self.moments = _participation_moments(float(length), float(top))
        with jax.enable_x64(True):
            self.L, self.sigma_max = jax.device_put(length), jax.device_put(top)

    @property
    def error(self) -> Float[Array, ""]:
        """Bound on the relative error of all three moments."""
        return self.moments.error

    def __call__(self, sigma: ArrayInput) -> Participation:
        """Evaluate the moments at `sigma`, anywhere in [0, sigma_max]."""
        traced = is_traced(sigma, self)
        if traced:
            require_x64("ParticipationTable")
        sigma = checked_deviation("ParticipationTable", sigma)
        if traced:
            sigma = jnp.asarray(sigma, jnp.float64)
        sigma = _checks.require(
            sigma,
            sigma > (self.sigma_max if traced else float(self.sigma_max)),
            rule="sigma must lie in the table's range [0, sigma_max]",
            received="a larger value",
            fix="build a table with a larger sigma_max, or call participation",
        )
        if traced:
            return _participation(self.moments, jnp.asarray(sigma))
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return _participation(self.moments, jnp.asarray(sigma))


@jax.jit
def _participation(moments: MomentTable, sigma: Float[Array, "*n"]) -> Participation:
    p2, p3, p22 = moments(sigma**2)
    return Participation(p2, p3, p22, jnp.broadcast_to(moments.error, sigma.shape))
