"""A prompt to compress and the queries that its compression should serve, validated."""

from typing import NamedTuple

import jax
import numpy as np

from .. import _checks
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..attention.head import one_head
from ..measures import AbstractMeasure, KeyValues
from .compressed import Compressed
from .draft import Draft, DraftTail, outputs
from .token_blocks import Attention

FEWEST = 64  # queries from which on a quarter of them is held out
LONG = 2**14  # tokens beyond which single-precision prompts are compressed in single precision


class Problem(NamedTuple):
    """A prompt and queries; `masses` are those of the tokens, 1 without log weights."""

    keys: np.ndarray
    values: np.ndarray
    log_masses: np.ndarray
    queries: np.ndarray
    attention: Attention
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
        return self._replace(queries=z, attention=Attention.of(self.keys, self.values, masses, z))

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

    def errors(self, found: Draft, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Squared errors of a draft at these queries, and squared deviations of the output from the
        mean value there, relative to the mean of the deviations.
        """
        part = self.restricted(rows)
        exact = part.attention.outputs
        got = outputs(found, part.queries.astype(np.float64))
        squares = np.sum((got - exact) ** 2, axis=1)
        deviations = np.sum((exact - self.mean_value) ** 2, axis=1)
        deviation = np.mean(deviations)
        floor = 1e-26 * float(np.vdot(self.values, self.values)) / self.n
        if deviation <= floor:  # all tokens equal: nothing to be relative to
            return np.where(squares <= 1e14 * floor, 0.0, np.inf), np.ones(len(rows))
        return squares / deviation, deviations / deviation


def problem_of(
    prompt: AbstractMeasure,
    queries: ArrayInput,
    keep: ArrayInput,
    head: AbstractHead | None,
) -> Problem:
    """Validate the arguments of `compress`, and attend to the whole prompt."""
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
    kept = _checks.indices("keep", keep, pair.n)
    dtype = jax.dtypes.canonicalize_dtype(pair.keys.dtype)  # of the result
    single = pair.n > LONG and dtype != np.float64
    work = np.float32 if single else np.float64
    keys, values, masses, z = (
        np.asarray(a).astype(work, copy=False) for a in (pair.keys, pair.values, masses, z)
    )
    attention = Attention.of(keys, values, None if logs is None else masses, z)
    weights = np.exp(masses - masses.max())
    mean_value = weights @ values / weights.sum()
    return Problem(keys, values, masses, z, attention, kept, dtype, logs, mean_value)


def split_queries(queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries to fit and queries held out: every fourth, if there are at least `FEWEST`.

    Errors of a compressed prompt have heavy tails: their mean over fewer than 16 queries says
    little about other queries, and none is stated.
    """
    index = np.arange(queries)
    if queries < FEWEST:
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
