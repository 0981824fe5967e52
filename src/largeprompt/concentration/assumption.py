"""Assumption 3.3 of Boursier & Boyer: nine tilted moments, orders 0, 4, 8 in token and query.

We could not access the published statement of the assumption and implement two readings of it,
which agree with E|x|^p E|z|^q at U = 0:

    tilted   E_z[ |z|^q  E|x|^p under the tilted law mu_{Uz} ]     (the law attention averages over)
    joint    E_{x,z}[ |x|^p |z|^q e^{<x, Uz>} ]                    (before normalisation)

For Gaussian tokens and queries both are polynomial moments of one Gaussian vector, in closed form.
The joint one is infinite as soon as |G^{1/2} U C^{1/2}|_2 >= 1: the exponential of a product of two
Gaussians outgrows their densities.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .. import _checks
from .._float64 import in_float64, not_traced
from .._linalg import covariance_root
from ..attention import AbstractHead
from ..measures import AbstractMeasure, Empirical, Gaussian
from ..prompts import AbstractMethod, Exact, QuasiMonteCarlo
from ..prompts.methods import as_method
from ..prompts.quasi import Scrambling, scrambled
from ..prompts.query_averages import check_dimensions
from ._attributes import attributes

ORDERS = (0, 4, 8)
_HALF = max(ORDERS) // 2
_POINTS = 2**8  # queries, where there is no closed form
_TOKENS = 2**12


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure, nu=AbstractMeasure)
@not_traced
@in_float64
def assumption_3_3(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    method: AbstractMethod | None = None,
) -> xr.Dataset:
    """The nine moments, with `tilted` and `joint` over ("token_order", "query_order"), their
    errors, and which are infinite.

    `method` is `Exact()` (None) for Gaussian tokens and queries and for discrete laws, otherwise
    `QuasiMonteCarlo(key)`. `why` gives the reason where a joint moment is infinite, and is empty
    where it is finite.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> moments = lp.assumption_3_3(lp.Head(U=2 * jnp.eye(1), V=jnp.eye(1)), mu, mu)
    >>> # x given z is N(2z, 1): E x^4 = 3 * 5^2
    >>> print(moments.tilted.values[1, 0], moments.joint.values[1, 0])
    75.0 inf
    >>> print(moments.why.values[1, 0])
    |G^(1/2) U C^(1/2)| = 2 >= 1: e^<x,Uz> outgrows the Gaussian densities
    """
    check_dimensions(head, mu, nu)
    method = as_method(method)
    if not isinstance(method, (Exact, QuasiMonteCarlo)):
        raise _checks.error(
            "method must be Exact() or QuasiMonteCarlo(key)",
            repr(method),
            "pass lp.QuasiMonteCarlo(key)",
        )
    scrambling = method.scrambling if isinstance(method, QuasiMonteCarlo) else None
    tilted = _tilted(head, mu, nu, scrambling)
    joint = _joint(head, mu, nu, scrambling)
    axes = ("token_order", "query_order")
    return xr.Dataset(
        {
            "tilted": (axes, tilted.value),
            "tilted_error": (axes, tilted.error),
            "joint": (axes, joint.value),
            "joint_error": (axes, joint.error),
            "why": (axes, np.where(np.isinf(joint.value), joint.why, "")),
        },
        {"token_order": list(ORDERS), "query_order": list(ORDERS)},
        attributes(head, mu, nu, method),
    )


class _Moments(NamedTuple):
    value: np.ndarray
    error: np.ndarray
    why: str = ""


def _numbers(*arrays: jax.Array) -> list[np.ndarray]:
    return [np.asarray(a, np.float64) for a in arrays]


def _tilted(
    head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure, scrambling: Scrambling | None
) -> _Moments:
    tokens, queries = mu.as_gaussian(), nu.as_gaussian()
    if tokens is not None and queries is not None:
        # given z, x is N(m + GUz, G): (x, z) is one Gaussian vector
        U, G, m, C, a = _numbers(
            head.U, tokens.covariance, tokens.centre, queries.covariance, queries.centre
        )
        through, d = G @ U, len(G)
        factor = np.block(
            [
                [covariance_root(G), through @ covariance_root(C)],
                [np.zeros((d, d)), covariance_root(C)],
            ]
        )
        value = _even_moments(np.concatenate([m + through @ a, a]), factor, d)
        return _Moments(value, np.zeros_like(value))
    return _estimated(head, mu, nu, scrambling, normalised=True)


def _joint(
    head: AbstractHead, mu: AbstractMeasure, nu: AbstractMeasure, scrambling: Scrambling | None
) -> _Moments:
    tokens, queries = mu.as_gaussian(), nu.as_gaussian()
    if tokens is not None and queries is not None:
        return _joint_gaussian(head, tokens, queries)
    of_mu, of_nu = (list(zip(*law.mixture(), strict=True)) for law in (mu, nu))
    if len(of_mu) * len(of_nu) > 1:  # linear in both laws
        parts = [
            (float(w * v), _joint(head, part, other, scrambling))
            for (w, part), (v, other) in itertools.product(of_mu, of_nu)
        ]
        value = sum(w * part.value for w, part in parts)
        error = sum(w * part.error for w, part in parts)
        return _Moments(
            np.asarray(value), np.asarray(error), next((p.why for _, p in parts if p.why), "")
        )
    if not (mu.is_bounded or nu.is_bounded):
        value = np.full((3, 3), np.inf)
        return _Moments(
            value,
            np.zeros_like(value),
            "neither law is known to be bounded: no finite value can be certified from points",
        )
    return _estimated(head, mu, nu, scrambling, normalised=False)


def _joint_gaussian(head: AbstractHead, mu: Gaussian, nu: Gaussian) -> _Moments:
    """x = m + Bg, z = a + Dh: under e^{<x,Uz>} the vector (g, h) is Gaussian with precision I -
    [[0, B'UD], [., 0]].
    """
    U, G, m, C, a = _numbers(head.U, mu.covariance, mu.centre, nu.covariance, nu.centre)
    d, B, D = len(G), covariance_root(G), covariance_root(C)
    coupling = B.T @ U @ D
    size = float(np.linalg.norm(coupling, 2))
    if size >= 1:
        why = f"|G^(1/2) U C^(1/2)| = {size:.4g} >= 1: e^<x,Uz> outgrows the Gaussian densities"
        return _Moments(np.full((3, 3), np.inf), np.zeros((3, 3)), why)
    zero = np.zeros((d, d))
    precision = np.eye(2 * d) - np.block([[zero, coupling], [coupling.T, zero]])
    linear = np.concatenate([B.T @ (U @ a), D.T @ (U.T @ m)])
    centre = np.linalg.solve(precision, linear)
    mass = math.exp(m @ U @ a + linear @ centre / 2 - np.linalg.slogdet(precision)[1] / 2)
    factor = np.block([[B, zero], [zero, D]])
    root = np.linalg.cholesky(np.linalg.inv(precision))
    value = mass * _even_moments(np.concatenate([m, a]) + factor @ centre, factor @ root, d)
    return _Moments(value, np.zeros_like(value))


def _even_moments(centre: np.ndarray, factor: np.ndarray, d: int) -> np.ndarray:
    """E|x|^p |z|^q for (x, z) = centre + factor g, p and q in ORDERS, from the joint cumulants of
    |x|^2 and |z|^2.

    ln E e^{s|x|^2 + t|z|^2} = sum_n 2^{n-1} tr(M^n)/n + 2^{n-1} b'M^{n-1}b with M = s X + t Z: a
    power series in (s, t), whose exponential has the moments as coefficients.
    """
    select = [np.zeros((len(centre),) * 2) for _ in range(2)]
    select[0][:d, :d], select[1][d:, d:] = np.eye(d), np.eye(d)
    X, Z = (factor.T @ S @ factor for S in select)
    pulls = [factor.T @ S @ centre for S in select]
    size = _HALF + 1
    log = np.zeros((size, size))
    powers: dict[tuple[int, int], np.ndarray] = {(0, 0): np.eye(len(X))}
    log[1, 0], log[0, 1] = (centre @ S @ centre for S in select)
    for n in range(1, 2 * _HALF + 1):
        # the noncentral term of order n + 1 is 2^n (b's)(M^{n-1})(b's), from the powers of order n
        # - 1
        for (j, k), power in powers.items():
            for (one, p), (two, q) in itertools.product(enumerate(pulls), repeat=2):
                at = (j + (one == 0) + (two == 0), k + (one == 1) + (two == 1))
                if max(at) < size:
                    log[at] += 2.0**n * (p @ power @ q)
        grown: dict[tuple[int, int], np.ndarray] = {}
        for (j, k), power in powers.items():
            for at, S in (((j + 1, k), X), ((j, k + 1), Z)):
                if max(at) < size:
                    grown[at] = grown.get(at, 0) + S @ power
        for at, power in grown.items():
            log[at] += 2.0 ** (n - 1) / n * np.trace(power)
        powers = grown
    series = _exponential(log)
    return np.array(
        [
            [
                math.factorial(p // 2) * math.factorial(q // 2) * series[p // 2, q // 2]
                for q in ORDERS
            ]
            for p in ORDERS
        ]
    )


def _exponential(log: np.ndarray) -> np.ndarray:
    """The exponential of a bivariate power series with no constant term."""
    size = len(log)
    total, term = np.zeros_like(log), np.zeros_like(log)
    total[0, 0] = term[0, 0] = 1.0
    for n in range(1, 2 * size):
        product = np.zeros_like(log)
        for j, k in itertools.product(range(size), repeat=2):
            product[j:, k:] += log[j, k] * term[: size - j, : size - k]
        term = product / n
        total += term
    return total


def _estimated(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    scrambling: Scrambling | None,
    normalised: bool,
) -> _Moments:
    """Weighted sums over points of both laws; exact where both are discrete."""
    atoms, few_queries, fewer = mu.atoms(), nu.atoms(), None
    if few_queries is None:
        few_queries, fewer = nu.quadrature(1), nu.quadrature()
    for_tokens, for_queries = (None, None) if scrambling is None else scrambling.two()
    tokens = [atoms] if atoms is not None else scrambled(mu, for_tokens, _TOKENS, "tokens")
    queries = (
        [few_queries] if few_queries is not None else scrambled(nu, for_queries, _POINTS, "queries")
    )
    count = max(len(tokens), len(queries))
    tokens, queries = (part * count if len(part) == 1 else part for part in (tokens, queries))
    values = [_sums(head, x, z, normalised) for x, z in zip(tokens, queries, strict=True)]
    value = np.mean(values, axis=0)
    error = np.zeros_like(value)
    if fewer is not None:  # the quadrature's own error
        coarse = [_sums(head, x, fewer, normalised) for x in tokens]
        error += np.abs(np.mean(coarse, axis=0) - value)
    if count > 1:
        error += np.std(values, axis=0, ddof=1) / math.sqrt(count)
    return _Moments(value, error)


def _sums(head: AbstractHead, x: Empirical, z: Empirical, normalised: bool) -> np.ndarray:
    """E |x|^p |z|^q e^{<x, Uz>} over the points of both, with softmax weights if normalised."""
    scores = z.points @ head.U.T @ x.points.T  # (queries, tokens)
    weights = jnp.exp(scores) * x.weights
    if normalised:
        weights = jax.nn.softmax(scores + jnp.log(x.weights), axis=1)
    token_powers = jnp.stack([jnp.linalg.norm(x.points, axis=1) ** p for p in ORDERS])
    query_powers = jnp.stack([jnp.linalg.norm(z.points, axis=1) ** q for q in ORDERS])
    return np.asarray(token_powers @ weights.T @ (query_powers * z.weights).T)
