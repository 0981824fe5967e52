"""Exact finite-prompt quantities for tokens drawn iid from a discrete measure: a vocabulary, a table of embeddings.

Atoms x_a with weights w_a, scores s_a = <u, x_a>, S = sum_i e^{s_i} over the L tokens of a prompt. The Laplace transform
1/S^K = (1/Gamma(K)) int t^{K-1} e^{-tS} dt turns a moment of order K into one integral of products of one-token sums

    Phi_k[f](t) = sum_a w_a f(x_a) e^{k s_a} exp(-t e^{s_a}),        phi_0 = Phi_0[1],

one product for every partition of the K token indices into blocks; m blocks carry L(L-1)...(L-m+1) phi_0^{L-m}. With
vectors centred at their infinite-prompt value nothing cancels at large L. Cost: atoms x nodes, whatever L.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from ..attention import Head
from ..measures import Empirical
from .gaussian import GradientError

_NODES = 384
_SCAN = 48
_CHUNK = 16  # nodes evaluated at once: chunk x atoms numbers of work space
_DROP = 37.0  # integrands are followed until they fall to e^-37 of their peak
_ACCURACY = 1e-9  # of the identities E (sum p)^K = 1; beyond it the nodes did not suffice

Vector = Float[Array, " _"]


class _Law(NamedTuple):
    """Logarithms of weights and scores; the largest score is shifted to 0, which changes no softmax."""

    log_weights: Float[Array, " atoms"]
    scores: Float[Array, " atoms"]


def _law(atoms: Empirical, tilt: Float[Array, " d"]) -> _Law:
    scores = jnp.matmul(atoms.points, tilt, precision="highest")
    # weights that were stored in 32 bits add up to 1 in those only
    log_weights = jax.nn.log_softmax(jnp.log(atoms.weights))
    present = log_weights > -jnp.inf
    top = jax.lax.stop_gradient(jnp.max(jnp.where(present, scores, -jnp.inf)))
    return _Law(log_weights, jnp.where(present, scores - top, 0.0))


def _log_phi_0(law: _Law, tau: Float[Array, ""]) -> Float[Array, ""]:
    """Log sum_a w_a exp(-t e^{s_a}), to full relative accuracy at small t, where it is multiplied by L."""
    rates = -jnp.exp(tau + law.scores)
    tail = -jnp.sum(jnp.exp(law.log_weights) * jnp.expm1(rates))
    near = tail < 0.5
    far = jax.nn.logsumexp(law.log_weights + rates)
    return jnp.where(near, jnp.log1p(-jnp.where(near, tail, 0.5)), far)


def _log_height(law: _Law, L: Float[Array, ""], tau: Float[Array, ""], order: int) -> Array:
    """Logarithm of the integrand t^K L Phi_K phi_0^{L-1} in tau, whose window contains those of all partitions."""
    log_sum = jax.nn.logsumexp(law.log_weights + order * law.scores - jnp.exp(tau + law.scores))
    return order * tau + log_sum + (L - 1) * _log_phi_0(law, tau)


def _nodes(law: _Law, L: Float[Array, ""], orders: tuple[int, ...]) -> tuple[Array, Array]:
    """Equidistant tau = ln t over the window where some integrand exceeds e^-DROP of its peak, and their distance."""
    law, L = jax.lax.stop_gradient((law, L))
    low = -jnp.log(L) - _DROP - 4
    high = -jnp.min(law.scores) + 5

    def narrow(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        tau = jnp.linspace(*bounds, _SCAN)
        heights = jnp.stack(
            [jax.lax.map(lambda t, k=k: _log_height(law, L, t, k), tau) for k in orders]
        )
        inside = jnp.any(heights > jnp.max(heights, axis=1, keepdims=True) - _DROP, axis=0)
        first, last = jnp.argmax(inside), _SCAN - 1 - jnp.argmax(inside[::-1])
        return tau[jnp.maximum(first - 1, 0)], tau[jnp.minimum(last + 1, _SCAN - 1)]

    low, high = jax.lax.fori_loop(0, 3, narrow, (low, high))
    tau = jnp.linspace(low, high, _NODES)
    return tau, tau[1] - tau[0]


def _integral(
    atoms: Empirical,
    tilt: Float[Array, " d"],
    L: Float[Array, ""],
    features: list[Float[Array, "atoms _"]],
    product: Callable[[list[Vector], Float[Array, ""]], Float[Array, "..."]],
) -> Float[Array, "..."]:
    """1/Gamma(K) int over t of product(sums), K = len(features), where sums[k-1] = L t^k Phi_k[features[k-1]] / phi_0, weighted by phi_0^L.

    `product` also receives 1/L, for the factors (1 - 1/L)(1 - 2/L)... of partitions into several blocks. A constant feature is
    carried along to check E (sum p)^K = 1 on the same nodes, for the orders in use.
    """
    law = _law(atoms, tilt)
    order = len(features)
    tau, step = _nodes(law, L, tuple(sorted({1, order})))
    ones = jnp.ones((atoms.n, 1))
    features = [jnp.concatenate([block, ones], axis=1) for block in features]

    def at_node(t: Float[Array, ""]) -> tuple[Array, Array]:
        log_phi = _log_phi_0(law, t)
        base = law.log_weights - jnp.exp(t + law.scores) + jnp.log(L) - log_phi
        sums = [
            jnp.matmul(jnp.exp(base + k * (t + law.scores)), block, precision="highest")
            for k, block in enumerate(features, start=1)
        ]
        weight = jnp.exp(L * log_phi)
        value = product([row[:-1] for row in sums], 1 / L)
        return weight * value, weight * _power_of_total([row[-1] for row in sums], 1 / L)

    values, units = jax.lax.map(at_node, tau, batch_size=_CHUNK)
    scale = step / math.factorial(order - 1)
    gap = jnp.abs(scale * jnp.sum(units) - 1)
    value = scale * jnp.sum(values, axis=0)
    return _checks.require(
        value,
        ~(gap < _ACCURACY),
        rule=f"the Laplace integral must satisfy E (sum p)^{order} = 1 to {_ACCURACY:.0e}",
        received="scores spread too widely for the nodes",
        fix="scale the head down, or use estimate(key, ...), which samples prompts",
    )


def _power_of_total(sums: list[Array], inverse: Array) -> Array:
    """The partition sum of (sum_i p_i)^K for K = len(sums): its integral is Gamma(K)."""
    a = sums
    b, c = 1 - inverse, (1 - inverse) * (1 - 2 * inverse)
    match len(a):
        case 1:
            return a[0]
        case 2:
            return a[1] + b * a[0] ** 2
        case 3:
            return a[2] + 3 * b * a[1] * a[0] + c * a[0] ** 3
        case _:
            two = 4 * a[2] * a[0] + 3 * a[1] ** 2
            e = c * (1 - 3 * inverse)
            return a[3] + b * two + 6 * c * a[1] * a[0] ** 2 + e * a[0] ** 4


def _each(
    function: Callable[[Array, Array], Array], tilts: Float[Array, "*shape d"], L: Array
) -> Array:
    """function(tilt, L) for every pair; the value at L = infinity is 0 (every quantity here is an error)."""
    finite = jnp.isfinite(L)
    flat = tilts.reshape(-1, tilts.shape[-1]), jnp.where(finite, L, 2.0).ravel()
    values = jax.lax.map(lambda pair: function(*pair), flat)
    values = values.reshape(*L.shape, *values.shape[1:])
    return jnp.where(finite.reshape(L.shape + (1,) * (values.ndim - L.ndim)), values, 0.0)


def _centred(atoms: Empirical, tilt: Float[Array, " d"]) -> Float[Array, "atoms d"]:
    """Atoms minus the infinite-prompt mean."""
    return atoms.points - atoms.tilted_mean(tilt)


def mean_shift(
    head: Head, atoms: Empirical, tilts: Float[Array, "*shape d"], L: Float[Array, "*shape"]
) -> Float[Array, "*shape m"]:
    """E T_L - T_inf."""

    def shift(tilt: Array, length: Array) -> Array:
        values = jnp.matmul(_centred(atoms, tilt), head.V.T, precision="highest")
        return _integral(atoms, tilt, length, [values], lambda sums, _: sums[0])

    return _each(shift, tilts, L)


def error_matrix(
    head: Head, atoms: Empirical, tilts: Float[Array, "*shape d"], L: Float[Array, "*shape"]
) -> Float[Array, "*shape m m"]:
    """E (T_L - T_inf)(T_L - T_inf)'."""
    m = head.out_dim

    def matrix(tilt: Array, length: Array) -> Array:
        values = jnp.matmul(_centred(atoms, tilt), head.V.T, precision="highest")
        squares = (values[:, :, None] * values[:, None, :]).reshape(atoms.n, m * m)

        def product(sums: list[Vector], inverse: Array) -> Array:
            return sums[1].reshape(m, m) + (1 - inverse) * jnp.outer(sums[0], sums[0])

        return _integral(atoms, tilt, length, [values, squares], product)

    return _each(matrix, tilts, L)


def output_error(
    head: Head, atoms: Empirical, tilts: Float[Array, "*shape d"], L: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """E |T_L - T_inf|^2."""

    def error(tilt: Array, length: Array) -> Array:
        values = jnp.matmul(_centred(atoms, tilt), head.V.T, precision="highest")
        squares = jnp.sum(values**2, axis=1, keepdims=True)

        def product(sums: list[Vector], inverse: Array) -> Array:
            return sums[1][0] + (1 - inverse) * jnp.sum(sums[0] ** 2)

        return _integral(atoms, tilt, length, [values, squares], product)

    return _each(error, tilts, L)


def gradient_error(
    head: Head,
    atoms: Empirical,
    z: Float[Array, "*shape d"],
    tilts: Float[Array, "*shape d"],
    L: Float[Array, "*shape"],
) -> GradientError:
    """The squared errors of dT/dU and dT/dV."""
    identity = Head(U=head.U, V=jnp.eye(head.dim))
    by_V = head.out_dim * output_error(identity, atoms, tilts, L)

    def error(tilt: Array, length: Array) -> Array:
        return _jacobian_error(head, atoms, tilt, length)

    return GradientError(jnp.sum(z * z, axis=-1) * _each(error, tilts, L), by_V)


def _jacobian_error(
    head: Head, atoms: Empirical, tilt: Float[Array, " d"], L: Float[Array, ""]
) -> Float[Array, ""]:
    """E |V Cov_p - V Cov_inf|^2, Cov_p the softmax-weighted covariance of the tokens of a prompt.

    With b = x - x_inf, a = V b and C = a b' - V Cov_inf the matrix is sum_i p_i C_i - (sum_i p_i a_i)(sum_i p_i b_i)'. Its square
    has three parts, of orders 2, 3 and 4 in p, each a sum over the partitions of its token indices.
    """
    b = _centred(atoms, tilt)
    a = jnp.matmul(b, head.V.T, precision="highest")
    m, d = head.out_dim, head.dim
    ab = a[:, :, None] * b[:, None, :]
    C = ab - jnp.matmul(head.V, atoms.tilted_cov(tilt), precision="highest")
    Ca, Cb = jnp.einsum("nij,ni->nj", C, a), jnp.einsum("nij,nj->ni", C, b)
    a2, b2 = jnp.sum(a**2, axis=1), jnp.sum(b**2, axis=1)

    def of_order_2(sums: list[Vector], inverse: Array) -> Array:
        """sum_ij p_i p_j <C_i, C_j>."""
        return sums[1][0] + (1 - inverse) * jnp.sum(sums[0] ** 2)

    def of_order_3(sums: list[Vector], inverse: Array) -> Array:
        """sum_ijk p_i p_j p_k a_j' C_i b_k."""
        C1, A1, B1 = _cut(sums[0], (m, d), (m,), (d,))
        ab2, Ca2, Cb2 = _cut(sums[1], (m, d), (d,), (m,))
        two_blocks = Ca2 @ B1 + Cb2 @ A1 + jnp.sum(ab2 * C1)
        return sums[2][0] + (1 - inverse) * (two_blocks + (1 - 2 * inverse) * (A1 @ C1 @ B1))

    def of_order_4(sums: list[Vector], inverse: Array) -> Array:
        """sum_ijkl p_i p_j p_k p_l <a_i, a_j> <b_k, b_l>: the fifteen partitions of four indices."""
        A1, B1 = _cut(sums[0], (m,), (d,))
        N, aa, bb = _cut(sums[1], (m, d), (), ())
        aab, bba = _cut(sums[2], (d,), (m,))
        two_blocks = 2 * aab @ B1 + 2 * bba @ A1 + aa * bb + 2 * jnp.sum(N**2)
        three_blocks = aa * (B1 @ B1) + bb * (A1 @ A1) + 4 * A1 @ N @ B1
        four_blocks = (A1 @ A1) * (B1 @ B1)
        rest = three_blocks + (1 - 3 * inverse) * four_blocks
        return sums[3][0] + (1 - inverse) * (two_blocks + (1 - 2 * inverse) * rest)

    square = _integral(atoms, tilt, L, [_join(C), _join(jnp.sum(C**2, axis=(1, 2)))], of_order_2)
    cross = _integral(
        atoms,
        tilt,
        L,
        [_join(C, a, b), _join(ab, Ca, Cb), _join(jnp.sum(Ca * b, axis=1))],
        of_order_3,
    )
    product = _integral(
        atoms,
        tilt,
        L,
        [_join(a, b), _join(ab, a2, b2), _join(a2[:, None] * b, b2[:, None] * a), _join(a2 * b2)],
        of_order_4,
    )
    return square - 2 * cross + product


def _join(*arrays: Array) -> Float[Array, "atoms features"]:
    """Arrays with one row per atom, flattened and set side by side."""
    return jnp.concatenate([array.reshape(array.shape[0], -1) for array in arrays], axis=1)


def _cut(row: Vector, *shapes: tuple[int, ...]) -> list[Array]:
    """The inverse of `_join`, for one row of sums."""
    pieces, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        pieces.append(row[start : start + size].reshape(shape))
        start += size
    return pieces
