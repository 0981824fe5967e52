"""Softmax of queries over the tokens of a long prompt, in one pass that stores no terms."""

from typing import NamedTuple

import numpy as np

from . import token_blocks

_GUESSED_FROM = 512  # tokens that normalisers are guessed from
_SLACK = np.float32(1 + 1e-4)  # of rounding


class MeanQuery(NamedTuple):
    """Sums of the tokens at the mean query."""

    scores: np.ndarray  # (n,)
    log_mass: float
    mean: np.ndarray  # (k + v,) of keys and values


class StreamedSoftmax(NamedTuple):
    """Outputs of queries, and bounds of the weights of tokens; weights are computed again.

    The interface is that of `BlockedSoftmax`; `rows` are the queries that count.
    """

    keys: np.ndarray
    log_masses: np.ndarray | None
    queries: np.ndarray
    log_normalisers: np.ndarray  # (q,)
    means: np.ndarray  # (q, v): the outputs
    squares: np.ndarray  # (n,): |value|^2
    bounds: np.ndarray  # (n,): at least the sum of p^2 over the queries `counted`
    value_sum: np.ndarray  # (v,): of all values, whatever their weights
    counted: np.ndarray
    mean_query: MeanQuery  # of these queries
    rows: np.ndarray

    @classmethod
    def of(
        cls,
        keys: np.ndarray,
        values: np.ndarray,
        log_masses: np.ndarray | None,
        queries: np.ndarray,
        counted: np.ndarray,
    ) -> "StreamedSoftmax":
        """Softmax of the queries, in single precision; `counted` are those to compress for."""
        some = token_blocks.strata(len(keys), min(_GUESSED_FROM, len(keys)))
        scores = keys[some] @ queries.T
        if log_masses is not None:
            scores += log_masses[some, None]
        top = np.maximum(scores.max(axis=0), -1e30)  # also without any weight
        total = np.maximum(np.exp(scores - top).sum(axis=0), 1e-30)
        guesses = top + np.log(total) + np.log(len(keys) / len(some))
        found = token_blocks.attention_blocks(keys, values, log_masses, queries, guesses, counted)
        q = len(queries)
        log_normalisers, means = token_blocks.merged(found.tops, found.totals, found.sums)
        one = found.mean_tops[:, None], found.mean_totals[:, None], found.mean_sums[:, None]
        log_mass, mean = token_blocks.merged(*one)
        too_high = max(float(np.max((guesses - log_normalisers[:q])[counted])), 0.0)
        return cls(
            keys,
            log_masses,
            queries,
            log_normalisers[:q],
            means[:q],
            found.squares,
            found.bounds * _SLACK * np.float32(np.exp(2 * too_high)),
            found.value_sums.sum(axis=0, dtype=np.float64),
            counted,
            MeanQuery(found.averages, float(log_mass[0]), mean[0]),
            np.arange(q),
        )

    def restricted(self, rows: np.ndarray) -> "StreamedSoftmax":
        """For these queries only."""
        return self._replace(rows=self.rows[rows])

    @property
    def log_normaliser(self) -> np.ndarray:
        """(q,), float64."""
        return self.log_normalisers[self.rows]

    @property
    def outputs(self) -> np.ndarray:
        """(q, v), float64."""
        return self.means[self.rows]

    def weights(self, index: np.ndarray) -> np.ndarray:
        """Weights p_qi of these tokens, (q, len(index))."""
        keys = self.keys if len(index) == len(self.keys) else self.keys[index]
        scores = self.queries[self.rows] @ keys.T
        if self.log_masses is not None:
            scores += self.log_masses[index]
        scores -= self.log_normaliser.astype(scores.dtype)[:, None]
        return np.exp(scores, out=scores)

    def all_weights(self) -> np.ndarray:
        """Weights of all tokens, (q, n)."""
        return self.weights(np.arange(len(self.keys)))

    def mean_weights(self) -> np.ndarray:
        """E[p_i] over the queries for every token, (n,)."""
        order = np.arange(len(self.keys))
        found = [self.weights(order[part]) for part in token_blocks.parts(len(order))]
        return np.concatenate([part.mean(axis=0) for part in found])
