"""How long must the prompt be."""

import math
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._float64 import not_traced
from .._progress import progress_bar
from .._search import smallest_length
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from ..prompts import AbstractMethod, AbstractQuantity, MonteCarlo, OutputError, SecondMoment
from ..prompts.methods import as_method
from ..prompts.quantities import as_quantity
from ..prompts.query_averages import AlongLength, check_dimensions
from ._query_law import query_law

LONGEST = 1e15


class PromptLength(NamedTuple):
    """The number of tokens from which on the tolerance is met (infinity if above 1e15), the error
    there, and a sentence.
    """

    length: float
    error: float
    tolerance: float
    sentence: str


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@not_traced
def prompt_length_for(
    head: AbstractHead,
    mu: AbstractMeasure,
    z: AbstractMeasure | ArrayInput,
    tolerance: ArrayInput,
    *,
    relative: bool = False,
    quantity: AbstractQuantity | None = None,
    method: AbstractMethod | None = None,
) -> PromptLength:
    """The length from which on $E |T_L(z) - T(z)|^2 <= tolerance$, without sampling a prompt.

    The error of dT/dU may be small at L = 1, rise, and fall again: shorter prompts than the answer
    may meet the tolerance, the one before it does not. Where points are random, two standard errors
    are added first.

    **Arguments:** `z` is one query of shape (d,), or the law of the query, over which the error is
    then averaged. With `relative=True` the tolerance is a fraction of $E |T(z)|^2$ (only for
    `OutputError()`). `quantity` as in `concentration_curve`; `method` is `Exact()` (None) or
    `QuasiMonteCarlo(key)`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> print(lp.prompt_length_for(head, mu, jnp.ones(2), 0.01, relative=True).sentence)
    1312 tokens bring the squared error down to 0.02, which is 0.01 of E|T|^2.
    """
    quantity = as_quantity(OutputError() if quantity is None else quantity)
    method = as_method(method)
    nu = query_law("z", z)
    check_dimensions(head, mu, nu)
    share = ""
    target = _checks.number("tolerance", tolerance, "pass for example 0.01", above=0.0)
    if isinstance(method, MonteCarlo):
        raise _checks.error(
            f"the search goes up to {LONGEST:g} tokens, too many to sample",
            "method=MonteCarlo",
            "pass lp.QuasiMonteCarlo(key)",
        )
    if relative:
        if quantity.label != "output":
            raise _checks.error(
                "relative tolerances are for quantity=OutputError()",
                repr(quantity),
                "pass an absolute tolerance",
            )
        share = f", which is {target:.3g} of E|T|^2"
        target *= _size_of_limit(head, mu, nu, method)
    return _search(method.along_length(quantity, head, mu, nu, LONGEST), target, share)


def _size_of_limit(
    head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure, method: AbstractMethod
) -> float:
    """E |T(z)|^2 over queries."""
    second = method.expect(SecondMoment(), head, mu, nu, math.inf).value
    size = float(np.trace(np.asarray(second)))
    if not size > 0:
        raise _checks.error(
            "a relative tolerance needs a limit that is not 0",
            "a configuration whose infinite-prompt output vanishes",
            "pass relative=False and an absolute tolerance",
        )
    return size


def _search(error: AlongLength, target: float, share: str) -> PromptLength:
    """The length from which on the error, plus two of its own errors, is at most the target.

    `share` says in the sentence what fraction a relative target is.
    """

    def too_large(lengths: np.ndarray) -> np.ndarray:
        found = error(lengths)
        advance(len(lengths))
        return found.value + 2 * found.error > target

    with progress_bar("searching for the length", unit="lengths") as advance:
        length = smallest_length(too_large, LONGEST)
    if math.isinf(length):
        left = float(error(np.array([LONGEST])).value[0])
        sentence = (
            f"No prompt of up to {LONGEST:g} tokens is long enough: the squared error is still "
            f"{left:.3g} there, above {target:.3g}{share}."
        )
        return PromptLength(math.inf, left, target, sentence)
    reached = float(error(np.array([length])).value[0])
    shown = f"{length:.0f}" if length < 1e7 else f"{length:.4g}"
    plural = "token brings" if length == 1 else "tokens bring"
    sentence = f"{shown} {plural} the squared error down to {target:.3g}{share}."
    return PromptLength(length, reached, target, sentence)
