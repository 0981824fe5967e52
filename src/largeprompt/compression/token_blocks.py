"""Sums over blocks of tokens, which stay in the cache from their scores to their sums.

Single precision goes to C++ on all cores where it is compiled, the rest to NumPy.
"""

import numpy as np

from .._native import blocks as native
from .._native.blocks import AttentionBlocks, MomentBlocks, SoftmaxBlocks

SIZE = 1024  # tokens of a block
_GOLDEN = (5**0.5 - 1) / 2
_DRAWN = 2048  # tokens of a sample
_STREAMED = 4096  # the same where no terms are stored
_RUN = 16  # tokens of a run of `drawn_by_weight`


def parts(n: int, size: int = SIZE) -> list[slice]:
    """The blocks of n tokens."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def strata(n: int, count: int) -> np.ndarray:
    """Indices of tokens, one in each of `count` equal parts of n, at places that do not repeat."""
    return (levels(count) * n).astype(np.int64)


def levels(count: int) -> np.ndarray:
    """Numbers between 0 and 1, one in each of `count` equal parts."""
    order = np.arange(count)
    return (order + order * _GOLDEN % 1.0) / count


def in_cpp(array: np.ndarray) -> bool:
    """Whether sums over these tokens run in C++."""
    return array.dtype == np.float32 and native.available()


def merged(tops: np.ndarray, totals: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log normalisers (q,) and means (q, v) of all blocks, in float64."""
    tops = tops.astype(np.float64)
    top = tops.max(axis=0)
    factors = np.exp(tops - _finite(top))
    total = (factors * totals).sum(axis=0)
    means = np.einsum("bq,bqv->qv", factors, sums) / total[:, None]
    return top + np.log(total), means


def softmax_blocks(
    keys: np.ndarray, values: np.ndarray, log_masses: np.ndarray | None, queries: np.ndarray
) -> SoftmaxBlocks:
    """Softmax terms of queries (q, k) over keys (n, k), and their sums with values (n, v)."""
    if in_cpp(keys):
        return native.softmax_blocks(keys, values, log_masses, queries, SIZE)
    (n, kind), q, blocks = (len(keys), keys.dtype), len(queries), parts(len(keys))
    terms, tops = np.empty((n, q), kind), np.empty((len(blocks), q), kind)
    totals, sums = np.empty_like(tops), np.empty((*tops.shape, values.shape[1]), kind)
    for b, part in enumerate(blocks):
        block = np.matmul(keys[part], queries.T, out=terms[part])
        if log_masses is not None:
            block += log_masses[part, None]
        tops[b] = block.max(axis=0)
        block -= _finite(tops[b])
        np.exp(block, out=block)
        totals[b], sums[b] = block.sum(axis=0), block.T @ values[part]
    return SoftmaxBlocks(terms, tops, totals, sums, np.einsum("nv,nv->n", values, values))


def attention_blocks(
    keys: np.ndarray,
    values: np.ndarray,
    log_masses: np.ndarray | None,
    queries: np.ndarray,
    guesses: np.ndarray,
    counted: np.ndarray,
) -> AttentionBlocks:
    """Softmax sums of queries (q, k) without their terms, in C++."""
    return native.attention_blocks(keys, values, log_masses, queries, guesses, counted, _STREAMED)


def square_sums(terms: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """sum_q c_jq t_iq^2, (3, n), from terms (n, q) and coefficients (blocks, 3, q)."""
    if in_cpp(terms):
        return native.square_sums(terms, coefficients, SIZE)
    pairs = zip(coefficients.astype(terms.dtype), parts(len(terms)), strict=True)
    return np.concatenate([block @ (terms[part] ** 2).T for block, part in pairs], axis=1)


def tilted_moments(
    keys: np.ndarray, values: np.ndarray, log_masses: np.ndarray, tilt: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log mass, mean key, mean value, Cov(k, k) and Cov(k, v) at a tilt of the keys, in float64."""
    in_blocks = native.moment_blocks if in_cpp(keys) else _moment_blocks
    tops, totals, means, *sums = in_blocks(keys, values, log_masses, tilt, SIZE)
    top = float(tops.max())
    factors = np.exp(tops.astype(np.float64) - top)
    weights = factors * totals
    total = float(weights.sum())
    key_cov, cross = (
        (factors.astype(part.dtype) @ part.reshape(len(part), -1)).reshape(part.shape[1:]) / total
        for part in sums
    )
    k, weights = keys.shape[1], weights / total
    mean = weights @ means
    gaps = means[:, :k] - mean[:k]
    key_cov = key_cov + (weights * gaps.T) @ gaps
    cross = cross + (weights * gaps.T) @ means[:, k:]
    return top + float(np.log(total)), mean[:k], mean[k:], key_cov, cross


def sampled_covariances(
    keys: np.ndarray, values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cov(k, k) and Cov(k, v) of tokens drawn by their weights (n,).

    One is drawn from each of equal parts of the total weight.
    """
    drawn = drawn_by_weight(weights, levels(_DRAWN))
    none = np.zeros(max(_DRAWN, keys.shape[1]), keys.dtype)
    found = tilted_moments(keys[drawn], values[drawn], none[:_DRAWN], none[: keys.shape[1]])
    return found[3:]


def drawn_by_weight(weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Indices of the tokens where the running sum of the weights (n,) exceeds these shares of it.

    The running sum is computed over runs of tokens, and within the runs that are drawn from: one
    over all tokens takes twice as long.
    """
    starts = np.arange(0, len(weights), _RUN)
    sums = np.add.reduceat(weights, starts).astype(np.float64)
    total = np.cumsum(sums)
    wanted = shares * total[-1]
    run = np.searchsorted(total, wanted, side="right")
    index = starts[run][:, None] + np.arange(_RUN)
    part = np.where(index < len(weights), weights[np.minimum(index, len(weights) - 1)], 0.0)
    within = np.cumsum(part, axis=1, dtype=np.float64)
    of_run = np.clip((wanted - (total[run] - sums[run])) / sums[run], 0.0, 1 - 1e-9)
    return starts[run] + np.sum(within <= (of_run * within[:, -1])[:, None], axis=1)


def _moment_blocks(
    keys: np.ndarray, values: np.ndarray, log_masses: np.ndarray, tilt: np.ndarray, size: int
) -> MomentBlocks:
    k, found = keys.shape[1], []
    for part in parts(len(keys), size):
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
    return MomentBlocks(*(np.stack(part) for part in zip(*found, strict=True)))


def _finite(tops: np.ndarray) -> np.ndarray:
    """Largest scores, 0 for blocks without any weight."""
    return np.where(tops > -np.inf, tops, tops.dtype.type(0))
