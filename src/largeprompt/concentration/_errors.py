"""Errors averaged over queries, as functions of the prompt length: the one place that chooses the route."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._typing import KeyInput
from ..attention import Head
from ..attention.softmax import inside_domain
from ..measures import AbstractMeasure, Dirac, Empirical, Gaussian
from ..measures.transforms import without_spread
from ..participation import Along
from ..prompts.discrete_tokens import error_table
from ..prompts.quasi import representative, tail_of
from ..prompts.tails import HEAVY, tail_index
from ._quadratic_form import Average
from ._quantities import Decomposition, Quantity, decompose
from ._queries import (
    REPLICATES,
    averages,
    finite_support,
    quadrature,
    replicate_keys,
    scrambled,
    two_keys,
)

_TOKENS = 10  # 2^10 quasi-random tokens represent a law that is neither Gaussian nor discrete
_QUERIES = 5  # 2^5 quasi-random queries, each time, where the error depends on all of the query
_MOST_QUERIES = 4096  # points of a discrete law that are all visited
_ROUNDING = 1e-13
_POINTWISE = 1e-9  # accuracy of the Laplace integral over atoms
_LEVELS = 5  # of ever finer rules over queries
_GOAL = 1e-10  # relative error at which they stop
_PROMISE = 1e-6  # relative error beyond which a value does not pass for exact


class Values(NamedTuple):
    """Values at the lengths asked for, their error, and d value / dL where the route gives it."""

    value: np.ndarray
    error: np.ndarray
    slope: np.ndarray | None


class Route(NamedTuple):
    """How the values come about, in words, and the function that gives them."""

    name: str
    evaluate: Callable[[np.ndarray], Values]


def average_error(
    head: Head,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    quantity: Quantity,
    longest: float,
    key: KeyInput | None,
) -> Route:
    """The squared error of `quantity`, averaged over prompts and over queries of law nu, for lengths up to `longest`."""
    check_dimensions(head, mu, nu)
    if isinstance(mu, Dirac):
        mu = without_spread(mu)
    if isinstance(mu, Gaussian):
        return _over_variances(decompose(head, mu, quantity), nu, math.log(longest), key)
    return _pointwise(head, mu, nu, quantity, longest, key)


def check_dimensions(head: Head, mu: AbstractMeasure, nu: AbstractMeasure) -> None:
    """Check that both laws are measures of the head's dimension."""
    for name, law in (("mu", mu), ("nu", nu)):
        if not isinstance(law, AbstractMeasure):
            raise ValueError(
                _checks.message(
                    f"{name} must be a measure",
                    type(law).__name__,
                    "wrap one point as Dirac(z), several as Empirical(points)",
                )
            )
        if law.dim != head.dim:
            raise ValueError(
                _checks.message(
                    f"{name} must have the dimension of the head, {head.dim}",
                    f"a {type(law).__name__} of dimension {law.dim}",
                    f"map it with {name}.affine(A), or change the head",
                )
            )


def _over_variances(
    parts: Decomposition, nu: AbstractMeasure, log_length: float, key: KeyInput | None
) -> Route:
    """Gaussian tokens: sums over the law of the score variance, by rules refined until their own
    error is small.
    """

    def rules(level: int) -> list[Average]:
        return averages(nu, parts.factor, parts.features, log_length, key, level)

    level, found = 0, rules(0)
    while level + 1 < _LEVELS and max(rule.gap for rule in found) > _GOAL:
        level += 1
        found = rules(level)
    if len(found) > 1:
        name = "exact in L, quasi-random queries"
        return Route(name, lambda lengths: _scrambled_sums(parts, found, lengths))

    def at(rule: Average, lengths: np.ndarray) -> Values:
        return _sums(rule, parts.coefficients(rule.variances, lengths))

    def evaluate(lengths: np.ndarray) -> Values:
        nonlocal level, found
        values = at(found[0], lengths)
        while level + 1 < _LEVELS and not _within(_GOAL, values):
            level += 1
            found = rules(level)
            values = at(found[0], lengths)
        if not _within(_PROMISE, values):
            worst = np.max(values.error[values.value > 0] / values.value[values.value > 0])
            raise ValueError(
                _checks.message(
                    f"averages over queries must be known to a relative error of {_PROMISE:g}",
                    f"an error of {worst:.1e}, with queries of law {type(nu).__name__}",
                    "use method='montecarlo', or scale the head down",
                )
            )
        return values

    return Route("exact", evaluate)


def _within(relative: float, values: Values) -> bool:
    return bool(np.all(values.error <= relative * np.abs(values.value)))


def _sums(rule: Average, along: Along) -> Values:
    """The rule applied to the functions of (score variance, L), given at its nodes, with its error."""
    total = np.einsum("fs,fsl->l", rule.weights, along.value)
    coarse = np.einsum("fs,fsl->l", rule.coarse, along.value)
    size = np.einsum("fs,fsl->l", np.abs(rule.weights), np.abs(along.value))
    rounding = np.einsum("fs,fsl->l", np.abs(rule.weights), np.abs(along.value) * along.error)
    ratio = np.abs(coarse - total) / np.where(total > 0, total, 1.0)
    if rule.geometric:  # with half the nodes the relative error is the square root of ours
        ratio = np.where(ratio < 0.1, 4 * ratio**2, ratio)
    error = np.abs(total) * ratio + size * (4 * rule.gap + _ROUNDING) + rounding
    return Values(total, error, np.einsum("fs,fsl->l", rule.weights, along.slope))


def _scrambled_sums(parts: Decomposition, rules: list[Average], lengths: np.ndarray) -> Values:
    """Means over scramblings, and their standard error."""
    given = [parts.coefficients(rule.variances, lengths) for rule in rules]
    found = [_sums(rule, along) for rule, along in zip(rules, given, strict=True)]
    value, error, slope = (np.stack(part) for part in zip(*found, strict=True))
    terms = [_random_terms(rule, along) for rule, along in zip(rules, given, strict=True)]
    _check_tail(np.concatenate(terms), lengths)
    spread = value.std(axis=0, ddof=1) / math.sqrt(len(rules))
    return Values(value.mean(axis=0), spread + error.mean(axis=0), slope.mean(axis=0))


def _random_terms(rule: Average, along: Along) -> np.ndarray:
    """The terms of the random points behind a rule, interpolated from its nodes, shape (points, lengths)."""
    assert rule.points is not None
    (S, weighted), order = rule.points, np.argsort(rule.variances)
    nodes, terms = rule.variances[order], np.zeros((len(rule.points[0]), along.value.shape[-1]))
    for rows, weights in zip(along.value, weighted, strict=True):
        columns = [np.interp(S, nodes, row[order]) for row in rows.T]
        terms += weights[:, None] * np.stack(columns, axis=1)
    return terms


def _check_tail(terms: np.ndarray, lengths: np.ndarray) -> None:
    """Refuse an average over random queries that is carried by queries too rare to be among them."""
    heavy = np.isfinite(lengths) & (tail_index(terms) > HEAVY)
    if heavy.any():
        shortest = float(lengths[heavy].min())
        raise ValueError(
            _checks.message(
                "an average over random queries needs queries that represent its tail",
                f"errors with a tail index above {HEAVY} from L = {shortest:g} on: rare large queries carry the average there",
                "ask for shorter prompts, scale the head down, or pass Gaussian or bounded queries of few dimensions",
            )
        )


class Pairing(NamedTuple):
    """Queries, and the law of the tokens: itself, or a list of laws that represent it at each of
    the queries.
    """

    queries: Empirical
    tokens: Gaussian | Empirical | list[Empirical]


class Pairings(NamedTuple):
    """Independent pairings, a coarser one whose distance is an error (None: none is needed), and
    the route in words.
    """

    all: list[Pairing]
    coarse: Pairing | None
    words: str


def _pointwise(
    head: Head,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    quantity: Quantity,
    longest: float,
    key: KeyInput | None,
) -> Route:
    """Other tokens: the Laplace integral over atoms, query by query; sums over atoms are computed
    once for all lengths.
    """
    pairings = tokens_and_queries(head, mu, nu, key)
    for pairing in pairings.all:
        inside_domain(head, mu, pairing.queries.points)
    all_terms = [_terms(head, mu, pairing, quantity, longest) for pairing in pairings.all]
    coarse = pairings.coarse and _terms(head, mu, pairings.coarse, quantity, longest)
    random = finite_support(nu) is None and coarse is None

    def evaluate(lengths: np.ndarray) -> Values:
        found = [terms(lengths) for terms in all_terms]
        values = summary([terms.sum(axis=0) for terms, _ in found])
        error = values.error + np.abs(np.mean([missed for _, missed in found], axis=0))
        if coarse is not None:
            error += np.abs(coarse(lengths)[0].sum(axis=0) - values.value)
        if random:
            _check_tail(np.concatenate([terms for terms, _ in found]), lengths)
        return values._replace(error=error)

    return Route(pairings.words, evaluate)


def _terms(
    head: Head, mu: AbstractMeasure, pairing: Pairing, quantity: Quantity, longest: float
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The function of lengths that gives the terms of the average over queries, (queries,
    lengths), and what is missing from their sum.
    """
    z, order = np.asarray(pairing.queries.points), 2 if quantity == "gradient_U" else 1
    weights = np.asarray(pairing.queries.weights, np.float64)
    weights = weights / weights.sum()
    tokens = pairing.tokens
    assert not isinstance(tokens, Gaussian)  # they have a route of their own
    table = error_table(head, tokens, z, quantity, longest=longest)
    tilts = z @ np.asarray(head.U).T
    laws = tokens if isinstance(tokens, list) else []
    tails = [tail_of(mu, law, tilt) for law, tilt in zip(laws, tilts, strict=False)]

    def terms(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = table.at(np.append(lengths, 1.0)).value
        values, one_token = values[:, :-1], values[:, -1]
        missed = [
            tail.missed(value, np.asarray(one), lengths, order)
            for tail, value, one in zip(tails, values, one_token, strict=False)
        ]
        return weights[:, None] * values, weights @ missed if missed else np.zeros(len(lengths))

    return terms


def tokens_and_queries(
    head: Head, mu: AbstractMeasure, nu: AbstractMeasure, key: KeyInput | None
) -> Pairings:
    """Tokens and queries as points: one pairing where both are exact, otherwise independent
    representatives.
    """
    tokens = mu if isinstance(mu, Gaussian) else finite_support(mu)
    queries, coarse = finite_support(nu), None
    if queries is None or queries.n > _MOST_QUERIES:
        queries, coarse = quadrature(nu), quadrature(nu, -1)
        if queries is not None and queries.n > 2**_QUERIES * REPLICATES:
            queries = coarse = None
    words = "exact" if tokens is not None else "exact in L, quasi-random tokens"
    if queries is None:
        words += ", quasi-random queries"
    for_tokens, for_queries = two_keys(key)
    those = [queries] if queries is not None else _random_queries(nu, for_queries)
    if tokens is not None:
        return Pairings(
            [Pairing(points, tokens) for points in those],
            None if coarse is None else Pairing(coarse, tokens),
            words,
        )
    keys = replicate_keys(mu, for_tokens)
    those = those * REPLICATES if len(those) == 1 else those
    return Pairings(
        [
            Pairing(points, _represented_at(head, mu, points, k))
            for points, k in zip(those, keys, strict=True)
        ],
        None if coarse is None else Pairing(coarse, _represented_at(head, mu, coarse, keys[0])),
        words,
    )


def _represented_at(
    head: Head, mu: AbstractMeasure, queries: Empirical, key: KeyInput
) -> list[Empirical]:
    """Tokens that represent mu as each of the queries sees it."""
    tilts = np.asarray(queries.points @ head.U.T)
    return [representative(key, mu, _TOKENS, tilt) for tilt in tilts]


def _random_queries(nu: AbstractMeasure, key: KeyInput | None) -> list[Empirical]:
    """Scrambled queries; of a Gaussian law, half of them twice as wide, since rare large queries
    may carry the average.
    """
    if not isinstance(nu, Gaussian):
        return scrambled(nu, key, _QUERIES)
    laws = (nu, Gaussian(nu.centre, 4 * nu.covariance, check=False))
    halves = [scrambled(law, k, _QUERIES - 1) for law, k in zip(laws, two_keys(key), strict=True)]
    inverse = jnp.linalg.pinv(nu.covariance, hermitian=True)
    rank = int(jnp.linalg.matrix_rank(nu.covariance))

    def weighted(points: jax.Array) -> Empirical:
        centred = points - nu.centre
        square = jnp.sum((centred @ inverse) * centred, axis=-1)
        # densities of both laws relative to nu's
        wide = jnp.exp(3 / 8 * square - rank * math.log(2))
        return Empirical(points, 1 / (1 + wide))

    return [weighted(jnp.concatenate([a.points, b.points])) for a, b in zip(*halves, strict=True)]


def average_over(pairings: Pairings, function: Callable, head: Head, lengths: np.ndarray) -> Values:
    """The function of (head, law, z, L), averaged over queries, with its error; values of shape
    (lengths, ...).
    """
    found = summary([_average(pairing, function, head, lengths) for pairing in pairings.all])
    if pairings.coarse is None:
        return found
    gap = np.abs(_average(pairings.coarse, function, head, lengths) - found.value)
    return found._replace(error=found.error + gap)


def _average(pairing: Pairing, function: Callable, head: Head, lengths: np.ndarray) -> np.ndarray:
    weights, z = np.asarray(pairing.queries.weights, np.float64), pairing.queries.points
    if isinstance(pairing.tokens, list):
        each = zip(pairing.tokens, z, strict=True)
        values = np.stack([np.asarray(function(head, law, query, lengths)) for law, query in each])
    else:
        values = np.asarray(function(head, pairing.tokens, z[:, None, :], lengths[None, :]))
    return np.tensordot(weights / weights.sum(), values, axes=1)


def summary(values: list[np.ndarray]) -> Values:
    """Mean over representatives, and its standard error; one exact value has the error of its integral."""
    mean = np.mean(values, axis=0)
    error = _POINTWISE * np.abs(mean)
    if len(values) > 1:
        error = error + np.std(values, axis=0, ddof=1) / math.sqrt(len(values))
    return Values(mean, error, None)
