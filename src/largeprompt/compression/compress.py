"""`compress`: a small measure in place of a long prompt, by several methods at equal interface."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np

from .. import _checks
from .._typing import ArrayInput, KeyInput
from ..attention import Head
from ..measures import AbstractMeasure
from .atoms import matching_pursuit, residual_leverage, spread, tail_features
from .compressed import Compressed, CompressionError, Tail, factor_of, low_rank, query_metric
from .correction import value_changes

Method = Literal[
    "gaussian tail",
    "most attended",
    "sinks and window",
    "expected attention",
    "centroids",
    "moments",
    "attention matching",
    "random",
]
Choose = Literal["leverage", "residual leverage", "matching pursuit", "attention mass"]

_RANKS = (None, 0, 1, 2, 4, 8, 16, 32)  # tails that `size` chooses from
_SINKS = 4  # first tokens that StreamingLLM keeps
_ROUNDS = 20  # of k-means
_PRIOR = 0.3  # queries that the expansion at the mean query counts for, for each coefficient
_LOWEST_CURVATURE = 0.01
_BLOCK = 2048  # tokens at a time, whose scores fit the cache
_LITTLE = 0.5  # weight of the tail below which its sums are not those of all tokens less the atoms
_LONG = 2**14  # tokens beyond which single-precision prompts are compressed in single precision


def compress(
    prompt: AbstractMeasure,
    queries: ArrayInput,
    *,
    atoms: int | None = None,
    rank: int | None = 0,
    size: int | None = None,
    keep: ArrayInput = (),
    method: Method = "gaussian tail",
    choose: Choose = "leverage",
    head: Head | None = None,
    key: KeyInput | None = None,
) -> Compressed:
    """A small measure that `attend` serves in place of a prompt of keys and values.

    By default it has the most important tokens as atoms and one scaled Gaussian for all others:
    the second-order expansion of their cumulant function at the mean query, corrected by least
    squares over the queries, with a covariance of low rank in the metric of the queries. Atoms have
    their keys; their values move by ridge regression, if that helps queries that it did not see.

    **Arguments:** `prompt`, keys and values; `queries` of shape (q, d_k), which the result should
    serve, in the order of time if they have one. Every fourth one, if there are at least 8, only
    measures the error. Sizes: `atoms` kept tokens, those of the indices `keep` among them (sinks, a
    window), and `rank` of the Gaussian (None: no Gaussian, values as they are); or `size` in bytes,
    split between both by the error on the last third of the queries. `choose` ranks tokens by
    "leverage", $E[p_i^2 |v_i - T|^2]$; by "residual leverage", the part of it that no Gaussian tail
    explains; by "matching pursuit" on that residual, one token at a time; or by "attention mass",
    $E[p_i]$. `head` is a `Head.key_value` with another scale than 1. `key` is for method="random".

    Other methods, for comparison: "most attended" (SnapKV, H2O), "sinks and window" (StreamingLLM),
    "expected attention", "centroids" with log counts, "moments" (a Gaussian with the literal
    moments of the other tokens, as MomentKV), "attention matching", "random".

    >>> import numpy as np
    >>> import largeprompt as lp
    >>> rng = np.random.default_rng(0)
    >>> keys, values = rng.normal(size=(500, 4)), rng.normal(size=(500, 4))
    >>> queries = 0.5 * rng.normal(size=(64, 4))
    >>> small = lp.compress(lp.KeyValues(keys, values + keys), queries, atoms=8, rank=4)
    >>> (small.n, small.tail.rank, bool(small.error.mean < 0.1))
    (8, 4, True)
    """
    problem = _problem(prompt, queries, keep, head)
    for name, value, known in (("method", method, Method), ("choose", choose, Choose)):
        if value not in get_args(known):
            raise ValueError(
                _checks.message(f"{name} must be one of {get_args(known)}", repr(value), "see help")
            )
    if (size is None) == (atoms is None):
        raise ValueError(
            _checks.message(
                "compress needs either atoms or size",
                f"atoms={atoms}, size={size}",
                "pass atoms=n, rank=r, or size= in bytes",
            )
        )
    seen, held_out = _split(len(problem.queries))
    fitting = problem.restricted(seen)
    if size is not None:
        atoms, rank = _sizes(fitting, _checks.count("size", size), method, choose, key)
    assert atoms is not None  # for the type checker: one of both is given
    atoms, rank = _checked_counts(fitting, atoms, rank)
    if atoms >= problem.n:
        found = problem.kept(np.arange(problem.n))
    else:
        found = _by_method(fitting, atoms, rank, method, choose, key, final=True)
    error = problem.error(found, held_out if len(held_out) else seen, bool(len(held_out)))
    return Compressed(found.keys, found.values, found.log_weights, found.tail, error)


class _Attention(NamedTuple):
    """Softmax of all queries over all tokens, computed once, one block of tokens at a time.

    Blocks stay in the cache from their scores to their sums. `rows` are the queries that count.
    """

    terms: np.ndarray  # (blocks, q, size), relative to the largest score of query and block
    tops: np.ndarray  # (blocks, q)
    log_normalisers: np.ndarray  # (q,)
    means: np.ndarray  # (q, v): the outputs
    n: int
    rows: np.ndarray

    @classmethod
    def of(
        cls,
        keys: np.ndarray,
        values: np.ndarray,
        log_masses: np.ndarray | None,
        queries: np.ndarray,
    ) -> "_Attention":
        """Attention of the queries, in the dtype of the arrays."""
        n, q, kind = len(keys), len(queries), keys.dtype
        size = min(n, _BLOCK)
        blocks = -(-n // size)
        terms, tops = np.empty((blocks, q, size), kind), np.empty((blocks, q))
        terms[-1] = 0.0  # the last block may be shorter
        totals, sums = np.zeros((blocks, q)), np.zeros((blocks, q, values.shape[1]))
        for b in range(blocks):
            part = slice(b * size, min((b + 1) * size, n))
            block = terms[b, :, : part.stop - part.start]
            np.matmul(queries, keys[part].T, out=block)
            if log_masses is not None:
                block += log_masses[part]
            tops[b] = block.max(axis=1)
            block -= np.where(tops[b] > -np.inf, tops[b], 0.0).astype(kind)[:, None]
            np.exp(block, out=block)
            totals[b] = block.sum(axis=1)
            sums[b] = block @ values[part]
        top = tops.max(axis=0)
        factors = np.exp(tops - top)
        total = (factors * totals).sum(axis=0)
        means = np.einsum("bq,bqv->qv", factors, sums) / total[:, None]
        return cls(terms, tops, top + np.log(total), means, n, np.arange(q))

    def restricted(self, rows: np.ndarray) -> "_Attention":
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
        block, place = np.divmod(index, self.terms.shape[2])
        terms = self.terms[block[:, None], self.rows[None, :], place[:, None]]
        return (terms * self._factors()[block]).T.astype(self.terms.dtype)

    def all_weights(self) -> np.ndarray:
        """Weights of all tokens, (q, n)."""
        factors = self._factors()[:, :, None].astype(self.terms.dtype)
        weights = self.terms[:, self.rows] * factors
        return weights.transpose(1, 0, 2).reshape(len(self.rows), -1)[:, : self.n]

    def sums_over_queries(self, coefficients: np.ndarray, power: int) -> np.ndarray:
        """sum_q c_jq p_qi^power for every token, (j, n), from coefficients (j, q)."""
        found = np.empty((len(coefficients), len(self.terms), self.terms.shape[2]))
        every = np.zeros((len(coefficients), self.terms.shape[1]))
        for b, factors in enumerate(self._factors()):
            every[:, self.rows] = coefficients * factors**power
            found[:, b] = every.astype(self.terms.dtype) @ self.terms[b] ** power
        return found.reshape(len(coefficients), -1)[:, : self.n]


class _Problem(NamedTuple):
    """A prompt and queries; `masses` are those of the tokens, 1 without log weights."""

    keys: np.ndarray
    values: np.ndarray
    log_masses: np.ndarray
    queries: np.ndarray
    attention: _Attention
    keep: np.ndarray
    dtype: np.dtype
    log_weights: np.ndarray | None

    @property
    def n(self) -> int:
        return len(self.keys)

    def restricted(self, rows: np.ndarray) -> "_Problem":
        """With these queries only."""
        return self._replace(queries=self.queries[rows], attention=self.attention.restricted(rows))

    def with_queries(self, queries: np.ndarray) -> "_Problem":
        """With other queries."""
        masses = None if self.log_weights is None else self.log_masses
        z = queries.astype(self.keys.dtype)
        return self._replace(queries=z, attention=_Attention.of(self.keys, self.values, masses, z))

    def kept(self, index: np.ndarray, tail: Tail | None = None) -> Compressed:
        """These tokens as they are."""
        logs = None if self.log_weights is None else self.log_masses[index]
        return self.measure(self.keys[index], self.values[index], logs, tail)

    def measure(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        logs: np.ndarray | None,
        tail: Tail | None = None,
    ) -> Compressed:
        """A measure in the precision of the prompt."""
        k, v = (jax.device_put(np.asarray(a).astype(self.dtype)) for a in (keys, values))
        weights = None if logs is None else jax.device_put(logs.astype(self.dtype))
        return Compressed(k, v, weights, tail)

    def tail(self, tilt: np.ndarray, log_mass: float, mean: np.ndarray, factor: np.ndarray) -> Tail:
        arrays = (tilt, np.asarray(log_mass), mean, factor)
        return Tail(*(jax.device_put(array.astype(self.dtype)) for array in arrays))

    def error(self, found: Compressed, rows: np.ndarray, held_out: bool) -> CompressionError:
        """Relative squared error of a measure at these queries."""
        part = self.restricted(rows)
        exact = part.attention.outputs
        got = outputs(found, part.queries.astype(np.float64))
        squares = np.sum((got - exact) ** 2, axis=1)
        masses = np.exp(self.log_masses - self.log_masses.max())
        deviation = np.mean(np.sum((exact - masses @ self.values / masses.sum()) ** 2, axis=1))
        floor = 1e-26 * float(np.vdot(self.values, self.values)) / self.n
        if deviation <= floor:  # all tokens equal: nothing to be relative to
            relative = np.where(squares <= 1e14 * floor, 0.0, np.inf)
        else:
            relative = squares / deviation
        percentiles = np.percentile(relative, [50, 90, 99])
        numbers = np.asarray([np.mean(relative), *percentiles], np.float32)
        mean, median, high, highest = (jax.device_put(number) for number in numbers)
        return CompressionError(mean, median, high, highest, len(rows), held_out)


def outputs(found: Compressed, queries: np.ndarray) -> np.ndarray:
    """Attention of tilts of the keys to a compressed prompt, in NumPy and float64."""
    return outputs_and_weights(found, queries)[0]


def outputs_and_weights(found: Compressed, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs (q, v), and the weights (q, n) of the atoms."""
    keys, values = (np.asarray(a, np.float64) for a in (found.keys, found.values))
    scores = queries @ keys.T
    if found.log_weights is not None:
        scores = scores + np.asarray(found.log_weights, np.float64)
    read = values[None]
    if found.tail is not None:
        tail, k = found.tail, keys.shape[1]
        steps = queries - np.asarray(tail.tilt, np.float64)
        mean, factor = (np.asarray(a, np.float64) for a in (tail.mean, tail.factor))
        along = steps @ factor[:k]
        score = float(tail.log_mass) + steps @ mean[:k] + np.sum(along**2, axis=1) / 2
        scores = np.column_stack([scores, score])
        read = mean[k:] + along @ factor[k:].T
    terms = np.exp(scores - scores.max(axis=1, keepdims=True))
    terms /= terms.sum(axis=1, keepdims=True)
    if found.tail is None:
        return terms @ values, terms
    return terms[:, :-1] @ values + terms[:, -1:] * read, terms[:, :-1]


def _problem(
    prompt: AbstractMeasure, queries: ArrayInput, keep: ArrayInput, head: Head | None
) -> _Problem:
    pair = prompt.as_key_values() if isinstance(prompt, AbstractMeasure) else None
    if pair is None:
        raise ValueError(
            _checks.message(
                "compress takes a prompt of keys and values",
                f"a {type(prompt).__name__}",
                "wrap the arrays as KeyValues(keys, values); if tokens are both, pass them twice",
            )
        )
    k = pair.key_dim
    if head is not None and not (head.dim == pair.dim and head.splits_at(k)):
        raise ValueError(
            _checks.message(
                f"head must score the keys, {k} coordinates, and read the values",
                f"U of shape {head.U.shape}",
                f"pass Head.key_value({k}, {pair.dim - k}, scale=...)",
            )
        )
    dim = k if head is None else head.query_dim
    z = np.asarray(_checks.shaped("queries", _checks.finite("queries", queries), ("q", dim)))
    z = z.astype(np.float64)
    if head is not None:
        z = z @ np.asarray(head.U, np.float64)[:k].T
    logs = None if pair.log_weights is None else np.asarray(pair.log_weights, np.float64)
    masses = np.zeros(pair.n) if logs is None else logs + np.log(pair.n)
    kept = np.unique(np.asarray(keep, int))
    if np.any(kept < -pair.n) or np.any(kept >= pair.n):
        raise ValueError(
            _checks.message(
                f"keep must have indices of the {pair.n} tokens",
                f"{kept.tolist()[:5]}",
                "count from 0, or from -1 backwards",
            )
        )
    single = pair.n > _LONG and pair.dtype != np.float64
    work = np.float32 if single else np.float64
    keys, values, masses, z = (
        np.asarray(a).astype(work, copy=False) for a in (pair.keys, pair.values, masses, z)
    )
    attention = _Attention.of(keys, values, None if logs is None else masses, z)
    return _Problem(keys, values, masses, z, attention, np.unique(kept % pair.n), pair.dtype, logs)


def _split(queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries to fit and queries held out: every fourth, if there are 8."""
    index = np.arange(queries)
    if queries < 8:
        return index, index[:0]
    return index[index % 4 != 3], index[index % 4 == 3]


def _checked_counts(problem: _Problem, atoms: int, rank: int | None) -> tuple[int, int | None]:
    atoms = 0 if atoms == 0 else _checks.count("atoms", atoms)
    if rank is not None and rank != 0:
        rank = _checks.count("rank", rank)
    if rank is not None and rank > min(len(problem.queries), problem.keys.shape[1]):
        raise ValueError(
            _checks.message(
                "rank must be at most the dimension of the keys and the number of queries that are "
                "not held out",
                f"rank {rank} for keys of dimension {problem.keys.shape[1]} and "
                f"{len(problem.queries)} queries",
                "pass more queries or a lower rank",
            )
        )
    if atoms < len(problem.keep) or (atoms == 0 and rank is None):
        raise ValueError(
            _checks.message(
                "atoms must be at least the number of tokens to keep, and 1 without a tail",
                f"atoms={atoms}, {len(problem.keep)} tokens to keep, rank={rank}",
                "raise atoms, or give rank=0 for a tail",
            )
        )
    return atoms, rank


def _sizes(
    problem: _Problem, size: int, method: str, choose: str, key: KeyInput | None
) -> tuple[int, int | None]:
    """Numbers of atoms and rank of at most `size` bytes; of several, the best on queries that are
    left out here.
    """
    k, d = problem.keys.shape[1], problem.keys.shape[1] + problem.values.shape[1]
    weighted = problem.log_weights is not None or method in ("centroids", "attention matching")
    token = d + weighted
    budget = size // problem.dtype.itemsize
    least = max(len(problem.keep), 1)
    if budget // token >= problem.n:
        return problem.n, None
    options: list[tuple[int, int | None]] = []
    for rank in _RANKS if method in ("gaussian tail", "moments") else (None,):
        if rank is not None and rank > min(k, 2 * len(problem.queries) // 3):
            continue
        cost = 0 if rank is None else (rank + 1) * d + k + 1
        atoms = (budget - cost) // token
        if atoms >= (least if rank is None else len(problem.keep)):
            options.append((min(int(atoms), problem.n), rank))
    if not options:
        raise ValueError(
            _checks.message(
                f"size must be at least {least * token * problem.dtype.itemsize} bytes, that of "
                f"{least} tokens",
                f"{size} bytes",
                "raise size, or keep fewer tokens",
            )
        )
    if len(options) == 1:
        return options[0]
    index = np.arange(len(problem.queries))
    if len(index) < 3:
        return options[0]
    # the last third: queries to come are later than those at hand
    judge = index[-(len(index) // 3) :]
    inner = problem.restricted(index[: len(index) - len(judge)])
    errors = [
        float(problem.error(_by_method(inner, *option, method, choose, key), judge, True).mean)
        for option in options
    ]
    return options[int(np.argmin(errors))]


def _by_method(
    problem: _Problem,
    atoms: int,
    rank: int | None,
    method: str,
    choose: str,
    key: KeyInput | None,
    final: bool = False,
) -> Compressed:
    """A measure of this size; a `final` one also serves queries between, with corrected values."""
    if method == "gaussian tail":
        between = final and problem.n <= _LONG  # long prompts: attention of more queries costs most
        wider = problem.with_queries(spread(problem.queries)) if between else problem
        rule = choose if final or choose == "attention mass" else "leverage"  # trials are cheap
        found = _with_tail(wider, _chosen(wider, atoms, rank, rule), rank)
        return _corrected(problem, found) if final else found
    if method == "moments":
        index = _top(problem, _attention_mass(problem), atoms)
        return _with_tail(problem, index, rank, literal=True)
    if method == "random":
        order = np.asarray(jax.random.permutation(_checks.key(key), problem.n))
        score = np.empty(problem.n)
        score[order] = np.arange(problem.n)
        return problem.kept(_top(problem, score, atoms))
    return _METHODS[method](problem, atoms)


def _top(problem: _Problem, score: np.ndarray, atoms: int) -> np.ndarray:
    """Indices of the tokens to keep and of the highest scores."""
    score = score.copy()
    score[problem.keep] = np.inf
    return _highest(score, atoms)


def _highest(score: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest scores, in order; the first ones among equals."""
    if count == 0:
        return np.arange(0)
    lowest = np.partition(score, len(score) - count)[len(score) - count]
    above = np.flatnonzero(score > lowest)
    equal = np.flatnonzero(score == lowest)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _chosen(problem: _Problem, atoms: int, rank: int | None, choose: str) -> np.ndarray:
    """Indices of the atoms by one of the rules."""
    if choose == "attention mass":
        return _top(problem, _attention_mass(problem), atoms)
    if choose == "leverage":
        return _most_leverage(problem, atoms)
    p = problem.attention.all_weights()
    features = np.zeros((len(p), 0))
    if rank is not None and len(problem.keep) < problem.n:
        tail = _with_tail(problem, problem.keep, rank).tail
        assert tail is not None  # for the type checker
        steps = problem.queries - np.asarray(tail.tilt, np.float64)
        along = steps @ np.asarray(tail.factor, np.float64)[: problem.keys.shape[1]]
        features = tail_features(p, problem.keep, along)
    if choose == "matching pursuit":
        return matching_pursuit(p, problem.values, features, problem.keep, atoms)
    return _top(problem, residual_leverage(p, problem.values, features), atoms)


def _corrected(problem: _Problem, found: Compressed) -> Compressed:
    """The measure with values of the atoms that repair its error at the queries."""
    if found.tail is None:
        return found
    got, p = outputs_and_weights(found, problem.queries.astype(np.float64))
    changes = value_changes(p, problem.attention.outputs - got)
    if changes is None:
        return found
    values = np.asarray(found.values, np.float64) + changes
    logs = None if found.log_weights is None else np.asarray(found.log_weights)
    return problem.measure(np.asarray(found.keys), values, logs, found.tail)


def _attention_mass(problem: _Problem) -> np.ndarray:
    q = len(problem.queries)
    return problem.attention.sums_over_queries(np.full((1, q), 1 / q), 1)[0]


def _most_leverage(problem: _Problem, atoms: int) -> np.ndarray:
    """Indices of the tokens to keep and of the highest leverages.

    Leverage, E[p_i^2 |v_i - T|^2], is what the output loses, to first order, without the token. It
    lies between E[p_i^2 (|v_i| -+ |T|)^2], which is cheap, so it is computed for the tokens only
    that these bounds leave in question.
    """
    T = problem.attention.outputs
    lengths = np.sqrt(np.einsum("nv,nv->n", problem.values, problem.values))
    norms = np.sqrt(np.sum(T**2, axis=1))
    powers = problem.attention.sums_over_queries(np.stack([norms**0, norms, norms**2]), 2)
    middle, half = lengths**2 * powers[0] + powers[2], 2 * lengths * powers[1]
    slack = 1e-5 * (middle + half)  # of rounding
    low, high = np.maximum(middle - half - slack, 0.0), middle + half + slack
    low[problem.keep] = high[problem.keep] = np.inf
    if atoms == 0:
        return np.arange(0)
    index = np.flatnonzero(high >= np.partition(low, problem.n - atoms)[problem.n - atoms])
    score = np.empty(len(index))
    for start in range(0, len(index), _BLOCK):
        part = index[start : start + _BLOCK]
        p, values = problem.attention.weights(part) ** 2, problem.values[part]
        cross = np.einsum("nv,nv->n", values, p.T @ T.astype(p.dtype))
        squares = lengths[part] ** 2 * p.sum(axis=0) - 2 * cross + norms**2 @ p
        score[start : start + _BLOCK] = squares
    score[np.isin(index, problem.keep)] = np.inf
    return index[_highest(score, atoms)]


def _with_tail(
    problem: _Problem, index: np.ndarray, rank: int | None, literal: bool = False
) -> Compressed:
    """Atoms of these indices, and a Gaussian for the others (None: dropped)."""
    if rank is None or len(index) == problem.n:
        return problem.kept(index)
    keys, values, queries = problem.keys, problem.values, problem.queries.astype(np.float64)
    tilt = np.zeros(keys.shape[1]) if literal else queries.mean(axis=0)
    steps = queries - tilt
    scores = keys @ tilt.astype(keys.dtype) + problem.log_masses
    scores[index] = -np.inf
    top = float(scores.max())
    p = np.exp(scores - scores.max())
    total = float(p.sum(dtype=np.float64))
    log_mass = top + float(np.log(total))
    p /= p.dtype.type(total)
    mean_key, mean_value = p @ keys, p @ values
    key_cov, cross = _covariances(keys, values, p, mean_key)
    root, inverse = query_metric(steps, keys.shape[1])
    key_cov, cross = root.T @ key_cov @ root, root.T @ cross
    mean_key, mean_value = mean_key.astype(np.float64), mean_value.astype(np.float64)
    seen = _SeenTail.of(problem, index)
    if literal:
        factor = low_rank(key_cov, cross, seen.gap, rank, root, inverse)
        mean = np.concatenate([mean_key, mean_value])
        return problem.kept(index, problem.tail(tilt, log_mass, mean, factor))
    _, axes = np.linalg.eigh(cross @ cross.T + seen.gap * key_cov @ key_cov / 2)
    axes = axes[:, ::-1][:, :rank]
    directions, curvature, slopes = inverse @ axes, axes.T @ key_cov @ axes, cross.T @ axes
    # least squares over the queries, shrunk towards the expansion
    along = steps @ directions
    shift, turn = _shrunk(along, seen.value - mean_value - along @ slopes.T, seen.value_weight)
    square = np.einsum("qi,ij,qj->q", along, curvature, along) / 2
    scale = max(float(square.std()), 1e-300)
    features = np.column_stack([along, square / scale])
    gap = seen.log_mass - log_mass - steps @ mean_key - square
    lift, bend = _shrunk(features, gap[:, None], seen.mass_weight)
    bent = max(1 + float(bend[-1, 0]) / scale, _LOWEST_CURVATURE) if square.std() > 0 else 1.0
    mean_key = mean_key + directions @ bend[:-1, 0]
    factor = factor_of(curvature * bent, slopes + turn.T, directions)
    mean = np.concatenate([mean_key, mean_value + shift])
    return problem.kept(index, problem.tail(tilt, log_mass + float(lift[0]), mean, factor))


def _covariances(
    keys: np.ndarray, values: np.ndarray, p: np.ndarray, mean_key: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cov(k, k) and Cov(k, v) under the weights p, summed over blocks."""
    key_cov, cross = np.zeros((keys.shape[1],) * 2), np.zeros((keys.shape[1], values.shape[1]))
    space = np.empty_like(keys[:_BLOCK])
    for start in range(0, len(keys), _BLOCK):
        part = slice(start, start + _BLOCK)
        roots = np.sqrt(p[part])[:, None]
        gaps = np.subtract(keys[part], mean_key, out=space[: len(roots)])
        gaps *= roots
        key_cov += gaps.T @ gaps
        gaps *= roots  # these add up to 0: values need no centre
        cross += gaps.T @ values[part]
    return key_cov, cross


class _SeenTail(NamedTuple):
    """The tokens of the tail as the queries see them."""

    log_mass: np.ndarray  # (q,)
    value: np.ndarray  # (q, v) their own output
    value_weight: np.ndarray  # (q,) squared derivative of the output in `value`
    mass_weight: np.ndarray  # (q,) squared derivative of the output in `log_mass`
    gap: float

    @classmethod
    def of(cls, problem: _Problem, atoms: np.ndarray) -> "_SeenTail":
        """The tokens that are not atoms."""
        attention = problem.attention
        p = attention.weights(atoms).astype(np.float64)
        of_atoms = p @ problem.values[atoms]
        share = 1 - p.sum(axis=1)
        sums = attention.outputs - of_atoms
        log_normaliser = attention.log_normaliser
        few = share < _LITTLE  # the difference has no digits left
        if np.any(few):
            rest = np.delete(np.arange(problem.n), atoms)
            p = attention.restricted(np.flatnonzero(few)).all_weights()[:, rest]
            share[few] = np.maximum(p.sum(axis=1, dtype=np.float64), 1e-300)
            sums[few] = p @ problem.values[rest]
        value = sums / share[:, None]
        # the output less that of the tail: (1 - share) (output of the atoms - value)
        distance = np.sum((of_atoms + sums - value) ** 2, axis=1)
        weight, mass = share**2, share**2 * distance
        total = max(float(weight.sum()), 1e-300)
        return cls(log_normaliser + np.log(share), value, weight, mass, float(mass.sum()) / total)


def _shrunk(
    features: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Constant and slopes of a weighted ridge regression, few against many queries."""
    design = np.column_stack([np.ones(len(features)), features])
    weights = weights / max(float(weights.mean()), 1e-300)
    size = design.shape[1]
    gram = design.T @ (weights[:, None] * design) + _PRIOR * size * np.eye(size)
    found = np.linalg.solve(gram, design.T @ (weights[:, None] * targets))
    return found[0], found[1:]


def _most_attended(problem: _Problem, atoms: int) -> Compressed:
    """Tokens of the largest mean attention, as SnapKV and H2O choose them."""
    return problem.kept(_top(problem, _attention_mass(problem), atoms))


def _sinks_and_window(problem: _Problem, atoms: int) -> Compressed:
    """The first 4 tokens and the last ones, as StreamingLLM (Xiao et al. 2024)."""
    score = np.arange(problem.n, dtype=float)
    score[: min(_SINKS, atoms)] = problem.n
    return problem.kept(_top(problem, score, atoms))


def _expected_attention(problem: _Problem, atoms: int) -> Compressed:
    """Largest E[e^{<k, z>}] |v| for Gaussian queries (Expected Attention, arXiv 2510.00636)."""
    mean = problem.queries.mean(axis=0)
    steps = problem.queries - mean
    half = np.sum((problem.keys @ steps.T) ** 2, axis=1) / (2 * len(steps))
    lengths = np.linalg.norm(problem.values, axis=1)
    with np.errstate(divide="ignore"):
        score = problem.keys @ mean + half + problem.log_masses + np.log(lengths)
    return problem.kept(_top(problem, score, atoms))


def _centroids(problem: _Problem, atoms: int) -> Compressed:
    """Centroids of the keys by k-means from evenly spaced tokens, mean values, log counts.

    Tokens to keep are left out of the clusters.
    """
    keep, whole = problem.keep, problem
    rest = np.setdiff1d(np.arange(problem.n), keep)
    problem = problem._replace(
        keys=problem.keys[rest], values=problem.values[rest], log_masses=problem.log_masses[rest]
    )
    atoms -= len(keep)
    if not atoms:
        return whole.kept(keep)
    masses = np.exp(problem.log_masses - problem.log_masses.max())
    centres = problem.keys[np.linspace(0, problem.n - 1, atoms).astype(int)].copy()
    lengths = np.sum(problem.keys**2, axis=1)[:, None]
    nearest, counts = np.zeros(problem.n, int), np.ones(atoms)
    used = counts > 0
    for _ in range(_ROUNDS):
        squares = lengths - 2 * problem.keys @ centres.T + np.sum(centres**2, axis=1)
        before, nearest = nearest, np.argmin(squares, axis=1)
        counts = np.bincount(nearest, masses, minlength=atoms)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, masses[:, None] * problem.keys)
        used = counts > 0
        centres[used] = sums[used] / counts[used, None]
        empty = np.flatnonzero(~used)
        if len(empty):  # restart them at the tokens farthest from all centres
            farthest = np.argsort(-squares.min(axis=1), kind="stable")
            centres[empty] = problem.keys[farthest[: len(empty)]]
        elif np.array_equal(before, nearest):
            break
    values = np.zeros((atoms, problem.values.shape[1]))
    np.add.at(values, nearest, masses[:, None] * problem.values)
    logs = np.log(counts[used]) + problem.log_masses.max()
    return problem.measure(
        np.concatenate([whole.keys[keep], centres[used]]),
        np.concatenate([whole.values[keep], values[used] / counts[used, None]]),
        np.concatenate([whole.log_masses[keep], logs]),
    )


def _attention_matching(problem: _Problem, atoms: int) -> Compressed:
    """The most attended keys, log weights by non-negative least squares on the normalisers, values
    by least squares on the outputs (Attention Matching, arXiv 2602.16284).
    """
    from scipy.optimize import lsq_linear, nnls

    p = problem.attention.all_weights()
    index = _top(problem, p.mean(axis=0), atoms)
    part = p[:, index]
    try:
        factors, _ = nnls(part, np.ones(len(part)))
    except RuntimeError:  # active sets that go round in circles
        factors = lsq_linear(part, np.ones(len(part)), bounds=(0.0, np.inf)).x
    used = factors > 0
    used = used if np.any(used) else np.ones_like(used)
    index, factors = index[used], np.where(used, factors, 1.0)[used]
    terms = part[:, used] * factors
    terms /= terms.sum(axis=1, keepdims=True)
    # least squares around the values as they are, so that few queries do not move them far
    wanted = problem.attention.outputs - terms @ problem.values[index]
    gram = terms.T @ terms
    ridge = 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram))
    values = problem.values[index] + np.linalg.solve(gram + ridge, terms.T @ wanted)
    return problem.measure(problem.keys[index], values, problem.log_masses[index] + np.log(factors))


_METHODS: dict[str, Callable[[_Problem, int], Compressed]] = {
    "most attended": _most_attended,
    "sinks and window": _sinks_and_window,
    "expected attention": _expected_attention,
    "centroids": _centroids,
    "attention matching": _attention_matching,
}
