"""Exact finite-prompt averages for tokens of atoms and Gaussians, at given queries: a vocabulary,
embeddings, a Gaussian mixture.

Each function returns the value and a bound on its numerical error, from the Laplace integrals of
`output_forms` and `jacobian_form`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from .. import _checks
from .._arrays import Values, to_jax, to_numpy
from .._float64 import is_traced
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from .gaussian_tokens import Bounded
from .jacobian_form import JACOBIAN
from .laplace_batches import averages_of
from .laplace_integral import Form
from .output_forms import MATRIX, MEAN, OUTPUT
from .pairs import indexed_pairs
from .token_laws import TokenLaw, token_law

_EPSILON = 2.0**-52


class _Asked(NamedTuple):
    """Law, queries and lengths of a call: in NumPy if they are known."""

    head: AbstractHead
    law: TokenLaw
    queries: Values
    tilts: Values
    which: np.ndarray
    L: Values

    def average(self, form: Form) -> Bounded:
        return averages_of(form, self.head, self.law, self.tilts, self.which, self.L)

    def limit(self) -> Values:
        """T at every pair of a query and a length."""
        if is_traced(self.law, self.tilts):
            means = jax.vmap(self.law.tilted_mean)(self.tilts)
        else:
            means = np.stack([self.law.tilted_mean(tilt) for tilt in self.tilts])
        return (means @ self.head.V.T)[self.which]


def _by_library(function: Callable[[_Asked], Bounded]) -> Callable[..., Bounded]:
    """The function of (head, mu, z, L), by NumPy if all numbers are known and by JAX otherwise."""

    def wrapped(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
        pairs = indexed_pairs(head, mu, z, L)
        law = needed_law(mu)
        if not is_traced(head, law, *pairs):
            head, law = to_numpy((head, law))
            return function(_Asked(head, law, *pairs))
        with jax.default_matmul_precision("highest"):
            head, law, queries, tilts, L = to_jax((head, law, *pairs[:2], pairs.L))
            return function(_Asked(head, law, queries, tilts, pairs.which, L))

    return wrapped


def require_law(mu: AbstractMeasure, what: str, fix: str) -> None:
    """Raise for tokens that are not atoms and Gaussians: `what` is not known exactly for them."""
    if token_law(mu) is None:
        rule = f"{what} is known for Gaussian tokens, atoms and their mixtures"
        raise _checks.error(rule, type(mu).__name__, fix)


def needed_law(mu: AbstractMeasure) -> TokenLaw:
    """The law of the tokens as atoms and Gaussians, which it must be."""
    law = token_law(mu)
    assert law is not None  # callers ask only where it is known
    return law


@_by_library
def mean(asked: _Asked) -> Bounded:
    """E T_L."""
    limit, shift = asked.limit(), asked.average(MEAN)
    return Bounded(limit + shift.value, shift.error + _EPSILON * abs(limit))


@_by_library
def mean_shift(asked: _Asked) -> Bounded:
    """E T_L - T."""
    return asked.average(MEAN)


@_by_library
def second_moment(asked: _Asked) -> Bounded:
    """E T_L T_L'."""
    limit, shift = asked.limit(), asked.average(MEAN)

    def both_ways(a: Values, b: Values) -> Values:
        product = a[..., :, None] * b[..., None, :]
        return product + product.mT

    square = limit[..., :, None] * limit[..., None, :]
    around = asked.average(MATRIX)
    value = square + both_ways(limit, shift.value) + around.value
    error = both_ways(abs(limit), shift.error) + around.error + 2 * _EPSILON * abs(square)
    return Bounded(value, error)


@_by_library
def second_moment_of_error(asked: _Asked) -> Bounded:
    """E (T_L - T)(T_L - T)'."""
    return asked.average(MATRIX)


@_by_library
def output_error(asked: _Asked) -> Bounded:
    """E |T_L - T|^2."""
    return asked.average(OUTPUT)


@_by_library
def gradient_error_U(asked: _Asked) -> Bounded:
    """E |dT_L/dU - dT/dU|^2."""
    found = asked.average(JACOBIAN)
    square = (asked.queries**2).sum(-1)[asked.which]
    return Bounded(square * found.value, square * found.error)


def gradient_error_V(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |dT_L/dV - dT/dV|^2: m times the squared error of the mean token."""
    found = output_error(head.reading_tokens(), mu, z, L)
    return Bounded(head.out_dim * found.value, head.out_dim * found.error)
