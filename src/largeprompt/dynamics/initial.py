"""The balanced initialisation of Boursier & Boyer."""

import math
import warnings

import numpy as np

from .. import _checks
from .._float64 import in_float64, not_traced
from .._typing import ArrayInput
from ..icl import AbstractTask, BlockParams, LinearRegression


def input_covariance(task: LinearRegression, caller: str) -> np.ndarray:
    """The covariance of the inputs in float64, for functions that need a task with one."""
    if not hasattr(task, "cov"):
        raise _checks.error(
            f"{caller} needs a task with covariance `task.cov`, such as LinearRegression",
            type(task).__name__,
            "make parameters yourself, for example lp.HeadParams(U, v), and pass them to "
            "lp.gradient_flow",
        )
    return np.asarray(task.cov, np.float64)


@_checks.accepts(task=AbstractTask)
@not_traced
def admissible_alpha(task: LinearRegression) -> float:
    """The bound $sqrt(2) / (d^{1/4} |Sig|_op)$ on alpha in initialisation (9) of Boursier & Boyer.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> print(round(lp.admissible_alpha(lp.LinearRegression(jnp.eye(1))), 4))
    1.4142
    """
    cov = input_covariance(task, "admissible_alpha")
    norm = float(np.linalg.norm(cov, 2))
    return math.sqrt(2) / (len(cov) ** 0.25 * norm) if norm > 0 else math.inf


@_checks.accepts(task=AbstractTask)
@in_float64
def balanced_init(
    task: LinearRegression, alpha: ArrayInput, theta: ArrayInput | None = None
) -> BlockParams:
    """$A = alpha Th Th' / |Th Th'|_F$ and b = alpha, so that |A|_F = b [Boursier & Boyer, (9)].

    **Arguments:** `theta` = Th is the identity if None. Warns if alpha lies outside the interval of
    the paper (`admissible_alpha`); the flow converges there too.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> start = lp.balanced_init(lp.LinearRegression(jnp.eye(4)), alpha=0.5)
    >>> print(round(float(jnp.linalg.norm(start.A)), 6), float(start.b))
    0.5 0.5
    """
    d = len(input_covariance(task, "balanced_init"))
    value = _checks.number("alpha", alpha, "pass a number > 0", above=0.0)
    root = np.eye(d) if theta is None else _checks.known_finite("theta", theta)
    root = _checks.shaped("theta", root, (d, "k"))
    product = root @ root.T
    norm = np.linalg.norm(product)
    if not norm > 0:
        raise _checks.error("theta must not be zero", "a zero matrix", "pass jnp.eye(d)")
    largest = admissible_alpha(task)
    if value >= largest:
        warnings.warn(
            f"alpha = {value:g} lies outside the interval (0, {largest:.4g}) of the "
            "initialisation (9) of Boursier & Boyer",
            stacklevel=3,
        )
    return BlockParams(value * product / norm, value)
