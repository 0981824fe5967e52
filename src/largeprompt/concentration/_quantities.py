"""The exact errors of Gaussian tokens as sums over features of the query times functions of (score variance, L).

With S = z'U'GUz every squared error of `prompts.gaussian` has the form sum_f q_f(z) c_f(S, L), q_f a polynomial of the query
divided by a power of S: so its average over queries needs only the law of S, weighted by the q_f.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from .. import _checks
from .._linalg import covariance_root
from ..attention import Head
from ..measures import Gaussian
from ..participation import Along, gradient_moments_along, participation_along
from ._quadratic_form import Feature

Quantity = Literal["output", "gradient_U", "gradient_V"]


class Decomposition(NamedTuple):
    """S = |factor z|^2, the features q_f, and (S, L) -> c_f with its derivative in L and its
    relative rounding error.
    """

    factor: np.ndarray
    features: list[Feature]
    coefficients: Callable[[np.ndarray, np.ndarray], Along]


def checked_quantity(quantity: str) -> Quantity:
    """The quantity, if it is one."""
    if quantity not in get_args(Quantity):
        raise ValueError(
            _checks.message(
                f"quantity must be one of {get_args(Quantity)}", repr(quantity), "name one"
            )
        )
    return quantity  # pyright: ignore[reportReturnType]


def decompose(head: Head, mu: Gaussian, quantity: Quantity) -> Decomposition:
    """The error of `quantity` for Gaussian tokens, as features of the query."""
    U, V = (np.asarray(a, np.float64) for a in (head.U, head.V))
    G = np.asarray(mu.covariance, np.float64)
    factor, pull = covariance_root(G).T @ U, G @ U
    if quantity == "gradient_U":
        return _by_U(factor, pull, V.T @ V, G)
    # |dT_L/dV - dT_inf/dV|^2 is that of the identity read-out, once for each of the m rows
    copies, W = (len(V), np.eye(len(G))) if quantity == "gradient_V" else (1, V.T @ V)
    spread = float(np.trace(W @ G))

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        p = participation_along(np.sqrt(S)[:, None], L)
        return p.combine([[copies * spread, 0, 0], [copies, -6 * copies, 6 * copies]])

    features = [Feature(), Feature((_symmetric(pull.T @ W @ pull),))]
    return Decomposition(factor, features, coefficients)


def _by_U(factor: np.ndarray, pull: np.ndarray, W: np.ndarray, G: np.ndarray) -> Decomposition:
    """The error of dT/dU: `prompts.gaussian.gradient_error` multiplied out in a = g'Wg, b = g'g, e = g'GWg, g = Gu/sigma."""
    A, B = _symmetric(pull.T @ W @ pull), _symmetric(pull.T @ pull)
    E = _symmetric(pull.T @ G @ W @ pull)
    square = np.eye(len(G))  # |z|^2
    features = [
        Feature((square,)),
        Feature((square, A), 1),
        Feature((square, B), 1),
        Feature((square, E), 1),
        Feature((square, A, B), 2),
    ]
    tr_G, tr_WG, tr_WGG = (float(np.trace(X)) for X in (G, W @ G, W @ G @ G))
    # columns: p2, p3, p22, variance_error, spread, coupling; with distinct = p2 - 2 p3 + p22
    distinct = np.array([1, -2, 1, 0, 0, 0])
    p22, variance_error, spread, coupling = np.eye(6)[2:]
    table = np.stack(
        [
            tr_WGG * p22 + (tr_WG * tr_G + tr_WGG) * distinct,
            tr_G * (spread - distinct),
            tr_WG * (spread - distinct),
            2 * (spread - p22 - distinct - coupling),
            variance_error - 4 * spread + p22 + 2 * distinct + 2 * coupling,
        ]
    )

    def coefficients(S: np.ndarray, L: np.ndarray) -> Along:
        return gradient_moments_along(np.sqrt(S)[:, None], L).combine(table)

    return Decomposition(factor, features, coefficients)


def _symmetric(A: np.ndarray) -> np.ndarray:
    return (A + A.T) / 2
