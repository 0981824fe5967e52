"""The result of a gradient flow."""

from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from ..icl import RiskFunction

Phase = Literal["descent", "valley", "stationary"]


class Trajectory(eqx.Module):
    """Parameters, risk and gradient norm along a gradient flow.

    `objective` is the function that was descended, `training_loss` its value along the
    flow and `gradient_norm` the norm of its gradient. `risk` is the risk with its error
    `risk_error`: for linear regression in block form both are exact, the objective is the risk and
    the error 0. For other heads and tasks the objective is a mean over one fixed sample, the risk
    is measured on fresh ones, and `risk_error` is its standard error (the error of the quadrature
    where w has at most two dimensions).

    `params` has the times on the first axis of every array, `final` are the last ones, `status`
    says what ended the flow. `phase` is where it stopped: still in "descent"; in the "valley" of
    the infinite-prompt minimisers, where it only exchanges scale between scores and read-out, (U,
    v) -> (U/c, cv), in time O(L); or "stationary". `valley_entered` is the first time of the
    second phase, infinity if there was none.
    """

    objective: RiskFunction
    times: Float[np.ndarray, " times"]
    params: Any
    training_loss: Float[np.ndarray, " times"]
    risk: Float[np.ndarray, " times"]
    risk_error: Float[np.ndarray, " times"]
    gradient_norm: Float[np.ndarray, " times"]
    status: str = eqx.field(static=True)
    phase: Phase = eqx.field(static=True)
    valley_entered: float = eqx.field(static=True)
    L: float = eqx.field(static=True)
    attention: str = eqx.field(static=True)

    @property
    def final(self) -> Any:
        """The last parameters."""
        return self.at(-1)

    def at(self, index: int) -> Any:
        """The parameters at one of the times."""
        return jax.tree.map(lambda a: a[index], self.params)

    def at_times(
        self, times: Float[np.ndarray, " asked"]
    ) -> tuple[Float[np.ndarray, "asked n"], Float[np.ndarray, " asked"]]:
        """Parameters as vectors, and risks, at recorded times; the last ones for later times.

        A stationary flow stays where it ended.
        """
        index = self.index(times)
        flat = jax.vmap(lambda params: ravel_pytree(params)[0])(self.params)
        return np.asarray(flat)[index], self.risk[index]

    def index(self, times: Float[np.ndarray, " asked"]) -> np.ndarray:
        """The indices of the records that `at_times` returns."""
        return np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
