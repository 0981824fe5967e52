"""What a prompt of L tokens does on average: the public functions, and which route serves which measure."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._float64 import in_float64
from .._typing import ArrayInput
from ..attention import Head, attend
from ..measures import AbstractMeasure, Dirac, Empirical, Gaussian
from ..measures.transforms import without_spread
from ..participation import gradient_moments, participation
from . import discrete_tokens as discrete
from . import gaussian_tokens as gaussian
from .gaussian_tokens import GradientError
from .pairs import indexed_pairs, pairs


def _law(measure: AbstractMeasure, wanted: str) -> Gaussian | Empirical:
    """The measure as one of the two kinds of law with exact finite-prompt quantities."""
    if isinstance(measure, Dirac):
        return without_spread(measure)
    if isinstance(measure, (Gaussian, Empirical)):
        return measure
    raise ValueError(
        _checks.message(
            f"{wanted} is exact for Gaussian tokens and for tokens drawn from an Empirical (discrete) law",
            f"a {type(measure).__name__}",
            "use quasi_estimate(key, quantity, ...) or estimate(key, quantity, ...), which work for every measure with a "
            "sampler",
        )
    )


@eqx.filter_jit
def _compiled(function: Callable, *args: Any) -> Any:
    """One compiled program per function and shapes: values never recompile."""
    return function(*args)


def _gaussian(
    function: Callable, moments: Callable, head: Head, law: Gaussian, tilts: Array, L: Array, *more
) -> Any:
    """A formula of `gaussian` at the moments of its scores, which stay outside its program: theirs serves every shape."""
    scores = _compiled(gaussian.scores_of, law, tilts)
    return _compiled(function, head, law, scores, moments(scores.sigma, L), *more)


@in_float64
def finite_mean(
    head: Head, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Float[Array, "*shape m"]:
    """E T[mu_L](z), the mean output over prompts of L iid tokens.

    For Gaussian tokens V m + (1 - P_2) V G U z: the finite prompt shrinks its limit by 1 - P_2. For an `Empirical` mu, tokens are
    drawn from its atoms.

    **Arguments:** `z` of shape (..., d) and `L` >= 1 (real; infinity selects the limit), broadcast against each other.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> print(lp.finite_mean(head, mu, jnp.ones(1), jnp.array([1.0, 100.0, jnp.inf])).ravel().round(4))
    [0.     0.9745 1.    ]
    """
    law = _law(mu, "finite_mean")
    if isinstance(law, Gaussian):
        _, tilts, L = pairs(head, law, z, L)
        return _gaussian(gaussian.mean, participation, head, law, tilts, L)
    _, tilts, index, L = indexed_pairs(head, law, z, L)
    limit = attend(Head(U=jnp.eye(head.dim), V=head.V), law, tilts)[index]
    return limit + discrete.mean_shift(head, law, tilts, index, L)


@in_float64
def finite_second_moment(
    head: Head, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Float[Array, "*shape m m"]:
    """E T[mu_L](z) T[mu_L](z)', the full m x m matrix. Arguments as in `finite_mean`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> print(lp.finite_second_moment(head, lp.Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.ones(1), 1.0))
    [[1.]]
    """
    law = _law(mu, "finite_second_moment")
    if isinstance(law, Gaussian):
        _, tilts, L = pairs(head, law, z, L)
        return _gaussian(gaussian.second_moment, participation, head, law, tilts, L)
    _, tilts, index, L = indexed_pairs(head, law, z, L)
    limit = attend(Head(U=jnp.eye(head.dim), V=head.V), law, tilts)[index]
    shift = discrete.mean_shift(head, law, tilts, index, L)
    cross = limit[..., :, None] * shift[..., None, :]
    return (
        limit[..., :, None] * limit[..., None, :]
        + cross
        + jnp.swapaxes(cross, -1, -2)
        + discrete.error_matrix(head, law, tilts, index, L)
    )


@in_float64
def output_error(
    head: Head, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Float[Array, "*shape"]:
    """E |T[mu_L](z) - T[mu](z)|^2, the squared error of a prompt of L tokens against the infinite prompt, exactly.

    For Gaussian tokens tr(V G V') P_2 + |V G U z|^2 (P_2 - 6 P_3 + 6 P_22). Arguments as in `finite_mean`; 0 at L = infinity.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> print(lp.output_error(head, lp.Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.ones(1), 1e9).round(14))
    5.43656e-09
    """
    law = _law(mu, "output_error")
    if isinstance(law, Gaussian):
        _, tilts, L = pairs(head, law, z, L)
        return _gaussian(gaussian.output_error, participation, head, law, tilts, L)
    _, tilts, index, L = indexed_pairs(head, law, z, L)
    return discrete.output_error(head, law, tilts, index, L)


@in_float64
def gradient_error(head: Head, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> GradientError:
    """E |dT_L/dU - dT_inf/dU|^2 and E |dT_L/dV - dT_inf/dV|^2 (Frobenius), exactly: what Prop. 3.4 of Boursier & Boyer bounds.

    Arguments as in `finite_mean`. **Returns:** a pair with fields `U` and `V`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.zeros((1, 1)), V=jnp.eye(1))
    >>> error = lp.gradient_error(head, lp.Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.ones(1), 1.0)
    >>> print(error.U.round(10), error.V.round(10))  # both errors are exactly 1 at L = 1
    1.0 1.0
    """
    law = _law(mu, "gradient_error")
    if isinstance(law, Gaussian):
        z, tilts, L = pairs(head, law, z, L)
        return _gaussian(gaussian.gradient_error, gradient_moments, head, law, tilts, L, z)
    return discrete.gradient_error(head, law, *indexed_pairs(head, law, z, L))
