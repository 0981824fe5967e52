"""How long must the prompt be."""

import math
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._typing import ArrayInput
from ..attention import Head
from ..measures import AbstractMeasure, Dirac
from ..prompts import AbstractMethod, AbstractQuantity, MonteCarlo, OutputError, SecondMoment
from ..prompts.methods import as_method
from ..prompts.quantities import as_quantity
from ..prompts.query_averages import AlongLength, check_dimensions

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


def prompt_length_for(
    head: Head,
    mu: AbstractMeasure,
    z: AbstractMeasure | ArrayInput,
    tolerance: ArrayInput,
    *,
    relative: bool = False,
    quantity: AbstractQuantity | None = None,
    method: AbstractMethod | None = None,
) -> PromptLength:
    """The length from which on E |T_L(z) - T(z)|^2 <= tolerance, without sampling a prompt.

    The error of dT/dU may be small at L = 1, rise, and fall again: shorter prompts than the answer
    may meet the tolerance, the one before it does not. Where points are random, two standard errors
    are added first.

    **Arguments:** `z` is one query of shape (d,), or the law of the query, over which the error is
    then averaged. With `relative=True` the tolerance is a fraction of E |T(z)|^2 (only for
    `OutputError()`). `quantity` as in `concentration_curve`; `method` is `Exact()` (None) or
    `QuasiMonteCarlo(key)`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> print(lp.prompt_length_for(head, mu, jnp.ones(2), 0.01, relative=True).sentence)
    1312 tokens bring the squared error down to 0.02.
    """
    quantity = as_quantity(OutputError() if quantity is None else quantity)
    method = as_method(method)
    nu = z if isinstance(z, AbstractMeasure) else Dirac(z)
    check_dimensions(head, mu, nu)
    target = _checks.number("tolerance", tolerance, "pass for example 0.01", above=0.0)
    if isinstance(method, MonteCarlo):
        raise ValueError(
            _checks.message(
                f"the search goes up to {LONGEST:g} tokens, too many to sample",
                "method=MonteCarlo",
                "pass lp.QuasiMonteCarlo(key)",
            )
        )
    if relative:
        if quantity.label != "output":
            raise ValueError(
                _checks.message(
                    "relative tolerances are for quantity=OutputError()",
                    repr(quantity),
                    "pass an absolute tolerance",
                )
            )
        target *= _size_of_limit(head, mu, nu, method)
    return _search(method.along_length(quantity, head, mu, nu, LONGEST), target)


def _size_of_limit(
    head: Head, mu: AbstractMeasure, nu: AbstractMeasure, method: AbstractMethod
) -> float:
    """E |T(z)|^2 over queries."""
    second = method.expect(SecondMoment(), head, mu, nu, math.inf).value
    size = float(np.trace(np.asarray(second)))
    if not size > 0:
        raise ValueError(
            _checks.message(
                "a relative tolerance needs a limit that is not 0",
                "a configuration whose infinite-prompt output vanishes",
                "pass relative=False and an absolute tolerance",
            )
        )
    return size


def _search(error: AlongLength, target: float) -> PromptLength:
    """The last crossing on a coarse scan, which ends a thousandfold beyond it; then bisection by
    many points at once, to whole tokens.
    """

    def too_large(lengths: np.ndarray) -> np.ndarray:
        found = error(lengths)
        return found.value + 2 * found.error > target

    lengths = np.arange(1.0, _SHORT + 1)
    large = too_large(lengths)
    while large[-_SCAN:].any() and lengths[-1] < LONGEST:
        further = np.geomspace(lengths[-1], min(1e3 * lengths[-1], LONGEST), _SCAN + 1)[1:]
        lengths, large = np.append(lengths, further), np.append(large, too_large(further))
    above = np.flatnonzero(large)
    last = int(above[-1]) if above.size else -1
    if last == len(lengths) - 1:
        left = float(error(lengths[-1:]).value[0])
        sentence = (
            f"No prompt of up to {LONGEST:g} tokens is long enough: the squared error is still "
            f"{left:.3g} there, above {target:.3g}."
        )
        return PromptLength(math.inf, left, target, sentence)
    low, high = (lengths[last], lengths[last + 1]) if above.size else (1.0, 1.0)
    # whole tokens, or nine digits of the length where whole tokens are beyond the accuracy of the
    # error
    while high - low > max(1.0, 1e-9 * high):
        inside = np.unique(np.round(np.geomspace(low, high, 18)[1:-1]))
        large = too_large(inside)
        low = inside[large].max(initial=low)
        high = inside[~large & (inside > low)].min(initial=high)
    length = math.ceil(high)
    reached = float(error(np.array([float(length)])).value[0])
    shown = f"{length}" if length < 1e7 else f"{length:.4g}"
    plural = "token brings" if length == 1 else "tokens bring"
    sentence = f"{shown} {plural} the squared error down to {target:.3g}."
    return PromptLength(float(length), reached, target, sentence)
