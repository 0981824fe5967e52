"""`compress`: a small measure in place of a long prompt, by several methods at equal interface."""

from typing import Literal

import jax
import numpy as np

from .. import _checks
from .._float64 import not_traced
from .._typing import ArrayInput, KeyInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from .atoms import chosen, spread
from .compressed import Compressed, CompressionError
from .compression_problem import LONG, Problem, problem_of, split_queries
from .correction import value_changes
from .draft import Draft, outputs_and_weights
from .gaussian_tail import Tail
from .sibling_methods import SUBSETS, moments, random_tokens
from .tail_fit import with_tail

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
Choose = Literal["leverage", "attention mass"]

_TAILED = ("gaussian tail", "moments")  # methods that have a tail
_RANKS = (None, 0, 1, 2, 4, 8, 16, 32)  # tails that `size` chooses from


@_checks.accepts(prompt=object)  # `problem_of` has the fix
@not_traced
def compress(
    prompt: AbstractMeasure,
    queries: ArrayInput,
    *,
    atoms: int | None = None,
    rank: int | Literal["auto"] | None = "auto",
    size: int | None = None,
    keep: ArrayInput = (),
    method: Method = "gaussian tail",
    choose: Choose = "leverage",
    head: AbstractHead | None = None,
    key: KeyInput | None = None,
) -> Compressed:
    """A small measure that `attend` serves in place of a prompt of keys and values.

    By default it has the most important tokens as atoms and one scaled Gaussian for all others:
    the second-order expansion of their cumulant function at the mean query, corrected by least
    squares over the queries, with a covariance of low rank in the metric of the queries. Atoms have
    their keys; their values move by ridge regression, if that helps queries that it did not see.

    **Arguments:** `prompt`, keys and values; `queries` of shape (q, d_k), which the result should
    serve, in the order of time if they have one. If there are at least 64, every fourth one only
    measures the error; for fewer no error is stated. Sizes: `atoms` kept tokens, those of the
    indices `keep` among them (sinks, a window), and `rank` of the Gaussian (0 by default; None: no
    Gaussian, values as they are); or `size` in bytes, split between both by the error on the last
    third of the queries. `choose` ranks tokens by "leverage", $E[p_i^2 |v_i - T|^2]$, or by
    "attention mass", $E[p_i]$. `head` is a `Head.key_value` with another scale than 1. `key` is for
    method="random".

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
    >>> small.error
    0.019 +- 0.005 on 16 queries held out
    """
    problem = problem_of(prompt, queries, keep, head)
    if (size is None) == (atoms is None):
        raise _checks.error(
            "compress needs either atoms or size",
            f"atoms={atoms}, size={size}",
            "pass atoms=n, rank=r, or size= in bytes",
        )
    automatic = isinstance(rank, str) and rank == "auto"
    if size is not None and not automatic:
        raise _checks.error(
            "rank must be left out with size, which chooses it",
            f"rank={rank!r}, size={size!r}",
            "pass atoms=n, rank=r, or size= alone",
        )
    rank = 0 if automatic else rank
    seen, held_out = split_queries(len(problem.queries))
    fitting = problem.restricted(seen)
    if size is not None:
        atoms, rank = _sizes(fitting, _checks.count("size", size), method, choose, key)
    atoms = _checks.count("atoms", atoms, least=0)
    if atoms >= problem.n:
        found = problem.kept(np.arange(problem.n))
    else:
        rank = rank if method in _TAILED else None
        rank = _checked_rank(fitting, atoms, rank)
        found = _by_method(fitting, atoms, rank, method, choose, key, final=True)
    keys, values, logs, tail = jax.device_put(found)  # all arrays move at once
    error = CompressionError.of(*problem.errors(found, held_out)) if len(held_out) else None
    return Compressed(keys, values, logs, None if tail is None else Tail(*tail), error)


def _checked_rank(problem: Problem, atoms: int, rank: int | str | None) -> int | None:
    rank = None if rank is None else _checks.count("rank", rank, least=0)
    if rank is not None and rank > min(len(problem.queries), problem.keys.shape[1]):
        raise _checks.error(
            "rank must be at most the dimension of the keys and the number of queries that are "
            "not held out",
            f"rank {rank} for keys of dimension {problem.keys.shape[1]} and "
            f"{len(problem.queries)} queries",
            "pass more queries or a lower rank",
        )
    if atoms < len(problem.keep) or (atoms == 0 and rank is None):
        raise _checks.error(
            "atoms must be at least the number of tokens to keep, and 1 without a tail",
            f"atoms={atoms}, {len(problem.keep)} tokens to keep, rank={rank}",
            "raise atoms, or give rank=0 for a method with a tail",
        )
    return rank


def _sizes(
    problem: Problem, size: int, method: str, choose: str, key: KeyInput | None
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
    for rank in _RANKS if method in _TAILED else (None,):
        if rank is not None and rank > min(k, 2 * len(problem.queries) // 3):
            continue
        cost = 0 if rank is None else (rank + 1) * d + k + 1
        atoms = (budget - cost) // token
        if atoms >= (least if rank is None else len(problem.keep)):
            options.append((min(int(atoms), problem.n), rank))
    if not options:
        raise _checks.error(
            f"size must be at least {least * token * problem.dtype.itemsize} bytes, that of "
            f"{least} tokens",
            f"{size} bytes",
            "raise size, or keep fewer tokens",
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
        problem.errors(_by_method(inner, *option, method, choose, key), judge)[0].mean()
        for option in options
    ]
    return options[int(np.argmin(errors))]


def _by_method(
    problem: Problem,
    atoms: int,
    rank: int | None,
    method: str,
    choose: str,
    key: KeyInput | None,
    final: bool = False,
) -> Draft:
    """A measure of this size; a `final` one also serves queries between, with corrected values."""
    if method == "gaussian tail":
        between = final and problem.n <= LONG  # long prompts: attention of more queries costs most
        wider = problem.with_queries(spread(problem.queries)) if between else problem
        found = with_tail(wider, chosen(wider, atoms, choose), rank)
        return _corrected(problem, found) if final else found
    if method == "moments":
        return moments(problem, atoms, rank)
    if method == "random":
        return random_tokens(problem, atoms, key)
    return SUBSETS[method](problem, atoms)


def _corrected(problem: Problem, found: Draft) -> Draft:
    """The measure with values of the atoms that repair its error at the queries."""
    if found.tail is None:
        return found
    got, p = outputs_and_weights(found, problem.queries.astype(np.float64))
    changes = value_changes(p, problem.attention.outputs - got)
    if changes is None:
        return found
    return found._replace(values=(found.values + changes).astype(problem.dtype))
