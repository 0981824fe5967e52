"""How long must the prompt be."""

import math
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._typing import ArrayInput, KeyInput
from ..attention import Head, attend
from ..measures import AbstractMeasure, Dirac, Gaussian
from ..prompts._exact import exact
from ._errors import (
    Route,
    average_error,
    average_over,
    check_dimensions,
    tokens_and_queries,
)
from ._quantities import Quantity, checked_quantity

LONGEST = 1e15
_SCAN = 61  # lengths that bracket the first crossing


class PromptLength(NamedTuple):
    """The smallest number of tokens (infinity if there is none up to 1e15), the error there, and a sentence."""

    length: float
    error: float
    tolerance: float
    sentence: str


@exact
def prompt_length_for(
    head: Head,
    mu: AbstractMeasure,
    z: AbstractMeasure | ArrayInput,
    tolerance: ArrayInput,
    *,
    relative: bool = False,
    quantity: Quantity = "output",
    key: KeyInput | None = None,
) -> PromptLength:
    """The smallest L with E |T[mu_L](z) - T[mu](z)|^2 <= tolerance, without sampling a prompt.

    **Arguments:** `z` is one query of shape (d,), or the law of the query, over which the error is then averaged. With
    `relative=True` the tolerance is a fraction of E |T[mu](z)|^2 (only for `quantity="output"`). `key` as in `concentration_curve`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> print(lp.prompt_length_for(head, mu, jnp.ones(2), 0.01, relative=True).sentence)
    1312 tokens bring the squared error down to 0.02.
    """
    quantity = checked_quantity(quantity)
    nu = z if isinstance(z, AbstractMeasure) else Dirac(z)
    check_dimensions(head, mu, nu)
    target = _checks.number("tolerance", tolerance, "pass for example 0.01", above=0.0)
    if relative:
        if quantity != "output":
            raise ValueError(
                _checks.message(
                    "relative tolerances are for quantity='output'",
                    repr(quantity),
                    "pass an absolute tolerance",
                )
            )
        target *= _size_of_limit(head, mu, nu, key)
    route = average_error(head, mu, nu, quantity, LONGEST, key)
    return _search(route, target)


def _size_of_limit(
    head: Head, mu: AbstractMeasure, nu: AbstractMeasure, key: KeyInput | None
) -> float:
    """E |T[mu](z)|^2 over queries."""
    if isinstance(mu, Gaussian):  # T is affine: two moments of the query decide
        V, U, G, m = (np.asarray(a) for a in (head.V, head.U, mu.covariance, mu.centre))
        slope = V @ G @ U
        mean = V @ m + slope @ np.asarray(nu.mean())
        size = float(np.sum(mean**2) + np.trace(slope @ np.asarray(nu.cov()) @ slope.T))
    else:

        def square(head, law, z, L):
            return np.sum(np.asarray(attend(head, mu, z)) ** 2, axis=-1)

        pairings = tokens_and_queries(head, mu, nu, key)
        size = float(average_over(pairings, square, head, np.array([math.inf])).value[0])
    if not size > 0:
        raise ValueError(
            _checks.message(
                "a relative tolerance needs a limit that is not 0",
                "a configuration whose infinite-prompt output vanishes",
                "pass relative=False and an absolute tolerance",
            )
        )
    return size


def _search(route: Route, target: float) -> PromptLength:
    """The first crossing on a coarse scan, then bisection by many points at once, then whole tokens."""
    lengths = np.geomspace(1.0, LONGEST, _SCAN)
    errors = route.evaluate(lengths).value
    below = np.flatnonzero(errors <= target)
    if not below.size:
        sentence = (
            f"No prompt of up to {LONGEST:g} tokens is long enough: the squared error is still {errors[-1]:.3g} there, "
            f"above {target:.3g}."
        )
        return PromptLength(math.inf, float(errors[-1]), target, sentence)
    first = int(below[0])
    low, high = (lengths[first - 1], lengths[first]) if first else (1.0, 1.0)
    # whole tokens, or nine digits of the length where whole tokens are beyond the accuracy of the error
    while high - low > max(1.0, 1e-9 * high):
        inside = np.unique(np.round(np.geomspace(low, high, 18)[1:-1]))
        found = route.evaluate(inside).value <= target
        low = inside[~found].max(initial=low)
        high = inside[found & (inside > low)].min(initial=high)
    length = math.ceil(high)
    error = float(route.evaluate(np.array([float(length)])).value[0])
    shown = f"{length}" if length < 1e7 else f"{length:.4g}"
    plural = "token brings" if length == 1 else "tokens bring"
    sentence = f"{shown} {plural} the squared error down to {target:.3g}."
    return PromptLength(float(length), error, target, sentence)
