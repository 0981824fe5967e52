"""Participation moments at one prompt length, tabulated over sigma: microseconds per value.

log P_2, log P_3 and log P_22 are even and analytic in sigma, hence analytic in q = sqrt(1 +
sigma^2) - 1, which grows like sigma^2/2 near 0 and like sigma far away.  They are stored as
Chebyshev series on equal panels of q; evaluation is one look-up and Clenshaw's recurrence,
differentiated as the polynomial it is (dq/dsigma = 0 at 0, so derivatives there are exact).
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from .._float64 import is_traced, require_x64
from .._typing import ArrayInput
from ._domain import checked
from .weight_moments import Participation, participation

_DEGREE = 23
_TOLERANCE = 1e-10
_MOST_PANELS = 512


def _to_q(sigma: Any) -> Any:
    return sigma**2 / (1 + (1 + sigma**2) ** 0.5)


def _from_q(q: np.ndarray) -> np.ndarray:
    return np.sqrt(q * (q + 2))


def _log_moments(q: np.ndarray, L: float) -> tuple[np.ndarray, float]:
    """(log of P_2, P_3, P_22 stacked on the first axis, largest error estimate)."""
    exact = participation(_from_q(q), L)
    values = np.stack([np.asarray(v) for v in (exact.p2, exact.p3, exact.p22)])
    return np.log(values), float(np.max(np.asarray(exact.error)))


def _chebyshev_fit(panels: int, q_max: float, L: float) -> tuple[np.ndarray, float]:
    """Coefficients (3, panels, degree + 1), and the largest error seen between the nodes."""
    width = q_max / panels
    angles = np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1)
    starts = width * np.arange(panels)[:, None]
    values, _ = _log_moments(starts + width * (np.cos(angles) + 1) / 2, L)
    modes = np.cos(np.arange(_DEGREE + 1)[:, None] * angles)
    modes[0] /= 2
    coefficients = 2 / (_DEGREE + 1) * np.einsum("mpn,kn->mpk", values, modes)
    # Between neighbouring nodes the interpolation error is largest; the panel's ends are the
    # other place to look.
    between = np.cos(np.pi * np.arange(_DEGREE + 2) / (_DEGREE + 1))
    truth, own_error = _log_moments(starts + width * (between + 1) / 2, L)
    fitted = np.stack([np.polynomial.chebyshev.chebval(between, table.T) for table in coefficients])
    return coefficients, float(np.max(np.abs(np.expm1(fitted - truth)))) + own_error


def _certified(L: float, sigma_max: float) -> tuple[np.ndarray, float]:
    """Coefficients on enough panels that twice the error seen is in tolerance, and that bound."""
    q_max = float(_to_q(sigma_max))
    panels, error = max(2, math.ceil(q_max / 0.75)), math.inf
    while panels <= _MOST_PANELS:
        coefficients, error = _chebyshev_fit(panels, q_max, L)
        if 2 * error <= _TOLERANCE:
            return coefficients, 2 * error
        panels *= 2
    raise ValueError(
        _checks.message(
            f"a ParticipationTable must reach relative error {_TOLERANCE:g}",
            f"L = {L:g} and sigma_max = {sigma_max:g}, where it reaches {2 * error:.1e}",
            "lower sigma_max or L, or call participation directly",
        )
    )


def _clenshaw(
    coefficients: Float[Array, "3 *n degree"], x: Float[Array, "*n"]
) -> Float[Array, "3 *n"]:
    first, second = jnp.zeros_like(x), jnp.zeros_like(x)
    for k in range(_DEGREE, 0, -1):
        first, second = 2 * x * first - second + coefficients[..., k], first
    return x * first - second + coefficients[..., 0]


@jax.jit
def _look_up(
    coefficients: Array, sigma_max: Array, scale: Array, sigma: Array
) -> Float[Array, "3 *n"]:
    panels = coefficients.shape[1]
    position = _to_q(sigma) * (panels / _to_q(sigma_max))
    panel = jnp.clip(jnp.floor(jax.lax.stop_gradient(position)), 0, panels - 1)
    here = coefficients[:, panel.astype(jnp.int32)]
    return scale * jnp.exp(_clenshaw(here, 2 * (position - panel) - 1))


class ParticipationTable(eqx.Module):
    """P_2, P_3, P_22 at one length `L` for sigma in [0, sigma_max], certified to 1e-10.

    `table(sigma)` returns a `Participation`; jit, vmap, grad and higher derivatives in sigma.
    Outside the range it raises instead of extrapolating. `error` bounds the relative error. A
    pytree: pass it through jit as an argument.

    >>> import largeprompt as lp
    >>> print(lp.ParticipationTable(L=50, sigma_max=2.0)(1.0).p2.round(6))
    0.048706
    """

    coefficients: Float[Array, "3 panels degree"]
    scale: Float[Array, ""]  # 1, or 0 at L = infinity
    error: Float[Array, ""]
    L: Float[Array, ""]
    sigma_max: Float[Array, ""]

    def __init__(self, L: ArrayInput, sigma_max: ArrayInput):
        if is_traced(L, sigma_max):
            raise ValueError(
                _checks.message(
                    "L and sigma_max of a ParticipationTable must be known numbers",
                    "traced values",
                    "build the table outside jit and pass it in",
                )
            )
        top, length = checked("ParticipationTable", sigma_max, L)
        if top.shape or length.shape or top <= 0:
            raise ValueError(
                _checks.message(
                    "L and sigma_max must be single numbers, sigma_max > 0",
                    f"shapes {length.shape} and {top.shape}, sigma_max {sigma_max}",
                    "build one table for each L",
                )
            )
        scale, error, coefficients = 0.0, 0.0, np.zeros((3, 1, _DEGREE + 1))
        if np.isfinite(length):
            scale = 1.0
            coefficients, error = _certified(float(length), float(top))
        with jax.enable_x64(True):
            self.coefficients = jnp.asarray(coefficients)
            self.scale, self.error = jnp.asarray(scale), jnp.asarray(error)
            self.L, self.sigma_max = jnp.asarray(length), jnp.asarray(top)

    def __call__(self, sigma: ArrayInput) -> Participation:
        """The moments at `sigma`, anywhere in [0, sigma_max]."""
        traced = is_traced(sigma, self.coefficients)
        if traced:
            require_x64("ParticipationTable")
        sigma, _ = checked("ParticipationTable", sigma, 1.0)
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
            return self._values(jnp.asarray(sigma))
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return self._values(jnp.asarray(sigma))

    def _values(self, sigma: Float[Array, "*n"]) -> Participation:
        p2, p3, p22 = _look_up(self.coefficients, self.sigma_max, self.scale, sigma)
        return Participation(p2, p3, p22, jnp.broadcast_to(self.error, sigma.shape))
