"""Sums over blocks of tokens in C++, called directly: XLA would compile them for every length.

Call `available()` first. Blocks run on all cores, in any order; what is returned does not depend on
the number of threads. Arrays over blocks have one entry for each `size` tokens. float32 only.
"""

import ctypes
import os
from functools import cache
from threading import Thread
from typing import NamedTuple

import numpy as np

from . import library

_VECTOR = 16  # numbers of queries are padded to multiples of this
_TURNS = 4  # pieces of work of each thread
_TARGETS = (
    "largeprompt_softmax_blocks",
    "largeprompt_moment_blocks",
    "largeprompt_square_sums",
    "largeprompt_attention_blocks",
)


@cache
def available() -> bool:
    """Whether the kernels are compiled."""
    found = library()
    return found is not None and all(hasattr(found, name) for name in _TARGETS)


class SoftmaxBlocks(NamedTuple):
    """Terms e^{score - top} of q queries, relative to the largest score of query and block.

    The number of queries is that of the arguments or larger: the others have no meaning.
    """

    terms: np.ndarray  # (n, q)
    tops: np.ndarray  # (blocks, q)
    totals: np.ndarray  # (blocks, q): sums of the terms
    sums: np.ndarray  # (blocks, q, v): sums of terms times values
    squares: np.ndarray  # (n,): |value|^2


class AttentionBlocks(NamedTuple):
    """Softmax sums of queries, and three numbers for every token in place of its terms.

    The number of queries is that of the arguments or larger: the others have no meaning.
    """

    tops: np.ndarray  # (blocks, q)
    totals: np.ndarray  # (blocks, q): sums of the terms e^{score - top}
    sums: np.ndarray  # (blocks, q, v): sums of terms times values
    squares: np.ndarray  # (n,): |value|^2
    bounds: np.ndarray  # (n,): sums over queries of the squares of what bounds the weights
    averages: np.ndarray  # (n,): scores of the mean query, whose sums follow
    mean_tops: np.ndarray  # (blocks,)
    mean_totals: np.ndarray  # (blocks,)
    mean_sums: np.ndarray  # (blocks, k + v)
    value_sums: np.ndarray  # (blocks, v): sums of the values alone


class MomentBlocks(NamedTuple):
    """Moments of blocks under weights w = e^{score - top}, top the block's largest score."""

    tops: np.ndarray  # (blocks,)
    totals: np.ndarray  # (blocks,): sums of the weights
    means: np.ndarray  # (blocks, k + v) of keys and values
    key_sums: np.ndarray  # (blocks, k, k): sums of w (k - mean)(k - mean)'
    value_sums: np.ndarray  # (blocks, k, v): sums of w (k - mean) v'


def softmax_blocks(
    keys: np.ndarray,
    values: np.ndarray,
    log_masses: np.ndarray | None,
    queries: np.ndarray,
    size: int,
) -> SoftmaxBlocks:
    """Softmax terms of the queries (q, k) over keys (n, k), and their sums with values (n, v)."""
    (n, k), v, q = keys.shape, values.shape[1], -(-len(queries) // _VECTOR) * _VECTOR
    tilts = np.zeros((k, q), np.float32)
    tilts[:, : len(queries)] = queries.T
    blocks = -(-n // size)
    shapes = (n, q), (blocks, q), (blocks, q), (blocks, q, v), (n,)
    found = SoftmaxBlocks(*(np.empty(shape, np.float32) for shape in shapes))
    _run(_TARGETS[0], blocks, (keys, values, log_masses, tilts), (n, k, v, q, size), found)
    return found


def attention_blocks(
    keys: np.ndarray,
    values: np.ndarray,
    log_masses: np.ndarray | None,
    queries: np.ndarray,
    guesses: np.ndarray,
    counted: np.ndarray,
    size: int,
) -> AttentionBlocks:
    """Sums for queries (q, k) over keys (n, k) and values (n, v), without their terms.

    `guesses` (q,) are their log normalisers, roughly; indices `counted` are those of the queries
    that `bounds` adds up, and of which the mean query is the mean.
    """
    (n, k), v, q = keys.shape, values.shape[1], -(-len(queries) // _VECTOR) * _VECTOR
    tilts, rough = np.zeros((k, q), np.float32), np.zeros(q, np.float32)
    tilts[:, : len(queries)], rough[: len(queries)] = queries.T, guesses
    ones = np.zeros(q, np.float32)
    ones[counted] = 1
    blocks = -(-n // size)
    shapes = (blocks, q), (blocks, q), (blocks, q, v), (n,), (n,), (n,)
    shapes += (blocks,), (blocks,), (blocks, k + v), (blocks, v)
    found = AttentionBlocks(*(np.empty(shape, np.float32) for shape in shapes))
    given = (keys, values, log_masses, tilts, rough, ones, ones / len(counted))
    _run(_TARGETS[3], blocks, given, (n, k, v, q, size), found)
    return found


def moment_blocks(
    keys: np.ndarray, values: np.ndarray, log_masses: np.ndarray, tilt: np.ndarray, size: int
) -> MomentBlocks:
    """Moments of keys (n, k) and values (n, v) at one tilt (k,) of the keys."""
    (n, k), v, blocks = keys.shape, values.shape[1], -(-len(keys) // size)
    shapes = (blocks,), (blocks,), (blocks, k + v), (blocks, k, k), (blocks, k, v)
    found = MomentBlocks(*(np.empty(shape, np.float32) for shape in shapes))
    _run(_TARGETS[1], blocks, (keys, values, log_masses, tilt), (n, k, v, size), found)
    return found


def square_sums(terms: np.ndarray, coefficients: np.ndarray, size: int) -> np.ndarray:
    """sum_q c_jq t_iq^2, (3, n), from terms (n, q) and coefficients (blocks, 3, q).

    The terms are those of `softmax_blocks`, with all its queries.
    """
    found = np.empty((3, len(terms)), np.float32)
    _run(_TARGETS[2], len(coefficients), (terms, coefficients), (*terms.shape, size), (found,))
    return found


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(
    name: str,
    blocks: int,
    given: tuple[np.ndarray | None, ...],
    numbers: tuple[int, ...],
    found: tuple[np.ndarray, ...],
) -> None:
    """Call a kernel for all blocks: its structure is addresses, numbers, addresses of results."""
    arrays = [a if a is None else np.ascontiguousarray(a, np.float32) for a in given]
    addresses = [0 if a is None else a.ctypes.data for a in arrays]
    entries = [*addresses, *numbers, *(a.ctypes.data for a in found)]
    problem = (ctypes.c_int64 * len(entries))(*entries)  # addresses have 64 bits, as numbers do
    call, cores = getattr(library(), name), _cores()
    turns = min(blocks, _TURNS * cores if cores > 1 else 1)
    ends = [blocks * turn // turns for turn in range(turns + 1)]
    rest = iter(range(turns))  # `next` of it is atomic

    def work() -> None:
        for turn in rest:
            call(problem, ctypes.c_int64(ends[turn]), ctypes.c_int64(ends[turn + 1]))

    others = [Thread(target=work) for _ in range(min(cores, turns) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
