"""How long must the prompt be."""

import math
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._float64 import not_traced
from .._progress import progress_bar
from .._search import last_crossing, scan
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from ..prompts import AbstractMethod, AbstractQuantity, MonteCarlo, OutputError, SecondMoment
from ..prompts.methods import as_method
from ..prompts.quantities import as_quantity
from ..prompts.query_averages import AlongLength, Values, check_dimensions
from ._query_law import query_law

LONGEST = 1e15
_SHORT = 100.0  # averages over wide scores may not be known for some prompts below this length
_NUMERICAL = 1e-9  # relative errors up to here are rounding, and do not lengthen a prompt
_TIE = 1e-12  # relative distance at which an error meets the tolerance
_AT_ONCE = 16  # the most lengths evaluated between two steps of the progress bar
_STEP = 0.5  # seconds that such a step should take
_PATIENCE = 1800.0  # seconds that the scan of all lengths may be expected to take


class PromptLength(NamedTuple):
    """The number of tokens from which on the tolerance is met (infinity if above 1e15), the error
    there, the tolerance, and a sentence.

    Where points are random, the tolerance is met with two standard errors to spare, and `interval`
    has the lengths for which it is met with two standard errors less and with two more.
    """

    length: float
    error: float
    tolerance: float
    sentence: str
    interval: tuple[float, float]


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

    An error may be small at L = 1, rise, and fall again. So all lengths from 1 to 1e15 are scanned:
    shorter prompts than the answer may meet the tolerance, the one before it does not. The scan is
    fine enough for every peak of the error (`largeprompt._search`), at a cost that does not depend
    on L. The sentence says so if the error is not known at the shortest or the longest lengths.

    **Arguments:** `z` is one query of shape (d,), or the law of the query, over which the error is
    then averaged. With `relative=True` the tolerance is a fraction of $E |T(z)|^2$ (only for
    `OutputError()`). `quantity` as in `concentration_curve`; `method` is `Exact()` (None) or
    `QuasiMonteCarlo(key)`.

    **Returns:** a `PromptLength`. Where points are random, its `length` includes two standard
    errors, and `interval` is the range of two standard errors to either side.

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
    if not quantity.refers_to_limit:
        raise _checks.error(
            "a length is sought for a distance to the infinite prompt",
            quantity.name,
            "pass lp.OutputError() or lp.GradientError('U' or 'V')",
        )
    share = ""
    target = _checks.number("tolerance", tolerance, "pass for example 0.01", above=0.0)
    ends = (target, target)
    if isinstance(method, MonteCarlo):
        raise _checks.error(
            f"the search goes up to {LONGEST:g} tokens, too many to sample",
            "method=MonteCarlo",
            f"pass lp.QuasiMonteCarlo(key), or {_SAMPLED}",
        )
    try:
        if relative:
            if quantity.label != "output":
                raise _checks.error(
                    "relative tolerances are for quantity=OutputError()",
                    repr(quantity),
                    "pass an absolute tolerance",
                )
            share = f", which is {target:.3g} of E|T|^2"
            size, error = _size_of_limit(head, mu, nu, method)
            ends = (target * (size - 2 * error), target * (size + 2 * error))
            target *= size

        def along(longest: float) -> AlongLength:
            return method.along_length(quantity, head, mu, nu, longest)

        return _search(along, target, ends, share)
    except ValueError as cause:
        fixed = re.sub(r"pass method=lp\.MonteCarlo\(key\)", _SAMPLED, str(cause))
        fixed = re.sub(r"\bor lp\.MonteCarlo\(key\)", f"or {_SAMPLED}", fixed)
        raise ValueError(fixed) from cause


# what to do where only sampling serves: this search cannot
_SAMPLED = "sample a few lengths with lp.concentration_curve(..., method=lp.MonteCarlo(key))"


def _size_of_limit(
    head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure, method: AbstractMethod
) -> tuple[float, float]:
    """E |T(z)|^2 over queries, and its error."""
    found = method.expect(SecondMoment(), head, mu, nu, math.inf)
    size, error = (float(np.trace(np.asarray(part))) for part in found[:2])
    if not size > 2 * error:
        raise _checks.error(
            "a relative tolerance needs a limit that is not 0",
            "a configuration whose infinite-prompt output vanishes",
            "pass relative=False and an absolute tolerance",
        )
    return size, error if error > _NUMERICAL * size else 0.0


class _Errors:
    """The squared error as a function of the length, every length computed once; NaN where it is
    not known.
    """

    def __init__(self, along: Callable[[float], AlongLength], advance: Callable[..., None]):
        self._along, self._advance = along, advance
        self._parts: dict[float, AlongLength] = {}
        self._at_once = 1
        self._known: dict[float, tuple[float, float]] = {}

    def __call__(self, lengths: np.ndarray) -> Values:
        missing = np.array([L for L in np.unique(lengths) if float(L) not in self._known])
        while missing.size:
            some, missing = missing[: self._at_once], missing[self._at_once :]
            begun = time.monotonic()
            try:
                self._compute(some)
            except ValueError:
                for length in some:
                    self._compute_if_known(length)
            self._pace((time.monotonic() - begun) / len(some), len(missing))
        found = np.array([self._known[float(L)] for L in lengths])
        return Values(found[:, 0], found[:, 1])

    def known(self, lengths: np.ndarray) -> tuple[np.ndarray, str]:
        """The lengths at which the error is known, up to the first long one at which it is not,
        and a sentence about the others.
        """
        known = np.isfinite(self(lengths).value)
        unknown, said = lengths[~known], ""
        if np.any(unknown < _SHORT):
            said += f" The errors of some prompts of fewer than {_SHORT:g} tokens are not known."
        known &= lengths < np.min(unknown[unknown >= _SHORT], initial=math.inf)
        if not known.any():
            self._compute(unknown[-1:])  # raises
        if np.any(unknown >= _SHORT):
            said += f" The errors of more than {lengths[known][-1]:.2g} tokens are not known."
        return lengths[known], said

    def _pace(self, seconds: float, left: int) -> None:
        """Choose how many lengths to evaluate at once; raise where the rest would take too long."""
        self._at_once = min(max(int(_STEP / max(seconds, 1e-9)), 1), 2 * self._at_once, _AT_ONCE)
        if seconds * left > _PATIENCE:
            raise _checks.error(
                f"the scan of all lengths must take less than {_PATIENCE / 60:g} minutes",
                f"{left} lengths to go, of {seconds:.0f} seconds each",
                "pass one query, an Empirical of a few queries, or fewer heads",
            )

    def _compute_if_known(self, length: float) -> None:
        try:
            self._compute(np.array([length]))
        except ValueError:
            self._known[float(length)] = (math.nan, math.nan)

    def _compute(self, lengths: np.ndarray) -> None:
        try:
            found = self._part(LONGEST)(lengths)
        except ValueError:
            # nodes that serve prompts of 1e15 tokens may be too many for short ones
            if lengths[-1] > _SHORT:
                raise
            found = self._part(float(lengths[-1]))(lengths)
        error = np.where(found.error > _NUMERICAL * np.abs(found.value), found.error, 0.0)
        finite = np.isfinite(found.value + error)
        if not np.all(finite):
            raise _checks.error(
                "the squared error must be finite at every length",
                f"NaN or infinity at L = {lengths[~finite][0]:g}",
                "scale the head down",
            )
        pairs = zip(found.value.tolist(), error.tolist(), strict=True)
        self._known |= dict(zip(lengths.tolist(), pairs, strict=True))
        self._advance(len(lengths))

    def _part(self, longest: float) -> AlongLength:
        if longest not in self._parts:
            self._parts[longest] = self._along(longest)
        return self._parts[longest]


def _search(
    along: Callable[[float], AlongLength],
    target: float,
    ends: tuple[float, float],
    share: str,
) -> PromptLength:
    """The length from which on the error, plus two of its own errors, is at most the target.

    `ends` are those of the interval of the target; `share` says in the sentence what fraction a
    relative target is.
    """
    with progress_bar("searching for the length", unit="lengths") as advance:
        errors = _Errors(along, advance)
        lengths, unknown = errors.known(scan(LONGEST))

        def meets(sign: int, target: float) -> float:
            """The length for an error with so many times two of its own errors added."""

            def excess(lengths: np.ndarray) -> np.ndarray:
                found = errors(lengths)
                beyond = found.value + 2 * sign * found.error - target * (1 + _TIE)
                # where the error is not known a prompt does not count as long enough
                return np.where(np.isnan(beyond), target, beyond)

            return last_crossing(excess, lengths)

        length = meets(1, ends[0])
        here = errors(np.array([min(length, lengths[-1])]))
        random = ends[0] < ends[1] or here.error[0] > 0
        interval = (meets(-1, ends[1]) if random else length, length)
    reached = float(here.value[0])
    if math.isinf(length):
        sentence = (
            f"No prompt of up to {lengths[-1]:.3g} tokens is long enough: the squared error is "
            f"still {reached:.3g} there, above {target:.3g}{share}."
        )
    else:
        plural = "token brings" if length == 1 else "tokens bring"
        fewer = " or fewer" if length == lengths[0] > 1 else ""
        sentence = (
            f"{_shown(length)}{fewer} {plural} the squared error down to {target:.3g}{share}."
        )
    if random:
        ends_shown = " to ".join(_shown(end) for end in interval)
        sentence += f" Within two standard errors: {ends_shown} tokens."
    return PromptLength(length, reached, target, sentence + unknown, interval)


def _shown(length: float) -> str:
    if math.isinf(length):
        return "more than the longest"
    return f"{length:.0f}" if length < 1e7 else f"{length:.4g}"
