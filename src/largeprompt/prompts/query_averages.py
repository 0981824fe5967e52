"""Averages over prompts and over queries of a law, as functions of the prompt length.

Gaussian tokens: an integral over the variance of the scores. Tokens with finitely many atoms, and
mixtures of Gaussians and atoms: the Laplace integral, query by query, its sums over atoms computed
once for all lengths. Other tokens: the same for points that represent them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._lengths import length_array, longest_finite
from .._linalg import covariance_root
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..attention.softmax import inside_domain, queries_of
from ..measures import AbstractMeasure, Empirical, Gaussian
from ..participation import Along
from .gaussian_averages import Decomposition
from .gaussian_rule import Form, Symmetry, fitted_rule
from .gaussian_tokens import Bounded
from .pairs import flat_pairs
from .quadratic_form import Average
from .quantities import AbstractQuantity, sampled_only
from .quasi import Scrambling, needed, representative, scrambled
from .query_rules import averages
from .represented import Represented, represented_average
from .tails import HEAVY, tail_index
from .token_laws import token_law

_TOKENS = 2**10  # points that represent a law that is neither Gaussian nor discrete
_AT_A_QUERY = 2**12  # the same, where one query is asked for
_QUERIES = 2**5  # scrambled queries where the average is taken query by query
_MOST_QUERIES = 4096  # atoms or nodes of a law of queries that are all visited
_ROUNDING = 1e-13
_LEVELS = 5  # of ever finer rules over queries
_GOAL = 1e-10  # relative error at which they stop
_PROMISE_OF_POINTS = 1e-3  # the same where queries are replaced by points
_PROMISE = 1e-6  # relative error beyond which a value does not pass for exact


class Values(NamedTuple):
    """Values at the lengths asked for (on the first axis), their error, and d value / dL where it
    is known.
    """

    value: np.ndarray
    error: np.ndarray
    slope: np.ndarray | None = None


AlongLength = Callable[[np.ndarray], Values]


def average_over_queries(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    scrambling: Scrambling | None,
    longest: float,
) -> AlongLength:
    """The average over prompts and over queries of law nu, for lengths up to `longest`.

    Exact where it can be; where it cannot, `scrambling` provides random points, or, if None, an
    error is raised.
    """
    normal = mu.as_gaussian()
    if len(head.heads) > 1:
        return _over_points(quantity, head, mu, nu, scrambling)
    parts = None if normal is None else quantity.decomposition(head, normal)
    if parts is not None:
        return _over_variances(parts, nu, math.log(longest), scrambling)
    if normal is not None:
        raise sampled_only(quantity)
    return _query_by_query(quantity, head, mu, nu, scrambling, longest)


def check_dimensions(head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure) -> None:
    """Check that both laws are measures of the head's dimension."""
    for name, law, dim in (("mu", mu, head.dim), ("nu", nu, head.query_dim)):
        if not isinstance(law, AbstractMeasure):
            raise _checks.error(
                f"{name} must be a measure",
                type(law).__name__,
                "wrap one point as Dirac(z), several as Empirical(points)",
            )
        if law.dim != dim:
            raise _checks.error(
                f"{name} must have the dimension of the head, {dim}",
                f"a {type(law).__name__} of dimension {law.dim}",
                f"map it with {name}.affine(A), or change the head",
            )


def _over_variances(
    parts: Decomposition, nu: AbstractMeasure, log_length: float, scrambling: Scrambling | None
) -> AlongLength:
    """Gaussian tokens: sums over the law of the score variance, by rules refined until their own
    error is small.
    """
    mean = np.asarray(nu.mean(), np.float64)
    second = np.asarray(nu.cov(), np.float64) + np.outer(mean, mean)
    constant = parts.constant(mean, second)
    # the average of a linear feature may vanish: its error is relative to the feature's deviation
    linear = [
        0.0 if f.linear is None else math.sqrt(f.linear @ second @ f.linear) for f in parts.features
    ]
    natural = float(np.max(np.abs(parts.mix) @ np.array(linear)))

    def rules(level: int) -> list[Average]:
        return averages(nu, parts.factor, parts.features, log_length, scrambling, level)

    level: int = 0
    found: list[Average] = []

    def at(lengths: np.ndarray) -> tuple[Values, np.ndarray, np.ndarray]:
        if len(found) > 1:
            return _scrambled_sums(parts, found, lengths)
        along = parts.coefficients(found[0].variances, lengths)
        values, scale, fixed = _sums(parts, found[0], along)
        return values, np.maximum(scale, natural), fixed

    def evaluate(lengths: np.ndarray) -> Values:
        nonlocal level, found
        shape = (*lengths.shape, *parts.shape)
        rounding = _ROUNDING * np.abs(constant)
        if np.all(np.isinf(lengths)):
            value, error = (
                np.broadcast_to(a, (len(lengths), len(a))).reshape(shape)
                for a in (constant, rounding)
            )
            return Values(value, error)
        found = found or rules(level)
        values, scale, fixed = at(lengths)
        while (
            len(found) == 1
            and level + 1 < _LEVELS
            and not _within(_GOAL, values.error - fixed, scale)
        ):
            level += 1
            found = rules(level)
            values, scale, fixed = at(lengths)
        if len(found) == 1 and not _within(_PROMISE, values.error, scale):
            worst = np.max(values.error / np.where(scale > 0, scale, 1.0))
            raise _checks.error(
                f"averages over queries must be known to a relative error of {_PROMISE:g}",
                f"an error of {worst:.1e}, with queries of law {type(nu).__name__}",
                "pass method=lp.MonteCarlo(key), or scale the head down",
            )
        slope = None if values.slope is None else values.slope.reshape(shape)
        return Values(
            (values.value + constant).reshape(shape),
            (values.error + rounding).reshape(shape),
            slope,
        )

    return evaluate


def _within(relative: float, error: np.ndarray, scale: np.ndarray) -> bool:
    return bool(np.all(error <= relative * scale))


def _sums(
    parts: Decomposition, rule: Average, along: Along
) -> tuple[Values, np.ndarray, np.ndarray]:
    """The rule applied to the functions of (score variance, L) at its nodes, with its error, all of
    shape (lengths, entries), the scale to which relative errors refer, and the part of the error
    that comes from the functions, which a finer rule does not lower.
    """

    def over_nodes(weights: np.ndarray, functions: np.ndarray) -> np.ndarray:
        return np.einsum("fs,fsl->lf", weights, functions)

    mix, sizes = parts.mix.T, np.abs(parts.mix.T)
    weights, absolute = rule.weights, np.abs(rule.weights)
    total = over_nodes(weights, along.value) @ mix
    coarse = over_nodes(rule.coarse, along.value) @ mix
    per_feature = over_nodes(absolute, np.abs(along.value))
    size = per_feature @ sizes
    rounding = over_nodes(absolute, np.abs(along.value) * along.error) @ sizes
    # a squared error is its own scale; entries of a vector or a matrix may vanish
    scale = np.abs(total) if not parts.shape else size
    ratio = np.abs(coarse - total) / np.where(scale > 0, scale, 1.0)
    if rule.geometric:  # with half the nodes the relative error is the square root of ours
        ratio = np.where(ratio < 0.1, 4 * ratio**2, ratio)
    certified = (per_feature * (4 * np.broadcast_to(rule.gap, len(weights)) + _ROUNDING)) @ sizes
    slope = over_nodes(weights, along.slope) @ mix
    values = Values(total, scale * ratio + certified + rounding, slope)
    return values, np.max(scale, axis=1, keepdims=True), rounding


def _scrambled_sums(
    parts: Decomposition, rules: list[Average], lengths: np.ndarray
) -> tuple[Values, np.ndarray, np.ndarray]:
    """Means over scramblings, their standard error, the scale, and the error of the functions."""
    given = [parts.coefficients(rule.variances, lengths) for rule in rules]
    found = [_sums(parts, rule, along) for rule, along in zip(rules, given, strict=True)]
    value, error, slope = (
        np.stack(part) for part in zip(*(values for values, _, _ in found), strict=True)
    )
    terms = [_random_terms(parts, rule, along) for rule, along in zip(rules, given, strict=True)]
    _check_tail(np.concatenate(terms), lengths)
    deviation = value.std(axis=0, ddof=1) / math.sqrt(len(rules))
    values = Values(value.mean(axis=0), deviation + error.mean(axis=0), slope.mean(axis=0))
    return values, *found[0][1:]


def _random_terms(parts: Decomposition, rule: Average, along: Along) -> np.ndarray:
    """Sizes of the terms of the random points behind a rule, interpolated from its nodes, shape
    (points, lengths).
    """
    assert rule.points is not None
    (S, weighted), order = rule.points, np.argsort(rule.variances)
    nodes = rule.variances[order]
    terms = np.zeros((len(parts.mix), len(S), along.value.shape[-1]))
    for rows, weights, shares in zip(along.value, weighted, parts.mix.T, strict=True):
        columns = [np.interp(S, nodes, row[order]) for row in rows.T]
        terms += shares[:, None, None] * (weights[:, None] * np.stack(columns, axis=1))
    return np.linalg.norm(terms, axis=0)


def _check_tail(terms: np.ndarray, lengths: np.ndarray) -> None:
    """Raise where rare large queries, which the random points may lack, carry the average."""
    heavy = np.isfinite(lengths) & (tail_index(terms) > HEAVY)
    if heavy.any():
        shortest = float(lengths[heavy].min())
        raise _checks.error(
            "an average over random queries needs queries that represent its tail",
            f"errors with a tail index above {HEAVY} from L = {shortest:g} on: rare large "
            "queries carry the average there",
            "ask for shorter prompts, scale the head down, or pass Gaussian or bounded queries "
            "of few dimensions",
        )


class _Points(NamedTuple):
    """Queries that stand for their law, with weights that sum to one."""

    z: np.ndarray
    weights: np.ndarray


def _over_points(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    scrambling: Scrambling | None,
) -> AlongLength:
    """Several heads: averages over points that stand for the queries.

    The scores of several heads have no single variance to integrate over. Tokens are Gaussian, or
    atoms and Gaussians.
    """
    normal, atoms = mu.as_gaussian(), mu.atoms()
    if normal is None and token_law(mu) is None:
        raise sampled_only(quantity)
    even = normal is not None and not np.any(np.asarray(normal.centre))
    rules_for = _points_for(head, mu, nu, even, scrambling)

    def total(points: _Points, length: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The average, its numerical error, and the sizes of its terms."""
        where = (points.z, np.full(len(points.z), length))
        if normal is not None:
            found = quantity.gaussian(head, normal, *where)
        elif atoms is not None:
            found = quantity.discrete(head, atoms, *where)
        else:
            found = quantity.mixture(head, mu, *where)
        if found is None:
            raise sampled_only(quantity)
        value, error = (np.asarray(part) for part in found)
        shares = np.abs(points.weights)
        sizes = shares * np.linalg.norm(value.reshape(len(value), -1), axis=1)
        return np.tensordot(points.weights, value, 1), np.tensordot(shares, error, 1), sizes

    def at(length: float) -> tuple[np.ndarray, np.ndarray]:
        rules, coarse, gap = rules_for(length)
        found = [total(points, length) for points in rules]
        value = np.mean([v for v, *_ in found], axis=0)
        error = np.mean([e for _, e, _ in found], axis=0) + gap * np.max(np.abs(value))
        if len(found) > 1:
            terms = np.concatenate([sizes for *_, sizes in found])[:, None]
            _check_tail(terms, np.array([length]))
            error = error + np.std([v for v, *_ in found], axis=0, ddof=1) / math.sqrt(len(found))
        if coarse is not None:
            error = error + np.abs(total(coarse, length)[0] - value)
        worst = float(np.max(error)) / max(float(np.max(np.abs(value))), 1e-300)
        if scrambling is None and worst > _PROMISE_OF_POINTS:
            raise _not_known(nu, length, worst)
        return np.asarray(value), np.asarray(error)

    def evaluate(lengths: np.ndarray) -> Values:
        value, error = zip(*map(at, lengths), strict=True)
        return Values(np.stack(value), np.stack(error))

    return evaluate


def _not_known(nu: AbstractMeasure, length: float, error: float) -> ValueError:
    return _checks.error(
        "averages of several heads over queries must be known to a relative error of "
        f"{_PROMISE_OF_POINTS:g}",
        f"an error of {error:.1e} at L = {length:g}, with queries of law {type(nu).__name__} of "
        f"dimension {nu.dim}",
        "pass method=lp.MonteCarlo(key), or scale the heads down",
    )


def _points_for(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    even: bool,
    scrambling: Scrambling | None,
) -> Callable[[float], tuple[list[_Points], _Points | None, float]]:
    """For each length: points for the queries, fewer of them whose distance is an error (None:
    exact), and the relative error of the points on averages that are known.

    `even` functions of the query agree at z and -z.
    """

    def points_of(law: Empirical) -> _Points:
        weights = np.asarray(law.weights, np.float64)
        return _Points(np.asarray(law.points, np.float64), weights / weights.sum())

    atoms, normal = nu.atoms(), nu.as_gaussian()
    if atoms is not None and atoms.n <= _MOST_QUERIES:
        points = [points_of(atoms)]
        return lambda length: (points, None, 0.0)
    if normal is not None:
        mean, cov = (np.asarray(a, np.float64) for a in (normal.centre, normal.covariance))
        root = covariance_root(cov)
        root = root[:, np.linalg.norm(root, axis=0) > 1e-8 * np.linalg.norm(root)]
        symmetry: Symmetry = "even" if even and not np.any(mean) else "none"
        forms = _forms(head, mu, mean, root)

        def fitted(length: float) -> tuple[list[_Points], _Points, float]:
            log_length = math.log(length) if math.isfinite(length) else 0.0
            fine, coarse = (fitted_rule(forms, level, symmetry, log_length) for level in (2, 1))
            if not fine.gap <= _PROMISE_OF_POINTS:
                raise _not_known(nu, length, fine.gap)
            places = (_Points(mean + rule.points @ root.T, rule.weights) for rule in (fine, coarse))
            return [next(places)], next(places), fine.gap

        return fitted
    queries, fewer = nu.quadrature(), nu.quadrature(-1)
    if queries is not None and fewer is not None and queries.n <= _MOST_QUERIES:
        points, less = [points_of(queries)], points_of(fewer)
        return lambda length: (points, less, 0.0)
    points = [points_of(law) for law in scrambled(nu, scrambling, _QUERIES, "queries")]
    return lambda length: (points, None, 0.0)


def _forms(
    head: AbstractHead, mu: AbstractMeasure, mean: np.ndarray, root: np.ndarray
) -> list[Form]:
    """Variances of the scores of every head at the query mean + root xi, and of half the sum and
    half the difference of the scores of every two.
    """
    through = covariance_root(np.asarray(mu.cov(), np.float64)).T
    factors = [through @ np.asarray(one.U, np.float64) for one in head.heads]
    for a, b in itertools.combinations(factors[: len(head.heads)], 2):
        factors += [(a + b) / 2, (a - b) / 2]
    return [Form.of_square(factor @ root, factor @ mean) for factor in factors]


class _Pairing(NamedTuple):
    """Queries, and the laws of the tokens: one law, or points that represent it at each query."""

    queries: Empirical
    laws: Sequence[AbstractMeasure]
    representatives: list[Empirical]  # none where the laws are exact


class _Pairings(NamedTuple):
    """Independent pairings, a coarser one whose distance is an error (None: not needed), and
    whether the queries are random.
    """

    all: list[_Pairing]
    coarse: _Pairing | None
    random: bool


def _query_by_query(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    scrambling: Scrambling | None,
    longest: float,
) -> AlongLength:
    pairings = _tokens_and_queries(head, mu, nu, scrambling)
    if quantity.refers_to_limit:
        for pairing in pairings.all:
            inside_domain(head, mu, pairing.queries.points)
    every = [_terms(quantity, head, mu, pairing, longest) for pairing in pairings.all]
    coarse = pairings.coarse and _terms(quantity, head, mu, pairings.coarse, longest)

    def evaluate(lengths: np.ndarray) -> Values:
        found = [terms(lengths) for terms in every]
        totals = [terms.value.sum(axis=0) for terms in found]
        value = np.mean(totals, axis=0)
        error = np.mean([terms.numerical + terms.from_gap for terms in found], axis=0)
        error += np.abs(np.mean([terms.missed for terms in found], axis=0))
        if len(found) > 1:
            error += np.std(totals, axis=0, ddof=1) / math.sqrt(len(found))
        if coarse is not None:
            error += np.abs(coarse(lengths).value.sum(axis=0) - value)
        if pairings.random:
            terms = np.concatenate([terms.value for terms in found])
            sizes = np.linalg.norm(terms.reshape((*terms.shape[:2], -1)), axis=-1)
            _check_tail(sizes, lengths)
        return Values(value, error)

    return evaluate


class _Terms(NamedTuple):
    """The terms of an average over queries, (queries, lengths, ...), the numerical error of their
    sum, what points that represent the tokens miss of it (signed), and the error from their limit.
    """

    value: np.ndarray
    numerical: np.ndarray
    missed: np.ndarray
    from_gap: np.ndarray


def _terms(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    pairing: _Pairing,
    longest: float,
) -> Callable[[np.ndarray], _Terms]:
    """The terms of the average over queries as a function of lengths."""
    z = np.asarray(pairing.queries.points, np.float64)
    weights = np.asarray(pairing.queries.weights, np.float64)
    weights = weights / weights.sum()
    points = pairing.representatives
    if points:
        average = represented_average(quantity, head, mu, points, z, longest)
    else:
        average = _exactly(quantity.along_length(head, mu, pairing.laws, z, longest))

    def terms(lengths: np.ndarray) -> _Terms:
        found = average(lengths)
        value = weights.reshape(-1, *[1] * (found.value.ndim - 1)) * found.value
        return _Terms(value, *(np.tensordot(weights, part, axes=1) for part in found[1:]))

    return terms


def _exactly(average: Callable[[np.ndarray], Bounded]) -> Callable[[np.ndarray], Represented]:
    """An average for tokens that need no points."""

    def exactly(lengths: np.ndarray) -> Represented:
        value, error = map(np.asarray, average(lengths))
        return Represented(value, error, np.zeros_like(value), np.zeros_like(value))

    return exactly


def _tokens_and_queries(
    head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure, scrambling: Scrambling | None
) -> _Pairings:
    """Tokens and queries as points: one pairing where both are exact, otherwise independent
    representatives.
    """
    tokens = mu.atoms()
    if tokens is None and token_law(mu) is not None:
        tokens = mu
    queries, coarse = nu.atoms(), None
    if queries is None or queries.n > _MOST_QUERIES:
        queries, coarse = nu.quadrature(), nu.quadrature(-1)
        few = _MOST_QUERIES if tokens is not None else _QUERIES * 8
        if queries is not None and queries.n > few:
            queries = coarse = None
    if tokens is None:
        needed(scrambling, mu, "tokens")
    for_tokens, for_queries = (None, None) if scrambling is None else scrambling.two()
    random = queries is None
    those = [queries] if queries is not None else _random_queries(nu, for_queries)
    if tokens is not None:
        return _Pairings(
            [_Pairing(points, [tokens], []) for points in those],
            None if coarse is None else _Pairing(coarse, [tokens], []),
            random,
        )
    assert for_tokens is not None  # checked above
    single = queries is not None and queries.n == 1
    exponent = for_tokens.exponent(_AT_A_QUERY if single else _TOKENS)
    keys = for_tokens.keys()

    def represented(points: Empirical, key: jax.Array) -> _Pairing:
        tilts = np.asarray(points.points @ head.U.T)
        laws = [representative(key, mu, exponent, tilt) for tilt in tilts]
        return _Pairing(points, laws, laws)

    those = those * len(keys) if len(those) == 1 else those
    return _Pairings(
        [represented(points, k) for points, k in zip(those, keys, strict=True)],
        None if coarse is None else represented(coarse, keys[0]),
        random,
    )


def _random_queries(nu: AbstractMeasure, scrambling: Scrambling | None) -> list[Empirical]:
    """Scrambled queries; of a Gaussian law, half of them twice as wide, since rare large queries
    may carry the average.
    """
    normal = nu.as_gaussian()
    if normal is None:
        return scrambled(nu, scrambling, _QUERIES, "queries")
    pair = needed(scrambling, nu, "queries").two()
    laws = (normal, Gaussian(normal.centre, 4 * normal.covariance, check=False))
    halves = [
        scrambled(law, part, _QUERIES // 2, "queries") for law, part in zip(laws, pair, strict=True)
    ]
    inverse = jnp.linalg.pinv(normal.covariance, hermitian=True)
    rank = int(jnp.linalg.matrix_rank(normal.covariance))

    def weighted(points: jax.Array) -> Empirical:
        centred = points - normal.centre
        square = jnp.sum((centred @ inverse) * centred, axis=-1)
        # densities of both laws relative to nu's
        wide = jnp.exp(3 / 8 * square - rank * math.log(2))
        return Empirical(points, 1 / (1 + wide))

    return [weighted(jnp.concatenate([a.points, b.points])) for a, b in zip(*halves, strict=True)]


def represented_at(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput,
    L: ArrayInput,
    scrambling: Scrambling,
) -> tuple[np.ndarray, np.ndarray]:
    """(value, error) at given queries, for tokens represented by scrambled points.

    The error is the standard error over scramblings, plus what the points miss of the tail.
    """
    if len(head.heads) > 1:
        raise sampled_only(quantity)
    queries, batch = queries_of(head, mu, z)
    if quantity.refers_to_limit:
        inside_domain(head, mu, queries)
    lengths = np.asarray(length_array(L))
    shape, which, wanted = flat_pairs(batch, lengths)
    keys, exponent = scrambling.keys(), scrambling.exponent(_AT_A_QUERY)
    value: list[np.ndarray] = [np.empty(0)] * wanted.size
    error = list(value)
    for i, query in enumerate(np.asarray(queries)):
        at = np.flatnonzero(which == i)
        tilt = np.asarray(head.U) @ query
        longest = longest_finite(wanted)
        found = []
        for key in keys:
            points = [representative(key, mu, exponent, tilt)]
            found.append(represented_average(quantity, head, mu, points, query[None], longest))
        each = [average(wanted[at]) for average in found]
        values = np.stack([one.value[0] for one in each])
        deviation = values.std(axis=0, ddof=1) / math.sqrt(len(keys))
        lost = np.abs(np.mean([one.missed[0] for one in each], axis=0))
        lost += np.mean([one.from_gap[0] + one.error[0] for one in each], axis=0)
        for j, v, e in zip(at, values.mean(axis=0), deviation + lost, strict=True):
            value[j], error[j] = v, e
    entries = value[0].shape
    return np.stack(value).reshape((*shape, *entries)), np.stack(error).reshape((*shape, *entries))
