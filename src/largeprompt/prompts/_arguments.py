"""Prompt lengths, and how they combine with a batch of queries."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from .. import _checks
from .._typing import ArrayInput
from ..attention import Head
from ..attention.softmax import queries_of, tilts_of
from ..measures import AbstractMeasure
from ._domain import LENGTH, is_length, known


def length(L: ArrayInput) -> Float[Array, "..."]:
    """L as float64: real numbers from 1 to 1e100, or infinity."""
    array = L if isinstance(L, jax.Array) else known("L", L)
    array = _checks.float_array("L", array).astype(jnp.float64)
    seen = array if isinstance(array, Tracer) else np.asarray(array)
    good = is_length(seen)
    received = "another value"
    if not isinstance(seen, Tracer) and not np.all(good):
        received = str(seen[~good].flat[0])
    return _checks.require(array, ~good, rule=LENGTH.rule, received=received, fix=LENGTH.fix)


def checked_lengths(lengths: ArrayInput) -> np.ndarray:
    """The lengths as a non-empty vector of float64."""
    with jax.enable_x64(True):
        array = np.atleast_1d(np.asarray(length(lengths), np.float64))
    if array.ndim != 1 or not array.size:
        raise ValueError(
            _checks.message(
                "lengths must be a non-empty sequence of numbers",
                f"shape {array.shape}",
                "pass for example np.geomspace(10, 1e6, 60)",
            )
        )
    return array


def longest(lengths: np.ndarray) -> float:
    """The largest finite length, at least 2."""
    return float(np.max(lengths[np.isfinite(lengths)], initial=2.0))


def whole_length(L: Any) -> int:
    """L as a finite integer number of tokens, known before tracing."""
    if isinstance(L, (float, np.floating)) and float(L).is_integer():
        L = int(L)
    return _checks.count("L (a prompt to be sampled)", L)


class Pairs(NamedTuple):
    """Pairs of a query and a length: entry i has queries[which[i]] and length L[i]."""

    queries: Float[Array, "q d"]
    tilts: Float[Array, "q d"]  # U z
    which: Int[Array, "*shape"]
    L: Float[Array, "*shape"]


def indexed_pairs(head: Head, measure: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Pairs:
    """The batch of z broadcast against the shape of L, each query once."""
    L = length(L)
    queries, batch = queries_of(head, measure, z)
    tilts = tilts_of(head, measure, queries)
    shape = _common_shape(batch, L.shape)
    index = np.broadcast_to(np.arange(len(queries)).reshape(batch), shape)
    return Pairs(queries, tilts, jnp.asarray(index), jnp.broadcast_to(L, shape))


def pairs(
    head: Head, measure: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> tuple[Float[Array, "*shape d"], Float[Array, "*shape d"], Float[Array, "*shape"]]:
    """(z, U z, L) broadcast against each other: the batch of z against the shape of L."""
    L = length(L)
    queries, batch = queries_of(head, measure, z)
    tilts = tilts_of(head, measure, queries)
    shape = _common_shape(batch, L.shape)

    def spread(vectors: Float[Array, "q d"]) -> Float[Array, "*shape d"]:
        return jnp.broadcast_to(vectors.reshape(*batch, head.dim), (*shape, head.dim))

    return spread(queries), spread(tilts), jnp.broadcast_to(L, shape)


def _common_shape(batch: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(batch, lengths)
    except ValueError as error:
        raise ValueError(
            _checks.message(
                "the batch of z and the shape of L must broadcast",
                f"a batch of shape {batch} and L of shape {lengths}",
                "add axes, for example L[:, None] against a batch of queries",
            )
        ) from error
