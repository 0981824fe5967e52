"""The average of a quantity over prompts of L tokens: one door, and short spellings of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._typing import Array, ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from .methods import AbstractMethod, Estimate, as_method
from .quantities import (
    AbstractQuantity,
    GradientError,
    Output,
    OutputError,
    SecondMoment,
    as_quantity,
)


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def expect(
    quantity: AbstractQuantity | Callable[[Array], Any],
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput | AbstractMeasure,
    L: ArrayInput,
    method: AbstractMethod | None = None,
) -> Estimate:
    """Average of `quantity` over prompts of L iid tokens of law mu, with its error.

    **Arguments:** `quantity` is `Output()`, `SecondMoment()`, `OutputError()`,
    `GradientError("U")` or `("V")`, `ErrorQuantiles(levels)` (quantiles in place of the average,
    by sampling), or a function of the output, of shape (m,). `z` is a query of shape (d,), a batch
    of shape (..., d), or a measure: the law over which to average. `L` >= 1 (real; infinity is the
    infinite prompt) broadcasts against the batch. `method` is `Exact()`, `QuasiMonteCarlo(key)` or
    `MonteCarlo(key)`; None means `Exact()`, which raises where no exact average is known and names
    the methods that serve.

    **Returns:** an `Estimate` with `value`, `error` (numerical error, or standard error where
    prompts or points are random) and `method`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> exact = lp.expect(lp.OutputError(), head, mu, jnp.ones(2), L=1000)
    >>> method = lp.MonteCarlo(jax.random.key(0), relative_error=0.05)
    >>> sampled = lp.expect(lp.OutputError(), head, mu, jnp.ones(2), 1000, method)
    >>> gap = abs(float(sampled.value) - float(exact.value))
    >>> print(exact.value.round(6), bool(gap < 4 * sampled.error))
    0.025533 True
    >>> over_queries = lp.expect(lp.OutputError(), head, mu, mu, L=jnp.array([10.0, 1e6]))
    >>> print(over_queries.value.round(6))
    [0.815985 0.001027]
    """
    return as_method(method).expect(as_quantity(quantity), head, mu, z, L)


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def finite_mean(
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput | AbstractMeasure,
    L: ArrayInput,
    method: AbstractMethod | None = None,
) -> Float[Array | np.ndarray, "*shape m"]:
    """$E T_L$, the mean output over prompts of L iid tokens: the value of `expect(Output(), ...)`.

    For Gaussian tokens $V m + (1 - P_2) V G U z$: the finite prompt shrinks its limit by $1 - P_2$.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> lengths = jnp.array([1.0, 100.0, jnp.inf])
    >>> print(lp.finite_mean(head, mu, jnp.ones(1), lengths).ravel().round(4))
    [0.     0.9745 1.    ]
    """
    return expect(Output(), head, mu, z, L, method).value


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def finite_second_moment(
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput | AbstractMeasure,
    L: ArrayInput,
    method: AbstractMethod | None = None,
) -> Float[Array | np.ndarray, "*shape m m"]:
    """$E T_L T_L'$, the full m x m matrix: the value of `expect(SecondMoment(), ...)`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> print(lp.finite_second_moment(head, mu, jnp.ones(1), 1.0))
    [[1.]]
    """
    return expect(SecondMoment(), head, mu, z, L, method).value


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def output_error(
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput | AbstractMeasure,
    L: ArrayInput,
    method: AbstractMethod | None = None,
) -> Float[Array | np.ndarray, "*shape"]:
    """$E |T_L - T|^2$, the squared error of a prompt of L tokens against the infinite prompt: the
    value of `expect(OutputError(), ...)`.

    For Gaussian tokens $tr(V G V') P_2 + |V G U z|^2 (P_2 - 6 P_3 + 6 P_22)$; 0 at L = infinity.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> print(lp.output_error(head, mu, jnp.ones(1), 1e9).round(14))
    5.43656e-09
    """
    return expect(OutputError(), head, mu, z, L, method).value


class GradientErrors(NamedTuple):
    """$E |dT_L/dU - dT/dU|^2$ and $E |dT_L/dV - dT/dV|^2$, squared Frobenius norms."""

    U: Float[Array | np.ndarray, "*shape"]
    V: Float[Array | np.ndarray, "*shape"]


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def gradient_error(
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput | AbstractMeasure,
    L: ArrayInput,
    method: AbstractMethod | None = None,
) -> GradientErrors:
    """Squared errors of dT_L/dU and dT_L/dV, which Prop. 3.4 of Boursier & Boyer bounds: the
    values of `expect(GradientError("U"), ...)` and `("V")`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.zeros((1, 1)), V=jnp.eye(1))
    >>> error = lp.gradient_error(head, lp.Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.ones(1), 1.0)
    >>> print(error.U.round(10), error.V.round(10))  # both errors are exactly 1 at L = 1
    1.0 1.0
    """
    by_U, by_V = (
        expect(GradientError(matrix), head, mu, z, L, method).value for matrix in ("U", "V")
    )
    return GradientErrors(by_U, by_V)
