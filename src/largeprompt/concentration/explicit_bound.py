"""An explicit bound of the error, without unknown constants, for Gaussian tokens.

For tokens N(m, G), every query, every length L >= 1 and u = Uz,

    E |T_L - T|^2 <= e^{u'Gu} (tr VGV' + |VGu|^2) / L.

Proof. With Y_k = sum_i p_i^k the error is tr(VGV') E Y_2 + |VGu|^2 E[Y_2 - 6 Y_3 + 6 Y_2^2]. By
Cauchy-Schwarz Y_2^2 = (sum_i p_i^{1/2} p_i^{3/2})^2 <= Y_3, so both averages are at most
P_2 = E Y_2. As a function of the variance s = sigma^2 of the scores, P_2 starts at 1/L, and by the
heat equation

    d P_2 / ds = E sum_i d^2 Y_2 / ds_i^2 / 2 = E[Y_2 - 4 Y_3 + 3 Y_2^2] <= P_2 - P_3 <= P_2,

so P_2 <= e^s / L.  QED. The constant is sharp: L times the error tends to it (delta method). In the
other direction Y_2 >= 1/L, and given the scores the output has covariance Y_2 VRV', with
R = G - Gu u'G/sigma^2 the covariance given a score, so that

    E |T_L - T|^2 >= tr(VRV') / L + |VGu|^2 / L^2.

A lower side that is as sharp as the bound: the heat equation for Y_3 and Y_2 Y_3 <= Y_4 (numbers
p_i and p_i^2 are correlated under the weights p_i) give

    d P_3 / ds = E[3 Y_3 - 9 Y_4 + 6 Y_2 Y_3] <= 3 P_3,   so   P_3 <= e^{3s} / L^2,

and with it d(e^{-s} P_2)/ds >= -4 e^{-s} P_3 >= -4 e^{2s} / L^2, so that

    P_2 >= e^s / L - 2 (e^{3s} - e^s) / L^2,
    E |T_L - T|^2 >= (tr VGV' + |VGu|^2) (that) - 6 |VGu|^2 e^{3s} / L^2.

Its average over Gaussian queries is finite if kappa < 1/6; otherwise only 0 is left of it.

For dT/dV the same holds with tr(G) and |Gu|^2, once for every output. The average over queries
N(c, C) is finite if kappa = lambda_max(C^{1/2} U'GU C^{1/2}) < 1/2, where the sharp exponent is 1.
By Minkowski's inequality the root of the error of several heads is at most the sum of the roots of
their bounds; errors of dT/dV add up.
"""

import math
from typing import NamedTuple

import numpy as np

from .._linalg import covariance_root
from ..attention import AbstractHead
from ..measures import AbstractMeasure, Gaussian


class Bounds(NamedTuple):
    """Of the error, for every length; `lower` is None for several heads."""

    lower: np.ndarray | None
    upper: np.ndarray


def explicit_bound(
    head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure, lengths: np.ndarray, quantity: str
) -> Bounds | None:
    """Both bounds, averaged over queries of law nu; the upper one is infinite if kappa >= 1/2.

    None where it is not known: for dT/dU, tokens that are not Gaussian, and laws of queries that
    are neither Gaussian nor discrete.
    """
    if len(head.heads) > 1:
        each = [explicit_bound(one, mu, nu, lengths, quantity) for one in head.heads]
        known = [bounds.upper for bounds in each if bounds is not None]
        if len(known) < len(each):
            return None
        added = quantity == "gradient_V"
        return Bounds(None, np.sum(known, 0) if added else np.sum(np.sqrt(known), 0) ** 2)
    tokens, queries, atoms = mu.as_gaussian(), nu.as_gaussian(), nu.atoms()
    if tokens is None or quantity not in ("output", "gradient_V"):
        return None
    U, V, G = (np.asarray(a, np.float64) for a in (head.U, head.V, tokens.covariance))
    copies = 1
    if quantity == "gradient_V":
        V, copies = np.eye(len(G)), len(V)
    score, read, trace = U.T @ G @ U, V @ G @ U, np.trace(V @ G @ V.T)
    square = read.T @ read
    # `average` is E[e^{power s} (constant + |VGu|^2)]
    if queries is not None:

        def average(power: int, constant: float) -> float:
            return _over_gaussian(power * score, square, constant, queries)

    elif atoms is not None:
        z = np.asarray(atoms.points, np.float64)
        weights = np.asarray(atoms.weights, np.float64)

        def average(power: int, constant: float) -> float:
            with np.errstate(over="ignore"):
                at = np.exp(power * np.sum(z @ score * z, -1))
                return weights @ (at * (constant + np.sum((z @ read.T) ** 2, -1))) / weights.sum()

    else:
        return None
    finite = np.minimum(lengths, 1e308)
    constant, cubes, along = average(1, trace), average(3, trace), average(3, 0.0)
    lower = np.zeros(len(finite))
    if math.isfinite(cubes):
        lower = constant / finite - (2 * (cubes - constant) + 6 * along) / finite / finite
    upper, lower = constant / finite, np.maximum(lower, 0.0)
    ended = np.isinf(lengths)
    return Bounds(copies * np.where(ended, 0.0, lower), copies * np.where(ended, 0.0, upper))


def _over_gaussian(M: np.ndarray, N: np.ndarray, trace: float, nu: Gaussian) -> float:
    """E[e^{z'Mz} (trace + z'Nz)] for z = c + B xi, by completing the square."""
    C, c = (np.asarray(a, np.float64) for a in (nu.covariance, nu.centre))
    B = covariance_root(C)
    values, axes = np.linalg.eigh(B.T @ M @ B)
    room = 1 - 2 * values
    if room.min() <= 0:
        return np.inf
    pull = axes.T @ B.T @ M @ c
    mean = c + B @ axes @ (2 * pull / room)
    spread = np.sum((B @ axes) * (N @ B @ axes) / room)
    with np.errstate(over="ignore"):
        mass = np.exp(c @ M @ c + 2 * np.sum(pull**2 / room) - 0.5 * np.sum(np.log(room)))
        return float(mass * (trace + mean @ N @ mean + spread))
