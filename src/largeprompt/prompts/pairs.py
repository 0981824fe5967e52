"""How lengths combine with a batch of queries."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._arrays import Values, to_numpy
from .._float64 import is_traced
from .._lengths import length_array
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..attention.softmax import checked_queries, queries_of, tilts_of
from ..measures import AbstractMeasure


class Pairs(NamedTuple):
    """Pairs of a query and a length: entry i has queries[which[i]] and length L[i].

    In NumPy and float64 if the numbers are known.
    """

    queries: Values  # (q, k)
    tilts: Values  # (q, d) U z
    which: np.ndarray  # (*shape)
    L: Values  # (*shape)


def indexed_pairs(
    head: AbstractHead, measure: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Pairs:
    """The batch of z broadcast against the shape of L, each query once."""
    L = length_array(L)
    queries, batch = queries_of(head, measure, z)
    shape = common_shape(batch, np.shape(L))
    index = np.broadcast_to(np.arange(math.prod(batch)).reshape(batch), shape)
    xp = jnp if is_traced(head, measure, queries, L) else np
    if xp is np:
        queries, U = to_numpy((queries, head.U))
        tilts = queries @ U.T
    else:
        tilts = tilts_of(head, measure, queries)
    return Pairs(queries, tilts, index, xp.broadcast_to(xp.asarray(L), shape))


def pairs(
    head: AbstractHead, measure: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> tuple[Values, Values, Values]:
    """(z, U z, L) broadcast against each other: the batch of z against the shape of L.

    In NumPy and float64 if the numbers are known.
    """
    L = length_array(L)
    z = checked_queries(head, measure, z)
    shape = common_shape(z.shape[:-1], L.shape)
    xp = jnp if is_traced(head, z, L) else np
    if xp is np:
        z, U = to_numpy((z, head.U))
        tilts = z @ U.T
    else:
        flat = z.reshape(-1, head.query_dim)
        tilts = tilts_of(head, measure, flat).reshape(*z.shape[:-1], head.dim)
    queries = xp.broadcast_to(xp.asarray(z), (*shape, head.query_dim))
    return queries, xp.broadcast_to(tilts, (*shape, head.dim)), xp.broadcast_to(L, shape)


def flat_pairs(
    batch: tuple[int, ...], lengths: np.ndarray
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """The common shape of a batch of queries and of lengths, and, flattened, the index of the
    query and the length of every entry.
    """
    shape = common_shape(batch, lengths.shape)
    which = np.arange(np.prod(batch, dtype=int)).reshape(batch)
    return shape, np.broadcast_to(which, shape).ravel(), np.broadcast_to(lengths, shape).ravel()


def common_shape(batch: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a batch of queries broadcast against lengths."""
    try:
        return np.broadcast_shapes(batch, lengths)
    except ValueError as error:
        raise _checks.error(
            "the batch of z and the shape of L must broadcast",
            f"a batch of shape {batch} and L of shape {lengths}",
            "add axes, for example L[:, None] against a batch of queries",
        ) from error
