"""A prompt to compress and the queries that its compression should serve, validated."""

from typing import NamedTuple

import numpy as np

from .. import _checks
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..attention.head import one_head
from ..measures import AbstractMeasure, KeyValues
from .blocked_softmax import BlockedSoftmax
from .compressed import Compressed
from .draft import Draft, DraftTail, outputs
from .streamed_softmax import StreamedSoftmax
from .token_blocks import in_cpp

FEWEST_HELD_OUT = 8  # queries from which on some are held out
LONG = 2**14  # tokens beyond which single-precision prompts are compressed in single precision


class Problem(NamedTuple):
    """A prompt and queries; `masses` are those of the tokens, 1 without log weights."""

    keys: np.ndarray
    values: np.ndarray
    log_masses: np.ndarray
    queries: np.ndarray
    attention: BlockedSoftmax | StreamedSoftmax
    keep: np.ndarray
    dtype: np.dtype
    log_weights: np.ndarray | None
    mean_value: np.ndarray

    @property
    def n(self) -> int:
        return len(self.keys)

    def restricted(self, rows: np.ndarray) -> "Problem":
        """With these queries only."""
        return self._replace(queries=self.queries[rows], attention=self.attention.restricted(rows))

    def with_queries(self, queries: np.ndarray) -> "Problem":
        """With other queries."""
        masses = None if self.log_weights is None else self.log_masses
        z = queries.astype(self.keys.dtype)
        return self._replace(
            queries=z, attention=BlockedSoftmax.of(self.keys, self.values, masses, z)
        )

    def kept(self, index: np.ndarray, tail: DraftTail | None = None) -> Draft:
        """These tokens as they are."""
        logs = None if self.log_weights is None else self.log_masses[index]
        if tail is None and logs is not None and np.all(logs == -np.inf):
            raise _checks.error(
                "a compressed prompt needs a token of positive weight, or a tail",
                f"{len(index)} tokens of weight 0",
                "raise atoms above the number of tokens to keep, or give rank=0",
            )
        return self.draft(self.keys[index], self.values[index], logs, tail)

    def draft(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        logs: np.ndarray | None,
        tail: DraftTail | None = None,
    ) -> Draft:
        """A compressed prompt in the precision of this one."""
        keys, values = keys.astype(self.dtype), values.astype(self.dtype)
        return Draft(keys, values, None if logs is None else logs.astype(self.dtype), tail)

    def tail(
        self, tilt: np.ndarray, log_mass: float, mean: np.ndarray, factor: np.ndarray
    ) -> DraftTail:
        arrays = (tilt, np.asarray(log_mass), mean, factor)
        return DraftTail(*(array.astype(self.dtype) for array in arrays))

    def errors(self, found: Draft, rows: np.ndarray) -> np.ndarray:
        """Relative squared errors of a draft at these queries."""
        part = self.restricted(rows)
        exact = part.attention.outputs
        got = outputs(found, part.queries.astype(np.float64))
        squares = np.sum((got - exact) ** 2, axis=1)
        deviation = np.mean(np.sum((exact - self.mean_value) ** 2, axis=1))
        floor = 1e-26 * float(np.mean(self.attention.squares, dtype=np.float64))
        if deviation <= floor:  # all tokens equal: nothing to be relative to
            return np.where(squares <= 1e14 * floor, 0.0, np.inf)
        return squares / deviation


def problem_of(
    prompt: AbstractMeasure,
    queries: ArrayInput,
    keep: ArrayInput,
    head: AbstractHead | None,
    streamed: bool = False,
) -> Problem:
    """The problem; `streamed` stores no attention of single tokens if the prompt is long."""
    pair = prompt.as_key_values() if isinstance(prompt, AbstractMeasure) else None
    if pair is None:
        raise _checks.error(
            "compress takes a prompt of keys and values",
            f"a {type(prompt).__name__}",
            "wrap the arrays as KeyValues(keys, values); if tokens are both, pass them twice",
        )
    k = pair.key_dim
    head = None if head is None else one_head(head)
    if head is not None and not (head.dim == pair.dim and head.splits_at(k)):
        raise _checks.error(
            f"head must score the keys, {k} coordinates, and read the values",
            f"U of shape {head.U.shape}",
            f"pass Head.key_value({k}, {pair.dim - k}, scale=...)",
        )
    dim = k if head is None else head.query_dim
    z = _checks.shaped("queries", _checks.known_finite("queries", queries), ("q", dim))
    if head is not None:
        z = z @ np.asarray(head.U, np.float64)[:k].T
    logs = _log_masses(prompt, pair)
    masses = np.zeros(pair.n) if logs is None else logs
    kept, dtype = _checks.indices("keep", keep, pair.n), pair.keys.dtype
    single = pair.n > LONG and dtype != np.float64
    work = np.float32 if single else np.float64
    keys, values, masses, z = (
        np.asarray(a).astype(work, copy=False) for a in (pair.keys, pair.values, masses, z)
    )
    given = keys, values, None if logs is None else masses, z
    if single and streamed and in_cpp(keys):
        attention = StreamedSoftmax.of(*given, split_queries(len(z))[0])
    else:
        attention = BlockedSoftmax.of(*given)
    if logs is None and isinstance(attention, StreamedSoftmax):
        mean_value = attention.value_sum / pair.n
    else:
        weights = np.exp(masses - masses.max())
        mean_value = weights @ values / weights.sum()
    return Problem(keys, values, masses, z, attention, kept, dtype, logs, mean_value)


def split_queries(queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries to fit and queries held out: every fourth, if there are 8."""
    index = np.arange(queries)
    if queries < FEWEST_HELD_OUT:
        return index, index[:0]
    return index[index % 4 != 3], index[index % 4 == 3]


def _log_masses(prompt: AbstractMeasure, pair: KeyValues) -> np.ndarray | None:
    """Log masses of the tokens, which add up to their number unless compressed; None: 1 each.

    The atoms of a compressed prompt have masses already, such as counts of centroids.
    """
    if isinstance(prompt, Compressed):
        logs = prompt.log_weights
        return None if logs is None else np.asarray(logs, np.float64)
    logs = pair.log_weights
    return None if logs is None else np.asarray(logs, np.float64) + np.log(pair.n)
