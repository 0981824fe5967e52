"""The squared error of a head's output at one prompt length, as a cheap function of the score
variance.

Given w and the query, with s = u'Gu, a = v'Gu, c = v'Gv, H = P_2 + 6 P_3 - 6 P_22 and a target t,

    E (T_L - t)^2 = (a - t)^2 + a^2 (2 P_2 - H) - 2 a (a - t) P_2 + c P_2     (softmax attention)
    E (T_L - t)^2 = (a - t)^2 + (a^2 + c s) / L                               (linear attention)

so one form, with three functions of s, serves both attentions at every length, without cancellation
at large L. For softmax log P_2 and log H are analytic in r = log(1 + s) and are stored as
polynomials on equal panels of r: an evaluation is one look-up and six multiplications, whatever L.
"""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..participation import LARGEST, moment_functions
from .risks import Attention

_PANELS = 480
_WIDTH = float(np.log1p(LARGEST)) / _PANELS  # of a panel of r
_DEGREE = 6


class OutputMoments(eqx.Module):
    """The three functions at one length, for score variances up to 1e6; NaN beyond.

    A pytree of arrays of one shape for every length and attention, so several of them stack.
    """

    coefficients: Float[Array, "*runs 2 panels degree"]
    softmax: Float[Array, "*runs"]  # 1 for softmax attention at finite length, otherwise 0
    inverse_length: Float[Array, "*runs"]  # 1/L for linear attention, otherwise 0

    def squared_error(
        self,
        s: Float[Array, ""],
        a: Float[Array, ""],
        c: Float[Array, ""],
        target: Float[Array, ""],
    ) -> Float[Array, ""]:
        """E (T - target)^2 given the score variance s, a = v'Gu and c = v'Gv."""
        p2, shrink = self.softmax * jnp.exp(_look_up(self.coefficients, s))
        variance = p2 + s * self.inverse_length
        drift = a**2 * (2 * p2 - shrink + self.inverse_length) - 2 * a * (a - target) * p2
        return (a - target) ** 2 + drift + c * variance


def output_moments(L: float, attention: Attention) -> OutputMoments:
    """The functions at length L >= 1 (infinity included), float64."""
    linear, finite = attention == "linear", np.isfinite(L)
    table = np.zeros((2, _PANELS, _DEGREE + 1)) if linear or not finite else _fitted(L)
    with jax.enable_x64(True):
        return OutputMoments(
            jnp.asarray(table),
            jnp.asarray(float(finite and not linear)),
            jnp.asarray(1 / L if linear else 0.0),
        )


def _look_up(
    coefficients: Float[Array, "2 panels degree"], s: Float[Array, ""]
) -> Float[Array, " 2"]:
    position = jnp.log1p(s) / _WIDTH
    panel = jax.lax.stop_gradient(jnp.floor(position))
    here = coefficients[:, jnp.clip(panel, 0, _PANELS - 1).astype(jnp.int32)]
    x = 2 * (position - panel) - 1
    value = here[:, _DEGREE]
    for k in reversed(range(_DEGREE)):
        value = value * x + here[:, k]
    return jnp.where(panel < _PANELS, value, jnp.nan)


@lru_cache(maxsize=128)
def _fitted(L: float) -> np.ndarray:
    """Polynomials through both functions at Chebyshev points of every panel."""
    x = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    r = _WIDTH * (np.arange(_PANELS)[:, None] + (x + 1) / 2)
    values = np.log(moment_functions(np.sqrt(np.expm1(r)), L))
    inverse = np.linalg.inv(np.vander(x, increasing=True))
    return np.einsum("kn,hpn->hpk", inverse, values)
