"""Softmax attention and moments of all tokens of a prompt, in blocks that fit in the cache."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_SIZE = 1024  # tokens of a block


class Attention(NamedTuple):
    """Attention weights and outputs of queries; `rows` are the queries that count."""

    table: np.ndarray  # (n, all queries): weights
    log_normalisers: np.ndarray  # (all queries,), float64
    means: np.ndarray  # (all queries, v), float64: outputs
    rows: np.ndarray

    @classmethod
    def of(
        cls,
        keys: np.ndarray,
        values: np.ndarray,
        log_masses: np.ndarray | None,
        queries: np.ndarray,
    ) -> "Attention":
        """Attention of queries (q, k) to keys (n, k) and values (n, v), in their dtype."""
        n, q, tops, totals, sums = len(keys), len(queries), [], [], []
        table = np.empty((n, q), keys.dtype)
        for part in blocks(n):
            terms = np.matmul(keys[part], queries.T, out=table[part])
            if log_masses is not None:
                terms += log_masses[part, None]
            tops.append(terms.max(axis=0))
            terms -= _finite(tops[-1])
            np.exp(terms, out=terms)
            totals.append(terms.sum(axis=0))
            sums.append(terms.T @ values[part])
        highest = np.asarray(tops, np.float64)
        top = highest.max(axis=0)
        factors = np.exp(highest - _finite(top))
        total = (factors * totals).sum(axis=0)
        factors /= total
        means = np.einsum("bq,bqv->qv", factors, sums)
        for part, factor in zip(blocks(n), factors, strict=True):
            table[part] *= factor.astype(table.dtype)
        return cls(table, top + np.log(total), means, np.arange(q))

    def restricted(self, rows: np.ndarray) -> "Attention":
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

    def weights(self, index: np.ndarray | None = None) -> np.ndarray:
        """Weights p_qi of these tokens, or of all, (q, tokens)."""
        return (self.table if index is None else self.table[index])[:, self.rows].T

    def mean_weights(self) -> np.ndarray:
        """E[p_i] over the queries for every token, (n,)."""
        shares = np.zeros(self.table.shape[1], self.table.dtype)
        shares[self.rows] = 1 / len(self.rows)
        return self.table @ shares

    def leverages(self, values: np.ndarray) -> np.ndarray:
        """Sum over queries of p_qi^2 |v_i - T_q|^2 for every token, (n,)."""
        centre = self.outputs.mean(axis=0).astype(values.dtype)  # so that fewer digits cancel
        T = self.outputs - centre
        features = np.zeros((self.table.shape[1], T.shape[1] + 2), self.table.dtype)
        features[self.rows] = np.column_stack([np.ones(len(T)), -2 * T, np.sum(T**2, axis=1)])
        found = []
        for part in blocks(len(values)):
            steps = values[part] - centre
            sums = self.table[part] ** 2 @ features
            squares = np.einsum("nv,nv->n", steps, steps)
            cross = np.einsum("nv,nv->n", steps, sums[:, 1:-1])
            found.append(squares * sums[:, 0] + cross + sums[:, -1])
        return np.concatenate(found)


def blocks(n: int) -> Iterator[slice]:
    """The blocks of n tokens."""
    return (slice(start, min(start + _SIZE, n)) for start in range(0, n, _SIZE))


def tilted_moments(
    keys: np.ndarray, values: np.ndarray, log_masses: np.ndarray, tilt: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log mass, mean key, mean value, Cov(k, k) and Cov(k, v) at a tilt of the keys, in float64."""
    k, found = keys.shape[1], []
    for part in blocks(len(keys)):
        scores = keys[part] @ tilt + log_masses[part]
        top = scores.max(keepdims=True)
        weights = np.exp(scores - _finite(top))
        total = weights.sum()
        mean = np.concatenate([weights @ keys[part], weights @ values[part]])
        mean /= total if total > 0 else 1
        gaps, roots = keys[part] - mean[:k], np.sqrt(weights)[:, None]
        gaps *= roots
        key_sums = gaps.T @ gaps
        gaps *= roots
        found.append((top[0], total, mean, key_sums, gaps.T @ values[part]))
    tops, totals, means, *sums = (np.stack(part) for part in zip(*found, strict=True))
    top = float(tops.max())
    factors = np.exp(tops.astype(np.float64) - top)
    weights = factors * totals
    total = float(weights.sum())
    key_cov, cross = (np.tensordot(factors.astype(part.dtype), part, 1) / total for part in sums)
    weights /= total
    mean = weights @ means
    gaps = means[:, :k] - mean[:k]
    key_cov = key_cov + (weights * gaps.T) @ gaps
    cross = cross + (weights * gaps.T) @ means[:, k:]
    return top + float(np.log(total)), mean[:k], mean[k:], key_cov, cross


def _finite(tops: np.ndarray) -> np.ndarray:
    """Largest scores, 0 for blocks without any weight."""
    return np.where(tops > -np.inf, tops, tops.dtype.type(0))
