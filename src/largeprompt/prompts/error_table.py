"""Squared errors of atoms and Gaussian mixtures as functions of L, from sums made once."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import to_numpy
from .._float64 import in_float64
from .._lengths import length_vector
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from . import engine
from .gaussian_tokens import Bounded
from .jacobian_form import Sums
from .laplace_batches import LONGEST, certified, known_integrals, known_sums
from .mixture_tokens import needed_law
from .pairs import indexed_pairs

ErrorOf = Literal["output", "gradient_U", "gradient_V"]


class LengthErrors(NamedTuple):
    """Squared errors, and the certified relative error of each (at most 1e-9)."""

    value: Float[np.ndarray, "*batch lengths"]
    relative_error: Float[np.ndarray, "*batch lengths"]


class ErrorTable(eqx.Module):
    """Squared errors of a discrete law at all lengths, from sums made once: see `error_table`."""

    output: tuple[engine.Sums, ...]  # of each query; or, of dT/dU,
    jacobian: tuple[Sums, ...]
    factor: Float[np.ndarray, " queries"]
    batch: tuple[int, ...] = eqx.field(static=True)
    longest: float = eqx.field(static=True)
    widest: float = eqx.field(static=True)  # difference of the scores of two tokens

    def at(self, lengths: ArrayInput) -> LengthErrors:
        """The squared errors at `lengths`: known numbers from 1 to `longest`, or infinity.

        Costs a sum over the nodes for each query and length, whatever the number of atoms.
        """
        L = length_vector(lengths)
        finite = np.isfinite(L)
        if np.any(finite & (self.longest < L)):
            raise _checks.error(
                f"lengths must be at most {self.longest:g}, or infinity",
                f"{np.max(L[finite]):g}",
                "pass a larger `longest` to error_table",
            )
        padded = np.where(finite, L, 1.0)
        if self.output:
            with np.errstate(all="ignore"):
                each = [engine.moments(sums, padded) for sums in self.output]
            value, error = np.stack([(e.second, e.second_error) for e in each], axis=1)
            error = np.where(value > 0, error / np.where(value > 0, value, 1.0), 0.0)
        else:
            each = [known_integrals(sums, padded) for sums in self.jacobian]
            value, error = np.stack(each, axis=1)
        value = self.factor[:, None] * certified(value, error, lambda: self.widest)
        value, error = (np.where(finite, a, 0.0) for a in (value, error))
        return LengthErrors(*(a.reshape(*self.batch, len(L)) for a in (value, error)))

    def bounded(self, lengths: np.ndarray) -> Bounded:
        """`at`, with absolute errors."""
        found = self.at(lengths)
        return Bounded(found.value, found.value * found.relative_error)


@in_float64
def error_table(
    head: AbstractHead,
    laws: Sequence[AbstractMeasure],
    z: ArrayInput,
    of: ErrorOf = "output",
    *,
    longest: float = LONGEST,
) -> ErrorTable:
    """Squared errors of T, dT/dU or dT/dV at the queries z, for any length up to `longest`.

    All sums over atoms happen here, once; `.at(lengths)` then costs microseconds for each query and
    length. The values are those of `output_error` and `gradient_error`.

    **Arguments:** `laws` holds the law of the tokens, or one law for each query, all with the same
    number of atoms.
    `z` of shape (..., d). `of` is "output", "gradient_U" or "gradient_V".

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> from largeprompt.prompts.error_table import error_table
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> table = error_table(head, [lp.Empirical([[-1.0], [1.0]])], jnp.ones((3, 1)))
    >>> found = table.at([1.0, 100.0, 1e15])
    >>> (found.value.shape, bool(found.relative_error.max() < 1e-12))
    ((3, 3), True)
    """
    longest = _checks.number("longest", longest, "pass for example 1e15", least=1.0)
    queries, tilts, which, _ = indexed_pairs(head, laws[0], z, 1.0)
    batch, count = which.shape, len(queries)
    if of == "gradient_V":
        head, factor = head.reading_tokens(), np.full(count, float(head.out_dim))
    else:
        factor = (queries**2).sum(-1) if of == "gradient_U" else np.ones(count)
    known = [to_numpy(needed_law(law)) for law in laws]
    widest = max(law.widest_scores(tilts) for law in known)
    V, ends = to_numpy(head.V), (1.0, longest)
    output: tuple[engine.Sums, ...] = ()
    jacobian: tuple[Sums, ...] = ()
    pairs = list(zip(known * count if len(known) == 1 else known, tilts, strict=True))
    if of == "gradient_U":
        jacobian = tuple(known_sums(V, law, tilt, ends) for law, tilt in pairs)
    else:
        with np.errstate(all="ignore"):
            output = tuple(engine.one_head(law, tilt, V, ends, trace=True) for law, tilt in pairs)
    return ErrorTable(output, jacobian, factor, batch, longest, widest)
