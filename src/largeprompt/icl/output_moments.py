"""The squared error of a head's output at one prompt length, as a cheap function of the score
variance.

Given w and the query, with s = u'Gu, a = v'Gu, c = v'Gv, H = P_2 + 6 P_3 - 6 P_22 and a target t,

    E (T_L - t)^2 = (a - t)^2 + a^2 (2 P_2 - H) - 2 a (a - t) P_2 + c P_2     (softmax attention)
    E (T_L - t)^2 = (a - t)^2 + (a^2 + c s) / L                               (linear attention)

so one form, with three functions of s, serves both attentions at every length, without cancellation
at large L. For softmax P_2 and H are tabulated: an evaluation costs the same whatever L.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from .._typing import Array
from ..participation import MomentTable, output_moment_table
from .risks import Attention


class OutputMoments(eqx.Module):
    """The three functions at one length, for score variances up to 1e6; NaN beyond.

    A pytree of arrays of one shape for every length and attention, so several of them stack.
    """

    table: MomentTable  # vanishes for linear attention and at infinite length
    inverse_length: Float[Array, "*runs"]  # 1/L for linear attention, otherwise 0

    def squared_error(
        self,
        s: Float[Array, ""],
        a: Float[Array, ""],
        c: Float[Array, ""],
        target: Float[Array, ""],
    ) -> Float[Array, ""]:
        """E (T - target)^2 given the score variance s, a = v'Gu and c = v'Gv."""
        p2, shrink = self.table(s)
        variance = p2 + s * self.inverse_length
        drift = a**2 * (2 * p2 - shrink + self.inverse_length) - 2 * a * (a - target) * p2
        return (a - target) ** 2 + drift + c * variance


def output_moments(L: float, attention: Attention) -> OutputMoments:
    """The functions at length L >= 1 (infinity included), float64."""
    linear = attention == "linear"
    with jax.enable_x64(True):
        return OutputMoments(
            output_moment_table(np.inf if linear else L),
            jax.device_put(np.float64(1 / L if linear else 0.0)),
        )
