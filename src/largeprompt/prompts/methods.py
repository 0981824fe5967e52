"""How an average over prompts is computed: exactly, from quasi-random points, or from samples."""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Key

from .. import _checks, _devices
from .._float64 import in_float64, is_traced, refuse_traced
from .._lengths import length_array, longest_finite, token_count
from .._progress import progress_bar
from .._typing import Array, ArrayInput, KeyInput
from ..attention import AbstractHead
from ..attention.softmax import inside_domain, queries_of
from ..measures import AbstractMeasure
from .gaussian_tokens import Bounded
from .montecarlo import LimitAt, Replicate
from .pairs import common_shape, flat_pairs
from .quantities import AbstractQuantity, mean_and_error, sampled_only
from .quasi import Scrambling
from .query_averages import (
    AlongLength,
    Values,
    average_over_queries,
    check_dimensions,
    represented_at,
)
from .token_laws import token_law

Summary = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # replicates -> value, error
_FIRST_CHECK = 128  # replicates before the first check of the error; then at every doubling


class Estimate(NamedTuple):
    """An average, its error, and the method that computed it.

    `error` is the numerical error of an exact method, the standard error of a sampled one.
    """

    value: Any
    error: Any
    method: "AbstractMethod"

    def __repr__(self) -> str:
        if is_traced(self.value, self.error):
            return f"{self.value} +- {self.error}, {self.method.description}"
        value, error = np.asarray(self.value), np.asarray(self.error)
        if not value.ndim:
            return f"{value:.12g} +- {error:.2g}, {self.method.description}"
        error = np.array2string(error, formatter={"float": "{:.2g}".format})
        return f"{value}\n+- {error}, {self.method.description}"


class AbstractMethod(eqx.Module):
    """A way to compute averages over prompts. A method of your own defines `expect`."""

    @abstractmethod
    def expect(
        self,
        quantity: AbstractQuantity,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: ArrayInput | AbstractMeasure,
        L: ArrayInput,
    ) -> Estimate:
        """Average of `quantity` over prompts of L tokens of law mu, at z (see `lp.expect`)."""

    def along_length(
        self,
        quantity: AbstractQuantity,
        head: AbstractHead,
        mu: AbstractMeasure,
        nu: AbstractMeasure,
        longest: float,
    ) -> AlongLength:
        """The average over queries of law nu as a function of the length, for repeated use."""

        def at(lengths: np.ndarray) -> Values:
            found = self.expect(quantity, head, mu, nu, lengths)
            return Values(np.asarray(found.value), np.asarray(found.error))

        return at

    @property
    def description(self) -> str:
        """How results were computed, for the attributes of datasets."""
        return type(self).__name__


class _AbstractDeterministic(AbstractMethod):
    """A method whose result is exact in the prompt length."""

    @property
    @abstractmethod
    def scrambling(self) -> Scrambling | None:
        """Random points for laws without an exact average; None: none."""

    @in_float64
    def expect(
        self,
        quantity: AbstractQuantity,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: ArrayInput | AbstractMeasure,
        L: ArrayInput,
    ) -> Estimate:
        if quantity.additive and len(head.heads) > 1:  # errors of the heads add up
            parts = [self.expect(quantity, one, mu, z, L)[:2] for one in head.heads]
            value, error = (sum(part[1:], start=part[0]) for part in zip(*parts, strict=True))
            return Estimate(value, error, self)
        if isinstance(z, AbstractMeasure):
            return _over_queries(self, self.scrambling, quantity, head, mu, z, L)
        known = mu.as_gaussian() is not None or token_law(mu) is not None
        if known or (scrambling := self.scrambling) is None:
            return Estimate(*_at_queries(quantity, head, mu, z, L), self)
        return Estimate(*represented_at(quantity, head, mu, z, L, scrambling), self)

    @in_float64
    def along_length(
        self,
        quantity: AbstractQuantity,
        head: AbstractHead,
        mu: AbstractMeasure,
        nu: AbstractMeasure,
        longest: float,
    ) -> AlongLength:
        return in_float64(_along(quantity, head, mu, nu, self.scrambling, longest))


class Exact(_AbstractDeterministic):
    """Closed forms, Laplace integrals and convergent quadrature over queries; no random numbers.

    Serves Gaussian tokens, tokens with finitely many atoms and mixtures of them, at given queries
    and over discrete and low-dimensional laws of queries, and Gaussian tokens over Gaussian queries
    too. At L = infinity it serves every measure at given queries. Computes in float64.
    """

    @property
    def scrambling(self) -> None:
        return None

    @property
    def description(self) -> str:
        return "exact"


class QuasiMonteCarlo(_AbstractDeterministic):
    """Scrambled Sobol points wherever no exact average exists; exact in the prompt length.

    **Arguments:** `points` represent one law (rounded up to a power of two), in `replicates`
    independent scramblings; their standard error is the error.
    """

    key: KeyInput | None
    points: int | None = eqx.field(static=True)
    replicates: int = eqx.field(static=True)

    def __init__(
        self, key: KeyInput | None = None, *, points: int | None = None, replicates: int = 8
    ):
        self.key = None if key is None else _checks.key(key)
        self.points = None if points is None else _checks.count("points", points)
        self.replicates = _checks.count("replicates", replicates)
        if self.replicates < 2:
            raise _checks.error(
                "replicates must be at least 2", "1", "pass 8: the error is their standard error"
            )

    @property
    def scrambling(self) -> Scrambling:
        """The random numbers of this method."""
        return Scrambling(needed_key(self), self.replicates, self.points)

    @property
    def description(self) -> str:
        return "exact in L, scrambled points for laws without an exact average"


class MonteCarlo(AbstractMethod):
    """Independent prompts, until the relative error or the budget is reached.

    Outputs of Gaussian tokens are drawn from their scores alone, exactly in law; other measures,
    and `whole_tokens=True`, draw all tokens.

    **Arguments:** replicate i uses `fold_in(key, i)`, and the error is checked after 128, 256,
    512, ... replicates, so the result depends neither on `batch` nor on the `mesh` of devices that
    share the replicates of a batch.
    """

    key: KeyInput | None
    relative_error: float = eqx.field(static=True)
    max_replicates: int = eqx.field(static=True)
    batch: int | None = eqx.field(static=True)
    whole_tokens: bool = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    progress: bool = eqx.field(static=True)

    def __init__(
        self,
        key: KeyInput | None = None,
        *,
        relative_error: float = 0.01,
        max_replicates: int = 100_000,
        batch: int | None = None,
        whole_tokens: bool = False,
        mesh: Mesh | None = None,
        progress: bool = False,
    ):
        self.key = None if key is None else _checks.key(key)
        self.relative_error = _checks.number(
            "relative_error", relative_error, "pass for example 0.01", above=0.0
        )
        self.max_replicates = _checks.count("max_replicates", max_replicates)
        self.batch = None if batch is None else _checks.count("batch", batch)
        self.whole_tokens = bool(whole_tokens)
        self.mesh = None if mesh is None else _devices.checked_mesh(mesh)
        self.progress = bool(progress)

    def expect(
        self,
        quantity: AbstractQuantity,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: ArrayInput | AbstractMeasure,
        L: ArrayInput,
    ) -> Estimate:
        fix = "draw with lp.sample_outputs, or use lp.Exact(), which can be traced"
        refuse_traced("an average by MonteCarlo", fix, head, mu, z, L, self)
        key, lengths = needed_key(self), np.asarray(length_array(L))
        if isinstance(z, AbstractMeasure):
            check_dimensions(head, mu, z)
            places, batch = [z], ()
        else:
            queries, batch = queries_of(head, mu, z)
            if quantity.refers_to_limit:
                inside_domain(head, mu, queries)
            places = list(queries)
        shape, which, wanted = flat_pairs(batch, lengths)
        # one average for one pair keeps the key: the same result alone and in a batch of one
        keys = [key] if len(wanted) == 1 else jax.random.split(key, len(wanted))
        found = [
            self._one(k, quantity, head, mu, places[i], float(length))
            for k, i, length in zip(keys, which, wanted, strict=True)
        ]
        values = [np.asarray(part.value) for part in found]
        errors = [np.asarray(part.error) for part in found]
        value, error = (
            np.stack(part).reshape((*shape, *part[0].shape)) for part in (values, errors)
        )
        return Estimate(value, error, self)

    def _one(
        self,
        key: Key[Array, ""],
        quantity: AbstractQuantity,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: Array | AbstractMeasure,
        length: float,
    ) -> Estimate:
        """The average at one length, at one query or over a law of queries."""
        method = eqx.tree_at(lambda m: m.key, self, key, is_leaf=lambda leaf: leaf is None)
        if math.isfinite(length):
            count = token_count(length)
            one = Replicate(quantity, head, mu, z, count, self.whole_tokens)
            return method._summarised(one, count * head.dim, quantity.summary)
        if isinstance(z, AbstractMeasure):
            return method._summarised(LimitAt(quantity, head, mu, z), 1, quantity.summary)
        value = np.asarray(quantity.limit(head, mu, z))
        return Estimate(value, np.zeros_like(value), self)

    @property
    def description(self) -> str:
        return "Monte Carlo"

    def average(self, function: Callable[[Key[Array, ""]], Array], *, numbers: int = 1) -> Estimate:
        """Mean of `function(key)` over independent keys, with its standard error.

        `numbers` is how many numbers one call draws; it bounds the batch where `batch` is None.

        >>> import jax
        >>> import largeprompt as lp
        >>> method = lp.MonteCarlo(jax.random.key(0), max_replicates=1000)
        >>> found = method.average(jax.random.uniform)
        >>> bool(abs(found.value - 0.5) < 4 * found.error)
        True
        """
        return self._summarised(function, numbers, mean_and_error)

    def _summarised(self, function: Callable, numbers: int, summary: Summary) -> Estimate:
        """Summary of replicates of `function(key)`, as many as its error needs."""
        key, budget = needed_key(self), self.max_replicates
        batch = self.batch or max(1, min(128, _AT_ONCE // numbers))
        draw = _draws if self.mesh is None else partial(_draws_on, self.mesh)
        values: list[np.ndarray] = []
        done, check = 0, min(_FIRST_CHECK, budget)
        with progress_bar("replicates (at most)", budget, shown=self.progress) as advance:
            while True:
                while done < check:
                    # the last batch is drawn whole and cut, so that no new shape is compiled
                    drawn = np.asarray(draw(function, key, jnp.asarray(done), batch), np.float64)
                    values.append(drawn[: check - done])
                    advance(len(values[-1]))
                    done += len(values[-1])
                value, error = summary(_finite(np.concatenate(values)))
                if check == budget or np.all(error <= self.relative_error * np.abs(value)):
                    return Estimate(value, error, self)
                check = min(2 * check, budget)


_AT_ONCE = 2**22  # numbers drawn at once


def _along(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    scrambling: Scrambling | None,
    longest: float,
) -> AlongLength:
    """`average_over_queries`, as a sum over heads where the average is one."""
    heads = head.heads if quantity.additive else (head,)
    each = [average_over_queries(quantity, one, mu, nu, scrambling, longest) for one in heads]

    def at(lengths: np.ndarray) -> Values:
        found = [one(lengths) for one in each]
        slopes = [values.slope for values in found if values.slope is not None]
        slope = np.sum(slopes, axis=0) if len(slopes) == len(found) else None
        value = np.sum([values.value for values in found], axis=0)
        error = np.sum([values.error for values in found], axis=0)
        return Values(value, error, slope)

    return each[0] if len(each) == 1 else at


def as_method(method: AbstractMethod | None) -> AbstractMethod:
    """Validate a method; None is `Exact()`."""
    if method is None:
        return Exact()
    if isinstance(method, AbstractMethod):
        return method
    raise _checks.error(
        "method must be a method object",
        repr(method),
        "pass lp.Exact(), lp.QuasiMonteCarlo(key) or lp.MonteCarlo(key)",
    )


def _over_queries(
    method: AbstractMethod,
    scrambling: Scrambling | None,
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    L: ArrayInput,
) -> Estimate:
    """The average over queries of law nu at lengths of any shape."""
    check_dimensions(head, mu, nu)
    if is_traced(head, mu, nu, L):
        raise _checks.error(
            "an average over a law of queries takes known numbers",
            "arguments traced by jit, vmap or grad",
            "call it outside, or pass queries as an array",
        )
    lengths = np.asarray(length_array(L))
    flat = lengths.reshape(-1)
    along = average_over_queries(quantity, head, mu, nu, scrambling, longest_finite(flat))
    found = along(flat) if flat.size else along(np.ones(1))
    value, error = (
        a[: flat.size].reshape((*lengths.shape, *a.shape[1:])) for a in (found.value, found.error)
    )
    return Estimate(value, error, method)


def _at_queries(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput,
    L: ArrayInput,
) -> Bounded:
    """The exact average at given queries."""
    normal, atoms, found = mu.as_gaussian(), None, None
    is_mixture = False
    if normal is not None:
        found = quantity.gaussian(head, normal, z, L)
    elif (atoms := mu.atoms()) is not None:
        found = quantity.discrete(head, atoms, z, L)
    elif is_mixture := token_law(mu) is not None:
        found = quantity.mixture(head, mu, z, L)
    if found is not None:
        return found
    lengths = length_array(L)
    if not is_traced(lengths) and np.all(np.isinf(lengths)):  # every measure has a limit
        queries, batch = queries_of(head, mu, z)
        value = quantity.limit(head, mu, inside_domain(head, mu, queries))
        entries = value.shape[1:]
        shape = (*common_shape(batch, np.shape(lengths)), *entries)
        value = jnp.broadcast_to(value.reshape((*batch, *entries)), shape)
        return Bounded(value, 4e-16 * jnp.abs(value))
    if normal is not None or atoms is not None or is_mixture:
        raise sampled_only(quantity)
    points = "lp.QuasiMonteCarlo(key) or " if len(head.heads) == 1 else ""
    raise _checks.error(
        "Exact() serves mixtures of Gaussians and of finitely many atoms, or L = infinity",
        f"{quantity.name} of {type(mu).__name__} tokens at finite L",
        f"pass method={points}lp.MonteCarlo(key)",
    )


def needed_key(method: QuasiMonteCarlo | MonteCarlo) -> Key[Array, ""]:
    """The key of a method that draws random numbers."""
    if method.key is None:
        name = type(method).__name__
        raise _checks.error(
            f"{name} needs a key", "key=None", f"pass {name}(jax.random.key(0), ...)"
        )
    return method.key


@eqx.filter_jit
def _draws(function: Callable, key: Key[Array, ""], start: Array, batch: int) -> Array:
    """Replicates start, start + 1, ...; compiled once for a function and its shapes."""
    return _replicates((function, key), start + jnp.arange(batch, dtype=start.dtype))


def _draws_on(
    mesh: Mesh, function: Callable, key: Key[Array, ""], start: Array, batch: int
) -> Array:
    """The same replicates, sharded over the devices of a mesh."""
    indices = start + jnp.arange(_devices.padded_size(batch, mesh), dtype=start.dtype)
    if isinstance(function, eqx.Module):
        return _devices.run_sharded(_replicates, mesh, (function, key), indices)[:batch]
    return _devices.run_sharded(_replicates, mesh, (None, key), indices, function=function)[:batch]


def _replicates(shared: tuple, indices: Array, function: Callable | None = None) -> Array:
    one, key = shared
    one = one if function is None else function
    return jax.vmap(lambda i: one(jax.random.fold_in(key, i)))(indices)


def _finite(values: np.ndarray) -> np.ndarray:
    """The replicates, or an error if one of them is NaN or infinite."""
    if not np.all(np.isfinite(values)):
        raise _checks.error(
            "every replicate must be finite",
            f"{int(np.sum(~np.isfinite(values)))} values that are NaN or infinite",
            "check the scale of the scores, or turn on 64-bit mode",
        )
    return values
