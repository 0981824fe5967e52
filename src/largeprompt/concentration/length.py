"""How long must the prompt be."""

import math
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._float64 import in_float64
from .._typing import ArrayInput, KeyInput
from ..attention import Head, attend
from ..measures import AbstractMeasure, Dirac, Gaussian
from ._errors import (
    Route,
    average_error,
    average_over,
    check_dimensions,
    tokens_and_queries,
)
from ._quantities import Quantity, checked_quantity

LONGEST = 1e15
_SHORT = 16  # every length up to here is evaluated: errors of dT/dU rise before they fall
_SCAN = 14  # lengths to the next thousandfold from there on


class PromptLength(NamedTuple):
    """The number of tokens from which on the tolerance is met (infinity if above 1e15), the error
    there, and a sentence.
    """

    length: float
    error: float
    tolerance: float
    sentence: str


@in_float64
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
    """The length from which on E |T[mu_L](z) - T[mu](z)|^2 <= tolerance, without sampling a prompt.

    The error of dT/dU may be small at L = 1, rise, and fall again: shorter prompts than the answer
    may meet the tolerance, the one before it does not. Where points are random (see
    `concentration_curve`), two standard errors are added first.

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
    """The last crossing on a coarse scan, which ends a thousandfold beyond it; then bisection by
    many points at once, to whole tokens.
    """

    def too_large(lengths: np.ndarray) -> np.ndarray:
        found = route.evaluate(lengths)
        return found.value + 2 * found.error > target

    lengths = np.arange(1.0, _SHORT + 1)
    large = too_large(lengths)
    while large[-_SCAN:].any() and lengths[-1] < LONGEST:
        further = np.geomspace(lengths[-1], min(1e3 * lengths[-1], LONGEST), _SCAN + 1)[1:]
        lengths, large = np.append(lengths, further), np.append(large, too_large(further))
    above = np.flatnonzero(large)
    last = int(above[-1]) if above.size else -1
    if last == len(lengths) - 1:
        left = float(route.evaluate(lengths[-1:]).value[0])
        sentence = (
            f"No prompt of up to {LONGEST:g} tokens is long enough: the squared error is still {left:.3g} there, "
            f"above {target:.3g}."
        )
        return PromptLength(math.inf, left, target, sentence)
    low, high = (lengths[last], lengths[last + 1]) if above.size else (1.0, 1.0)
    # whole tokens, or nine digits of the length where whole tokens are beyond the accuracy of the error
    while high - low > max(1.0, 1e-9 * high):
        inside = np.unique(np.round(np.geomspace(low, high, 18)[1:-1]))
        large = too_large(inside)
        low = inside[large].max(initial=low)
        high = inside[~large & (inside > low)].min(initial=high)
    length = math.ceil(high)
    error = float(route.evaluate(np.array([float(length)])).value[0])
    shown = f"{length}" if length < 1e7 else f"{length:.4g}"
    plural = "token brings" if length == 1 else "tokens bring"
    sentence = f"{shown} {plural} the squared error down to {target:.3g}."
    return PromptLength(float(length), error, target, sentence)
