"""The risk of a task at one length by one method: its value, its objective, and its test risk."""

import abc
from collections.abc import Callable
from typing import Any, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Key

from .. import _checks
from .._arrays import Values, to_numpy
from .._float64 import in_float64, is_traced, refuse_traced
from .._typing import Array
from ..prompts.methods import AbstractMethod, Estimate, Exact
from .params import AbstractParams

Attention = Literal["softmax", "linear"]
RiskFunction = Callable[[AbstractParams], Float[Array, ""]]
# leaves of parameters -> value, and gradient leaf by leaf
NumpyFunction = Callable[..., tuple[float, list[np.ndarray]]]
FreshRisk = Callable[[AbstractParams], Estimate]  # of heads on a leading axis
BatchLoss = Callable[[Key[Array, ""], AbstractParams], Float[Array, ""]]
LossOfKey = Callable[[Key[Array, ""]], Float[Array, ""]]

REPLICATES = 8  # of the sample behind a test risk
_CHUNK = 64  # heads


def refuse_traced_risk(params: AbstractParams) -> None:
    """Raise if a risk that is estimated by values on the host is differentiated or compiled."""
    fix = "differentiate or compile objective = task.objective(L, like=params, method=...) instead"
    refuse_traced("task.risk of these parameters by this method", fix, params)


class AbstractRisk(abc.ABC):
    """The risk of a task at one length, by one method."""

    @abc.abstractmethod
    def of(self, params: AbstractParams) -> Estimate:
        """The risk of one head."""

    @abc.abstractmethod
    def objective(self) -> RiskFunction:
        """The function to descend: the risk, or its mean over one fixed sample."""

    @abc.abstractmethod
    def fresh(self) -> FreshRisk | None:
        """The risk over a sample that the objective does not use; None if that is exact."""


@final
class ExactRisk(AbstractRisk):
    """A risk in closed form: a function of parameters, written with `jax.numpy`.

    **Arguments:** `relative_error` bounds the error of its values. Where the function is NaN, the
    error message states `rule`.
    """

    def __init__(
        self, function: RiskFunction, relative_error: float, rule: str = "the risk must be a number"
    ):
        self.function, self.relative_error, self.rule = function, relative_error, rule

    @in_float64
    def of(self, params: AbstractParams) -> Estimate:
        value = require_number(risk_of(self.function, params), self.rule)
        if is_traced(value):
            return Estimate(value, self.relative_error * abs(value), Exact())
        error = np.asarray(self.relative_error * abs(np.asarray(value)))
        return Estimate(value, error, Exact())

    def objective(self) -> RiskFunction:
        return self.function

    def fresh(self) -> None:
        return None


def require_number(risk: Any, rule: str) -> Any:
    """Raise if the risk is NaN: now if it is known, at run time if it is traced."""
    bad = jnp.isnan(risk) if is_traced(risk) else np.isnan(np.asarray(risk))
    return _checks.require(
        risk, bad, rule=rule, received="larger parameters", fix="scale A (or U) down"
    )


def risk_of(function: RiskFunction, params: AbstractParams) -> Float[Values, ""]:
    """A function of parameters: by NumPy where it has a formula for known numbers."""
    known = None if is_traced(function, params) else by_numpy(function, params)
    if known is None:
        return compiled(function, params)
    return np.asarray(known(*jax.tree.leaves(to_numpy(params)))[0])


def by_numpy(function: RiskFunction, like: AbstractParams) -> NumpyFunction | None:
    """What the function's own method `by_numpy` returns, None if it has none."""
    method = getattr(function, "by_numpy", None)
    return None if method is None else method(like)


def compiled(function: RiskFunction, params: AbstractParams) -> Float[Array, ""]:
    """A function of parameters, compiled once for all functions of one structure."""
    return _compiled(function, jax.tree.map(jnp.asarray, params))


@eqx.filter_jit
def _compiled(function: RiskFunction, params: AbstractParams) -> Float[Array, ""]:
    return function(params)


def mean_of_replicates(values: np.ndarray, method: AbstractMethod, axis: int = 0) -> Estimate:
    """Mean over the replicates on an axis, with its standard error."""
    error = values.std(axis=axis, ddof=1) / np.sqrt(values.shape[axis])
    return Estimate(values.mean(axis=axis), error, method)


def padded(params: AbstractParams) -> tuple[Any, Int[Array, ""]]:
    """Pad heads on a leading axis to a multiple of 64; return them and their number.

    One program then serves any number of heads.
    """
    count = len(jax.tree.leaves(params)[0])

    def pad(leaf: Any) -> Array:
        leaf = np.asarray(leaf)
        widths = [(0, -count % _CHUNK)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.asarray(np.pad(leaf, widths, mode="edge"))

    return jax.tree.map(pad, params), jnp.asarray(count, jnp.int32)


def for_each_head(
    function: RiskFunction, heads: AbstractParams, count: Int[Array, ""]
) -> Float[Array, " heads"]:
    """A function of the first `count` heads on a leading axis; zero for the others."""

    def step(i: Array, found: Array) -> Array:
        head = jax.tree.map(lambda leaf: leaf[i], heads)
        return found.at[i].set(function(head).astype(found.dtype))

    return jax.lax.fori_loop(0, count, step, jnp.zeros(len(jax.tree.leaves(heads)[0])))


def unsupported(task: Any, known: str, method: AbstractMethod | None, serves: str) -> ValueError:
    """The error for a method that a task does not support."""
    given = "method=None" if method is None else f"method={type(method).__name__}"
    rule = f"{type(task).__name__} has {known}"
    return _checks.error(rule, given, f"pass method={serves}")


def checked_attention(attention: str) -> None:
    """Raise unless `attention` is 'softmax' or 'linear'."""
    _checks.choice("attention", attention, ("softmax", "linear"))
