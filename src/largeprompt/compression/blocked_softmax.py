"""Softmax of queries over all tokens of a prompt, computed once and kept."""

from typing import NamedTuple

import numpy as np

from . import token_blocks


class BlockedSoftmax(NamedTuple):
    """Weights and outputs of queries; `rows` are the queries that count."""

    terms: np.ndarray  # (n, q), relative to the largest score of query and block
    tops: np.ndarray  # (blocks, q)
    log_normalisers: np.ndarray  # (q,)
    means: np.ndarray  # (q, v): the outputs
    squares: np.ndarray  # (n,): |value|^2
    rows: np.ndarray

    @classmethod
    def of(
        cls,
        keys: np.ndarray,
        values: np.ndarray,
        log_masses: np.ndarray | None,
        queries: np.ndarray,
    ) -> "BlockedSoftmax":
        """Softmax of the queries, in the dtype of the arrays."""
        found = token_blocks.softmax_blocks(keys, values, log_masses, queries)
        log_normalisers, means = token_blocks.merged(found.tops, found.totals, found.sums)
        tops, rows = found.tops.astype(np.float64), np.arange(len(queries))
        return cls(found.terms, tops, log_normalisers, means, found.squares, rows)

    def restricted(self, rows: np.ndarray) -> "BlockedSoftmax":
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

    def _factors(self) -> np.ndarray:
        """What turns the terms of query and block into weights, (blocks, q)."""
        return np.exp(self.tops[:, self.rows] - self.log_normaliser)

    def weights(self, index: np.ndarray) -> np.ndarray:
        """Weights p_qi of these tokens, (q, len(index))."""
        factors = self._factors()[index // token_blocks.SIZE].astype(self.terms.dtype)
        return (self.terms[index][:, self.rows] * factors).T

    def all_weights(self) -> np.ndarray:
        """Weights of all tokens, (q, n)."""
        weights = self.terms[:, self.rows]
        pairs = zip(self._factors(), token_blocks.parts(len(weights)), strict=True)
        for factors, part in pairs:
            weights[part] *= factors.astype(weights.dtype)
        return weights.T

    def mean_weights(self) -> np.ndarray:
        """E[p_i] over the queries for every token, (n,)."""
        factors = np.zeros((len(self.tops), self.terms.shape[1]), self.terms.dtype)
        factors[:, self.rows] = self._factors() / len(self.rows)
        pairs = zip(factors, token_blocks.parts(len(self.terms)), strict=True)
        return np.concatenate([self.terms[part] @ block for block, part in pairs])

    def sums_of_squares(self, coefficients: np.ndarray) -> np.ndarray:
        """sum_q c_jq p_qi^2 for every token, (3, n), from coefficients (3, q)."""
        every = np.zeros((len(self.tops), 3, self.terms.shape[1]))
        every[:, :, self.rows] = coefficients * self._factors()[:, None] ** 2
        return token_blocks.square_sums(self.terms, every)
