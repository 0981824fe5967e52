"""Errors averaged over queries, as functions of the prompt length: the one place that chooses the route."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._typing import KeyInput
from ..attention import Head
from ..measures import AbstractMeasure, Dirac, Empirical, Gaussian
from ..measures.transforms import without_spread
from ..prompts.moments import gradient_error, output_error
from ._quadratic_form import Average
from ._quantities import Decomposition, Quantity, decompose
from ._queries import REPLICATES, averages, few_points, finite_support, scrambled, two_keys

_TOKENS = 10  # 2^10 quasi-random tokens represent a law that is neither Gaussian nor discrete
_QUERIES = 5  # 2^5 quasi-random queries, each time, where the error depends on all of the query
_MOST_QUERIES = 4096  # points of a discrete law that are all visited
_ROUNDING = 1e-13
_POINTWISE = 1e-9  # accuracy of the Laplace integral over atoms


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
        parts = decompose(head, mu, quantity)
        rules = averages(nu, parts.M, parts.features, math.log(longest), key)
        exact = "exact" if len(rules) == 1 else "exact in L, quasi-random queries"
        return Route(exact, lambda lengths: _reduced(parts, rules, lengths))
    return _pointwise(head, mu, nu, quantity, key)


def check_dimensions(head: Head, mu: AbstractMeasure, nu: AbstractMeasure) -> None:
    """Refuse laws that are not measures, or not of the head's dimension."""
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


def _reduced(parts: Decomposition, rules: list[Average], lengths: np.ndarray) -> Values:
    """Gaussian tokens: sums over the law of the score variance."""
    value, slope, error = [], [], []
    for rule in rules:
        along = parts.coefficients(rule.variances, lengths)
        total = np.einsum("fs,fsl->l", rule.weights, along.value)
        half = np.einsum("fs,fsl->l", rule.coarse, along.value)
        rounding = np.einsum("fs,fsl->l", np.abs(rule.weights), np.abs(along.value) * along.error)
        value.append(total)
        slope.append(np.einsum("fs,fsl->l", rule.weights, along.slope))
        # convergence is geometric: with half the nodes the relative error is the square root of ours
        ratio = np.abs(half - total) / np.where(total > 0, total, 1.0)
        error.append(total * (4 * np.minimum(ratio, 1.0) ** 2 + _ROUNDING) + rounding)
    if len(rules) == 1:
        return Values(value[0], error[0], slope[0])
    spread = np.std(value, axis=0, ddof=1) / math.sqrt(len(rules))
    return Values(np.mean(value, axis=0), spread + np.mean(error, axis=0), np.mean(slope, axis=0))


_EXACT = {
    "output": output_error,
    "gradient_U": lambda *args: gradient_error(*args).U,
    "gradient_V": lambda *args: gradient_error(*args).V,
}


def _pointwise(
    head: Head, mu: AbstractMeasure, nu: AbstractMeasure, quantity: Quantity, key: KeyInput | None
) -> Route:
    """Other tokens: the Laplace integral over atoms, query by query."""
    pairs, name = tokens_and_queries(mu, nu, key)

    def evaluate(lengths: np.ndarray) -> Values:
        values = [average_over(z, _EXACT[quantity], head, law, lengths) for law, z in pairs]
        return summary(values)

    return Route(name, evaluate)


def tokens_and_queries(
    mu: AbstractMeasure, nu: AbstractMeasure, key: KeyInput | None
) -> tuple[list[tuple[Gaussian | Empirical, Empirical]], str]:
    """Pairs (law of the tokens, points of the query): one pair where both are exact, otherwise independent representatives."""
    tokens = mu if isinstance(mu, Gaussian) else finite_support(mu)
    queries = finite_support(nu)
    if queries is None or queries.n > _MOST_QUERIES:
        queries = few_points(nu)
        queries = queries if queries is not None and queries.n <= 2**_QUERIES * REPLICATES else None
    words = "exact" if tokens is not None else "exact in L, quasi-random tokens"
    if queries is None:
        words += ", quasi-random queries"
    for_tokens, for_queries = two_keys(key)
    those = [queries] if queries is not None else scrambled(nu, for_queries, _QUERIES)
    many = [tokens] * len(those) if tokens is not None else scrambled(mu, for_tokens, _TOKENS)
    those = those * len(many) if len(those) == 1 else those
    return list(zip(many, those, strict=True)), words


def average_over(
    queries: Empirical, function: Callable, head: Head, law: AbstractMeasure, lengths: np.ndarray
) -> np.ndarray:
    """The function of (head, law, z, L), averaged over queries: shape (lengths, ...)."""
    weights = np.asarray(queries.weights, np.float64)
    values = np.asarray(function(head, law, queries.points[:, None, :], lengths[None, :]))
    return np.tensordot(weights / weights.sum(), values, axes=1)


def summary(values: list[np.ndarray]) -> Values:
    """Mean over representatives, and its standard error; one exact value has the error of its integral."""
    mean = np.mean(values, axis=0)
    error = _POINTWISE * np.abs(mean)
    if len(values) > 1:
        error = error + np.std(values, axis=0, ddof=1) / math.sqrt(len(values))
    return Values(mean, error, None)
