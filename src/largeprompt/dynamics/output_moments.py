"""Mean and second moment of a head's output at one prompt length, as cheap functions of the score variance.

Given task and query, with s = u'Gu, a = v'Gu and c = v'Gv,

    E T_L = a (1 - P_2),      E T_L^2 = a^2 (1 - P_2 - 6 P_3 + 6 P_22) + c P_2                  (softmax attention)
    E T_L = a,                E T_L^2 = a^2 (1 + 1/L) + c s / L                                 (linear attention)

so one form, with three functions of s, serves both attentions at every length. For softmax log P_2 and log(P_2 + 6 P_3 - 6 P_22) are
analytic in r = log(1 + s) and are stored as polynomials on equal panels of r: an evaluation is one look-up and six multiplications,
whatever L.
"""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..icl.task import Attention
from ..prompts import participation
from ..prompts._domain import RESOLVED

_PANELS = 256
_WIDTH = float(np.log1p(RESOLVED**2)) / _PANELS  # of a panel of r
_DEGREE = 6


class OutputMoments(eqx.Module):
    """The three functions at one length, for score deviations up to 40; NaN beyond.

    A pytree of arrays of one shape for every length and attention: several of them stack, and train together under `vmap`.
    """

    coefficients: Float[Array, "*runs 2 panels degree"]
    softmax: Float[Array, "*runs"]  # 1 for softmax attention at finite length, otherwise 0
    inverse_length: Float[Array, "*runs"]  # 1/L for linear attention, otherwise 0

    def second_moment_and_mean(
        self, s: Float[Array, ""], a: Float[Array, ""], c: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """E T^2 and E T given the score variance s, a = v'Gu and c = v'Gv."""
        p2, shrink = self.softmax * jnp.exp(_look_up(self.coefficients, s))
        spread = p2 + s * self.inverse_length
        return a**2 * (1 - shrink + self.inverse_length) + c * spread, a * (1 - p2)


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
    found = participation(np.sqrt(np.expm1(r)), L)
    p2, p3, p22 = (np.asarray(a) for a in (found.p2, found.p3, found.p22))
    values = np.log(np.stack([p2, p2 + 6 * p3 - 6 * p22]))
    inverse = np.linalg.inv(np.vander(x, increasing=True))
    return np.einsum("kn,hpn->hpk", inverse, values)
