"""Exact finite-prompt averages for tokens of Gaussians and atoms, at given queries.

A vocabulary, embeddings, a Gaussian mixture. Each function returns the value and a bound on its
numerical error, from the moments of T_L - T that `engine` gives for each head and `engine_pairs`
for every two.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._arrays import Values, fixed, to_jax, to_numpy
from .._float64 import is_traced
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from . import engine_traced
from .engine import moments, one_head, view
from .engine_pairs import Reader, Shared, prefix_change, two_heads
from .gaussian_tokens import Bounded
from .laplace_batches import certified, jacobian_errors
from .pairs import indexed_pairs, pairs
from .token_laws import TokenLaw, token_law

ACCURACY = 1e-9  # largest error, relative to the size of T_L - T
_EPSILON = 2.0**-52


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


class _Around(NamedTuple):
    """The limit T at all pairs of queries and lengths, and the moments of T_L - T."""

    limit: Values  # (*shape, m)
    shift: Bounded  # (*shape, m)
    second: Bounded  # (*shape, m, m), or traces (*shape)


def _around(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput, *, trace: bool
) -> _Around:
    each = [indexed_pairs(one, mu, z, L) for one in head.heads]
    law, tilts = needed_law(mu), [one.tilts for one in each]
    which, lengths = each[0].which, each[0].L
    if is_traced(head, law, *tilts, lengths):
        if len(each) > 1:
            raise _checks.error(
                "averages of several heads on atoms and mixtures take known numbers",
                "arguments traced by jit, vmap or grad",
                "call it outside of the transformation",
            )
        return _traced(law, tilts[0], head.V, which, lengths, trace)
    law, V = to_numpy((law, [one.V for one in head.heads]))
    m, shape, flat = head.out_dim, lengths.shape, np.asarray(lengths).ravel()
    entries = () if trace else (m, m)
    limit, shift, shift_error = np.zeros((3, flat.size, m))
    second, second_error = np.zeros((2, flat.size, *entries))
    size = np.zeros(flat.size)
    for query in np.unique(which):
        here = np.flatnonzero(which.ravel() == query)
        readers = [Reader(np.asarray(t[query]), W) for t, W in zip(tilts, V, strict=True)]
        limit[here] = sum(r.V @ view(law, r.tilt).limit for r in readers)
        here = here[np.isfinite(flat[here])]
        distinct, back = np.unique(flat[here], return_inverse=True)
        if not len(here):
            continue
        own = [_of_one_head(law, r, distinct, trace=trace) for r in readers]
        parts = [np.sum(part, axis=0) for part in zip(*own, strict=True)]
        for a, b in itertools.combinations(readers, 2):
            shared = [_shared(law, (a, b), length) for length in distinct]
            for i, part in ((2, [s.value for s in shared]), (3, [s.error for s in shared])):
                both = np.stack(part)
                both = both + np.swapaxes(both, 1, 2)
                parts[i] = parts[i] + (both.trace(axis1=1, axis2=2) if trace else both)
        shift[here], shift_error[here], second[here], second_error[here], size[here] = (
            part[back] for part in parts
        )
    if trace and len(each) > 1:
        second = np.maximum(second, 0.0)  # heads that cancel leave rounding of either sign
    _certify(shift_error, np.sqrt(size)[:, None], law, tilts)
    _certify(second_error, size.reshape(-1, *[1] * len(entries)), law, tilts)

    def shaped(part: np.ndarray) -> np.ndarray:
        return part.reshape((*shape, *part.shape[1:]))

    shift, second = (
        Bounded(*map(shaped, pair)) for pair in ((shift, shift_error), (second, second_error))
    )
    return _Around(shaped(limit), shift, second)


def _of_one_head(
    law: TokenLaw, reader: Reader, L: np.ndarray, *, trace: bool
) -> tuple[np.ndarray, ...]:
    """The fields of `Moments`, and E |T_L - T|^2."""
    with np.errstate(all="ignore"):
        sums = one_head(law, *reader, (float(L.min()), float(L.max())), trace=trace)
        found = moments(sums, L)
    return *found, found.second if trace else found.second.trace(axis1=1, axis2=2)


def _shared(law: TokenLaw, readers: tuple[Reader, Reader], L: float) -> Shared:
    with np.errstate(all="ignore"):
        return two_heads(law, readers, float(L))


def _certify(error: np.ndarray, size: np.ndarray, law: TokenLaw, tilts: list[Values]) -> None:
    """Raise where an error is too large beside the size of T_L - T, or is not a number."""
    bad = ~(error <= ACCURACY * np.broadcast_to(size, error.shape)) & ~(error < 1e-290)
    if np.any(bad):
        apart = max(law.widest_scores(np.asarray(tilt)) for tilt in tilts)
        relative = np.max(error / np.maximum(size, 1e-300))
        raise _checks.error(
            f"the relative error of the Laplace integral must be at most {ACCURACY:.0e}",
            f"{relative:.1e} for scores that differ by {apart:.3g}",
            "remove tokens that are outliers, scale the heads down, or sample prompts with "
            "method=lp.MonteCarlo(key)",
        )


def _traced(
    law: TokenLaw, tilts: Values, V: Values, which: np.ndarray, L: Values, trace: bool
) -> _Around:
    law, tilts, V, L = to_jax((law, tilts, V, L))
    finite = jnp.isfinite(L)
    shortest = jnp.min(L, initial=jnp.inf)
    L = jnp.where(finite, L, jnp.where(jnp.isfinite(shortest), shortest, 2.0))
    with jax.default_matmul_precision("highest"):
        shift, size, second, positive, relative = engine_traced.moments(
            law, tilts, V, which.ravel(), L.ravel(), trace=trace
        )
        limit = (jax.vmap(law.tilted_mean)(tilts) @ V.T)[which]
    second = certified(second, jnp.max(relative, initial=0.0))

    def shaped(part: Values, inner: int) -> Values:
        part = part.reshape((*L.shape, *part.shape[1:]))
        return jnp.where(finite.reshape((*L.shape, *[1] * inner)), part, 0.0)

    inner = second.ndim - 1
    return _Around(
        limit,
        Bounded(shaped(shift, 1), fixed(shaped(relative[:, None] * size, 1))),
        Bounded(
            shaped(second, inner),
            fixed(shaped(relative.reshape(-1, *[1] * inner) * positive, inner)),
        ),
    )


def _outer(a: Values, b: Values) -> Values:
    return a[..., :, None] * b[..., None, :]


def mean(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L."""
    limit, shift, _ = _around(head, mu, z, L, trace=True)
    return Bounded(limit + shift.value, shift.error + _EPSILON * abs(limit))


def mean_shift(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L - T."""
    return _around(head, mu, z, L, trace=True).shift


def second_moment(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L T_L' = T T' + T E[T_L - T]' + E[T_L - T] T' + E (T_L - T)(T_L - T)'."""
    limit, shift, second = _around(head, mu, z, L, trace=False)
    cross, less = _outer(limit, shift.value), _outer(abs(limit), shift.error)
    square = _outer(limit, limit)
    error = second.error + less + less.mT + 2 * _EPSILON * abs(square)
    return Bounded(square + cross + cross.mT + second.value, error)


def output_error(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |T_L - T|^2."""
    return _around(head, mu, z, L, trace=True).second


def gradient_error_V(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |dT_L/dV - dT/dV|^2: m times the squared error of the mean token."""
    found = output_error(head.reading_tokens(), mu, z, L)
    return Bounded(head.out_dim * found.value, head.out_dim * found.error)


def gradient_error_U(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |dT_L/dU - dT/dU|^2."""
    queries, tilts, which, lengths = indexed_pairs(head, mu, z, L)
    arrays = head.V, needed_law(mu), tilts, lengths, queries
    V, law, tilts, lengths, queries = (to_jax if is_traced(arrays) else to_numpy)(arrays)
    with jax.default_matmul_precision("highest"):
        found = jacobian_errors(V, law, tilts, which, lengths)
    square = (queries**2).sum(-1)[which]
    return Bounded(square * found.value, square * found.error)


class _Places(NamedTuple):
    """Known numbers at every place of a call with two queries or two lengths."""

    law: TokenLaw
    V: list[np.ndarray]
    tilts: list[tuple[np.ndarray, ...]]  # of each head at both queries, (*shape, d)
    shape: tuple[int, ...]


def _places(
    what: str,
    head: AbstractHead,
    mu: AbstractMeasure,
    queries: tuple[ArrayInput, ArrayInput],
    *lengths: ArrayInput,
) -> _Places:
    each = [[pairs(one, mu, z, lengths[0]) for z in queries] for one in head.heads]
    law, V = needed_law(mu), [one.V for one in head.heads]
    if is_traced(law, V, each, lengths):
        raise _checks.error(
            f"{what} on atoms and mixtures takes known numbers",
            "arguments traced by jit, vmap or grad",
            "call it outside of the transformation",
        )
    law, V, tilts = to_numpy((law, V, [[one[1] for one in both] for both in each]))
    shapes = [np.shape(one)[:-1] for one in tilts[0]] + [np.shape(length) for length in lengths]
    shape = np.broadcast_shapes(*shapes)
    wide = [tuple(np.broadcast_to(t, (*shape, t.shape[-1])) for t in both) for both in tilts]
    return _Places(law, V, wide, shape)


def _over_pairs(
    places: _Places, one: Callable[[tuple[Reader, Reader], tuple[int, ...]], Shared], m: tuple
) -> tuple[Bounded, np.ndarray]:
    """The sum over all ordered pairs of heads at every place, and the sizes of its terms."""
    value, error = (np.zeros((*places.shape, *m)) for _ in range(2))
    sizes = np.zeros(places.shape)
    V, tilts = places.V, places.tilts
    for place in np.ndindex(places.shape):
        for i, j in itertools.product(range(len(V)), repeat=2):
            readers = Reader(tilts[i][0][place], V[i]), Reader(tilts[j][1][place], V[j])
            with np.errstate(all="ignore"):
                found = one(readers, place)
            value[place] += found.value
            error[place] += found.error
            sizes[place] += abs(found.value).sum()
    return Bounded(value, error), sizes


_NOTHING = Shared(np.zeros(()), np.zeros(()))


def covariance_of_queries(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, z2: ArrayInput, L: ArrayInput
) -> Bounded:
    """Cov(T_L(z), T_L(z2)): the sum over all pairs of heads."""
    places = _places("the covariance of two outputs", head, mu, (z, z2), L)
    lengths = np.broadcast_to(np.asarray(L, np.float64), places.shape)

    def one(readers: tuple[Reader, Reader], place: tuple[int, ...]) -> Shared:
        length = float(lengths[place])
        return _NOTHING if math.isinf(length) else _shared(places.law, readers, length)

    found, _ = _over_pairs(places, one, (head.out_dim, head.out_dim))
    own = [output_error(head, mu, query, L) for query in (z, z2)]
    sizes = np.sqrt(np.asarray(own[0].value) * np.asarray(own[1].value))[..., None, None]
    at_least = np.trace(abs(found.value), axis1=-2, axis2=-1)[..., None, None]
    tilts = [np.reshape(t, (-1, t.shape[-1])) for both in places.tilts for t in both]
    _certify(found.error, np.maximum(sizes, at_least), places.law, tilts)
    left, right = (mean_shift(head, mu, query, L) for query in (z, z2))
    less = _outer(abs(left.value), right.error) + _outer(left.error, abs(right.value))
    return Bounded(found.value - _outer(left.value, right.value), found.error + less)


def prefix_difference(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, first: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |T_L - T_first|^2."""
    places = _places("prefix_difference", head, mu, (z, z), L, first)
    firsts, lengths = (
        np.broadcast_to(np.asarray(part, np.float64), places.shape) for part in (first, L)
    )

    def one(readers: tuple[Reader, Reader], place: tuple[int, ...]) -> Shared:
        begin, end = float(firsts[place]), float(lengths[place])
        if begin == end:
            return _NOTHING
        if math.isinf(end):  # T_L is T
            found = _shared(places.law, readers, begin)
            return Shared(found.value.trace(), found.error.trace())
        return prefix_change(places.law, readers, begin, end - begin)

    found, sizes = _over_pairs(places, one, ())
    tilts = [np.reshape(t, (-1, t.shape[-1])) for both in places.tilts for t in both]
    _certify(found.error, sizes, places.law, tilts)
    return Bounded(np.asarray(np.maximum(found.value, 0.0)), found.error)
