"""Prompt lengths, and how they combine with a batch of queries."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput
from ..attention import Head
from ..attention.softmax import queries_of, tilts_of
from ..measures import AbstractMeasure
from ._domain import LENGTH


def length(L: ArrayInput) -> Float[Array, "..."]:
    """L as float64: real numbers >= 1, infinity included."""
    array = _checks.float_array("L", L).astype(jnp.float64)
    seen = array if isinstance(array, Tracer) else np.asarray(array)
    return _checks.require(
        array,
        ~(seen >= 1),
        rule=LENGTH.rule,
        received="a length below 1, or NaN",
        fix=LENGTH.fix,
    )


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


def pairs(
    head: Head, measure: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> tuple[Float[Array, "*shape d"], Float[Array, "*shape d"], Float[Array, "*shape"]]:
    """(z, U z, L) broadcast against each other: the batch of z against the shape of L."""
    L = length(L)
    queries, batch = queries_of(head, measure, z)
    tilts = tilts_of(head, measure, queries)
    try:
        shape = np.broadcast_shapes(batch, L.shape)
    except ValueError as error:
        raise ValueError(
            _checks.message(
                "the batch of z and the shape of L must broadcast",
                f"a batch of shape {batch} and L of shape {L.shape}",
                "add axes, for example L[:, None] against a batch of queries",
            )
        ) from error

    def spread(vectors: Float[Array, "q d"]) -> Float[Array, "*shape d"]:
        return jnp.broadcast_to(vectors.reshape(*batch, head.dim), (*shape, head.dim))

    return spread(queries), spread(tilts), jnp.broadcast_to(L, shape)
