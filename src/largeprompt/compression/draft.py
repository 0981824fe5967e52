"""Compressed prompts in NumPy, as they are made: JAX arrays and modules would cost as much time."""

from typing import NamedTuple

import numpy as np


class DraftTail(NamedTuple):
    """The numbers of a `Tail`."""

    tilt: np.ndarray
    log_mass: np.ndarray
    mean: np.ndarray
    factor: np.ndarray


class Draft(NamedTuple):
    """The numbers of a `Compressed` prompt without its error."""

    keys: np.ndarray
    values: np.ndarray
    log_weights: np.ndarray | None
    tail: DraftTail | None


def outputs(found: Draft, queries: np.ndarray) -> np.ndarray:
    """Attention of tilts of the keys to a draft, in float64."""
    return outputs_and_weights(found, queries)[0]


def outputs_and_weights(found: Draft, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs (q, v), and the weights (q, n) of the atoms."""
    keys, values = (np.asarray(a, np.float64) for a in (found.keys, found.values))
    scores = queries @ keys.T
    if found.log_weights is not None:
        scores = scores + np.asarray(found.log_weights, np.float64)
    read = values[None]
    if found.tail is not None:
        score, read = seen_tail(found.tail, queries)
        scores = np.column_stack([scores, score])
    terms = np.exp(scores - scores.max(axis=1, keepdims=True))
    terms /= terms.sum(axis=1, keepdims=True)
    if found.tail is None:
        return terms @ values, terms
    return terms[:, :-1] @ values + terms[:, -1:] * read, terms[:, :-1]


def seen_tail(tail: DraftTail, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log mass (q,) and output (q, v) of the tail at tilts of the keys."""
    tilt, mean, factor = (np.asarray(a, np.float64) for a in (tail.tilt, tail.mean, tail.factor))
    k, steps = len(tilt), queries - tilt
    along = steps @ factor[:k]
    score = float(np.asarray(tail.log_mass)) + steps @ mean[:k] + np.sum(along**2, axis=1) / 2
    return score, mean[k:] + along @ factor[k:].T
