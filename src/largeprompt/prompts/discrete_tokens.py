"""Exact finite-prompt quantities for iid tokens of a discrete law: a vocabulary, embeddings.

Atoms x_a with weights w_a and scores s_a = <u, x_a>; S = sum_i e^{s_i} over the L tokens of a
prompt. The Laplace transform 1/S^K = (1/Gamma(K)) int t^{K-1} e^{-tS} dt turns a moment of order K
into one integral over tau = ln t:

    E[M / S^K] = (1/Gamma(K)) int t^K phi_0(t)^L E_t[M] dtau,
    phi_0(t) = sum_a w_a exp(-t e^{s_a}),

M homogeneous of degree K in the e^{s_i}; E_t draws the L tokens iid with weights w_a exp(-t
e^{s_a}) / phi_0. The sums over atoms behind E_t[M] do not depend on L: they are computed once for
each query, on nodes that serve all lengths.

**Nodes.** The integrand of each single prompt is t^K e^{-tS}. So the trapezoidal rule with step h
has the relative error 2 |Gamma(K + 2 pi i/h)| / Gamma(K) for every M >= 0, whatever the atoms
(1e-16 at h = 0.2). This bound and the identity E (sum p)^K = 1 on the same nodes certify the result
at each length.

**Cancellation.** A squared error is E_t |M|^2 with M the error itself, a sum of squares around its
mean under E_t; atoms enter as differences to the heaviest one. So an error of 1e-35 keeps its
digits. What still cancels (in the error of dT/dU alone) is measured and counted in the relative
error, which must not exceed 1e-9.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from .. import _checks
from .._float64 import in_float64, is_traced
from .._lengths import length_vector
from .._typing import ArrayInput
from ..attention import AbstractHead, Head, attend
from ..attention.softmax import queries_of, tilts_of
from ..measures import Empirical
from .gaussian_tokens import Bounded
from .pairs import indexed_pairs

LONGEST = 1e15
_ONE_LENGTH, _MANY_LENGTHS = 384, 640  # nodes for one length, and for lengths from 1 to LONGEST
_STEP = 0.22  # of the nodes in tau, or less; more only where even _RARE does not help
_DROP = 37.0  # integrands are cut on the left where e^-37 of their mass is outside,
_LAST = 50.0  # and on the right at tS = 50 for every prompt,
_RARE = 100.0  # or, if the step became too large, but for a part e^-100, counted as error
_ACCURACY = 1e-9  # largest relative error that is returned
_EPSILON = 2.0**-52
_ROUNDING = 2e-14  # of the sums, relative to the same sums with all terms positive
_SAFETY = 4.0  # the identities see the errors in other proportions than the quantities do
_BATCH = 64  # pairs of query and length that are integrated at once

ErrorOf = Literal["output", "gradient_U", "gradient_V"]


class _Law(NamedTuple):
    """The law of one token, seen from one query."""

    weights: Float[Array, " atoms"]
    growth: Float[
        Array, " atoms"
    ]  # e^{s_a}; the largest score is shifted to 0, which changes no softmax
    least: Float[Array, ""]  # smallest growth
    centred: Float[Array, "atoms d"]  # x_a - x_inf
    rounding: Float[Array, ""]  # of the scores


def _law(atoms: Empirical, tilt: Float[Array, " d"]) -> _Law:
    scores = atoms.points @ tilt
    # weights that were stored in 32 bits add up to 1 in those only
    weights = atoms.weights / jnp.sum(atoms.weights)
    present = weights > 0
    top = jax.lax.stop_gradient(jnp.max(jnp.where(present, scores, -jnp.inf)))
    growth = jnp.exp(jnp.where(present, scores - top, 0.0))
    limit = weights * growth
    points = _from_heaviest(atoms.points, limit)
    centred = points - limit @ points / jnp.sum(limit)
    largest = jnp.max(jnp.where(present, jnp.sum(atoms.points**2, axis=1), 0.0))
    rounding = _EPSILON * jnp.sqrt(largest * jnp.sum(tilt**2))
    least, rounding = jax.lax.stop_gradient((jnp.min(growth), rounding))
    return _Law(weights, growth, least, centred, rounding)


def _from_heaviest(points: Array, weights: Float[Array, " atoms"]) -> Float[Array, "atoms d"]:
    """Differences to the heaviest atom.

    Where that atom has nearly all the weight, their weighted mean is tiny and keeps its digits.
    """
    return points - points[jnp.argmax(jax.lax.stop_gradient(weights))]


class _Block(NamedTuple):
    """All atoms at a block of nodes t. Softmax weighs a token by u = e^s / E_t e^s.

    Sums over atoms are products of `decay`, or `change`, with what belongs to the atoms: one matrix
    product for a block.
    """

    law: _Law
    t: Float[Array, " block"]
    decay: Float[
        Array, "block atoms"
    ]  # exp(-t e^s), relative to the slowest, so that it does not underflow
    # decay; but where t < 1 its difference to t = 0, by expm1: a sum E_t[u f] that vanishes at t =
    # 0
    # is then as small as its terms
    change: Float[Array, "block atoms"]
    total: Float[Array, " block"]  # the sum of w decay,
    mean: Float[Array, " block"]  # and of w e^s decay

    def moment(self, power: int, values: Float[Array, "atoms ..."]) -> Float[Array, "block ..."]:
        """E_t[u^power values]."""
        weights = self.law.weights * self.law.growth**power
        scale = (self.total / self.mean) ** power / self.total  # in an order that stays in range
        found = self.decay @ (weights * values.T).T
        return (scale * found.T).T

    def shift(self, values: Float[Array, "atoms _"]) -> Float[Array, "block _"]:
        """E_t[u values] of values whose E_0[u values] is 0."""
        weights = self.law.weights * self.law.growth
        return self.change @ (weights[:, None] * values) / self.mean[:, None]


def _decay(law: _Law, t: Float[Array, " block"]) -> tuple[Array, Array, Array]:
    """exp(-t (e^s - least)), expm1(-t e^s), and their sums (w decay, w e^s decay, ln phi_0)."""
    decay = jnp.exp(-t[:, None] * (law.growth - law.least))
    missing = jnp.expm1(-t[:, None] * law.growth)
    total, mean = (decay @ jnp.stack([law.weights, law.weights * law.growth], axis=1)).T
    tail = -missing @ law.weights
    near = tail < 0.5  # ln phi_0 is multiplied by L: it needs full relative accuracy at small t
    far = jnp.log(total) - t * law.least
    log_phi = jnp.where(near, jnp.log1p(-jnp.where(near, tail, 0.5)), far)
    return decay, missing, jnp.stack([total, mean, log_phi])


def _at_nodes(law: _Law, tau: Float[Array, " block"]) -> tuple[_Block, Array, Array]:
    """The block, ln phi_0 and ln E_t[t e^s] at nodes t = e^tau."""
    t = jnp.exp(tau)
    decay, missing, (total, mean, log_phi) = _decay(law, t)
    change = jnp.where((t < 1)[:, None], missing * jnp.exp(t * law.least)[:, None], decay)
    return _Block(law, t, decay, change, total, mean), log_phi, tau + jnp.log(mean / total)


Columns = tuple[Float[Array, "nodes ..."], ...]


class _Form(NamedTuple):
    """A quantity as a Laplace integral of order K."""

    order: int
    # of one query: the function from a block of nodes to the sums needed there
    sums: Callable[[AbstractHead, Empirical, _Law], Callable[[_Block], Columns]]
    # (sums, E_t u^2, 1/L) -> E_t[M] / (L E_t e^s)^K, and the same with all terms positive
    at_length: Callable[[Columns, Array, Array], tuple[Array, Array]]
    largest: Callable[[AbstractHead, _Law], Array]  # |M| / S^K is at most this, for every prompt
    width: Callable[[AbstractHead], int]  # numbers kept for each atom and node


class _Sums(NamedTuple):
    """What the integrals at all lengths need of one query, at every node."""

    step: Float[Array, ""]
    log_phi: Float[Array, " nodes"]
    log_mean: Float[Array, " nodes"]  # ln E_t[t e^s]
    moments: Float[Array, "nodes powers"]  # E_t u^k for k = 2, ..., max(K, 2)
    columns: Columns
    largest: Float[Array, ""]
    rounding: Float[Array, ""]  # of the scores
    log_phi_beyond: Float[
        Array, ""
    ]  # phi_0^L there bounds the prompts that go beyond the last node


def _one_token_sums(
    form: _Form,
    head: AbstractHead,
    atoms: Empirical,
    tilt: Array,
    ends: tuple[Array, Array],
    nodes: int,
) -> _Sums:
    """The sums of one query, on nodes for lengths from ends[0] to ends[1]."""
    law = _law(atoms, tilt)
    sums, order = form.sums(head, atoms, law), max(form.order, 2)
    tau, beyond = _window(law, ends, order, nodes)

    @jax.checkpoint  # reverse mode computes the exponentials again rather than keep them
    def at_nodes(tau: Float[Array, " block"]) -> tuple[Array, Array, Array, Columns]:
        block, log_phi, log_mean = _at_nodes(law, tau)
        ones = jnp.ones(atoms.n)
        moments = jnp.stack([block.moment(k, ones) for k in range(2, order + 1)], axis=1)
        return log_phi, log_mean, moments, sums(block)

    # blocks that stay near the cache of a CPU, or fill an accelerator
    room = 2**20 if jax.default_backend() == "cpu" else 2**26
    size = max(1, min(nodes, room // (atoms.n * form.width(head))))
    blocks = jnp.pad(tau, (0, -nodes % size), mode="edge").reshape(-1, size)
    found = jax.lax.map(at_nodes, blocks)
    found = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:nodes], found)
    log_phi, log_mean, moments, columns = found
    largest = jax.lax.stop_gradient(form.largest(head, law))
    return _Sums(
        step=tau[1] - tau[0],
        log_phi=log_phi,
        log_mean=log_mean,
        moments=moments,
        columns=columns,
        largest=largest,
        rounding=law.rounding,
        log_phi_beyond=beyond,
    )


def _window(
    law: _Law, ends: tuple[Array, Array], order: int, nodes: int
) -> tuple[Float[Array, " nodes"], Float[Array, ""]]:
    """Nodes tau for lengths from ends[0] to ends[1], and ln phi_0 at half the last t.

    A prompt needs the nodes up to tS = 50, S between L times the smallest growth and L. Cut at t it
    loses at most 3 e^{-tS/2} of its integral, in the mean 3 phi_0(t/2)^L.
    """
    law = jax.lax.stop_gradient(law)
    # the integrand of a mean, E_t[u f] with E_0[u f] = 0, is of order 2 at small t
    low = -jnp.log(ends[1]) - _DROP / order
    full = math.log(_LAST) - jnp.log(ends[0]) - jnp.log(law.least)

    def log_phi(tau: Array) -> Array:
        return _decay(law, jnp.exp(tau)[None] / 2)[2][2, 0]

    def bisect(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (bounds[0] + bounds[1]) / 2
        rare = ends[0] * log_phi(middle) < -_RARE
        return jnp.where(rare, bounds[0], middle), jnp.where(rare, middle, bounds[1])

    rare = jax.lax.fori_loop(0, 10, bisect, (low, full))[1]
    high = jnp.minimum(full, jnp.maximum(rare, low + _STEP * nodes))
    return jnp.linspace(low, high, nodes), jnp.where(high < full, log_phi(high), -jnp.inf)


def _integral(form: _Form, sums: _Sums, L: Float[Array, ""]) -> tuple[Array, Float[Array, ""]]:
    """The quantity at one finite length, and its relative error."""

    def rule(order: int) -> Array:
        """Weights at the nodes of the integral of order K."""
        log_weights = order * (sums.log_mean + jnp.log(L)) + L * sums.log_phi
        return sums.step / math.factorial(order - 1) * jnp.exp(log_weights)

    integrand, terms = form.at_length(sums.columns, sums.moments[:, 0], 1 / L)
    value, size = (jnp.tensordot(rule(form.order), a, axes=1) for a in (integrand, terms))
    checked = max(form.order, 2)
    unit = jnp.sum(rule(checked) * _power_of_total(sums.moments.T, 1 / L))
    error = _SAFETY * jnp.abs(unit - 1) + _aliasing(sums.step, checked)
    error = error + 2 * checked * sums.rounding  # each p_i changes by the factor e^{2 rounding}
    # a squared error is positive; entries of a vector or a matrix may vanish
    reference = value if value.ndim == 0 else sums.largest
    lost = _ROUNDING * jnp.max(size) + 3 * sums.largest * jnp.exp(L * sums.log_phi_beyond)
    zero = sums.largest == 0  # one atom
    error = error + jnp.where(zero, 0.0, lost / jnp.where(zero, 1.0, reference))
    return value, jax.lax.stop_gradient(error)


def _aliasing(step: Float[Array, ""], order: int) -> Float[Array, ""]:
    """2 |Gamma(K + i w)| / Gamma(K), w = 2 pi / step: trapezoidal error of t^K e^-t."""
    w = 2 * jnp.pi / step
    factors = [jnp.log1p((w / j) ** 2) for j in range(1, order)]
    log_sinh = jnp.pi * w + jnp.log(-jnp.expm1(-2 * jnp.pi * w) / 2)
    return 2 * jnp.exp((jnp.log(jnp.pi * w) - log_sinh + sum(factors)) / 2)


def _power_of_total(moments: Float[Array, "powers nodes"], inverse: Array) -> Array:
    """E_t (sum_i u_i)^K / L^K from the moments E_t u^2, ..., E_t u^K: its integral is Gamma(K)."""
    b, c = 1 - inverse, (1 - inverse) * (1 - 2 * inverse)
    match len(moments):
        case 1:
            return inverse * moments[0] + b
        case _:
            u2, u3, u4 = moments
            two = 4 * u3 + 3 * u2**2
            four = c * (1 - 3 * inverse)
            return inverse**3 * u4 + inverse**2 * b * two + 6 * inverse * c * u2 + four


def _mean_sums(head: AbstractHead, atoms: Empirical, law: _Law) -> Callable[[_Block], Columns]:
    """E_t[u V b], b = x - x_inf."""
    values = law.centred @ head.V.T
    return lambda block: (block.shift(values),)


def _matrix_sums(head: AbstractHead, atoms: Empirical, law: _Law) -> Callable[[_Block], Columns]:
    """E_t[u V b] and E_t[u^2 V b b' V']."""
    values, m = law.centred @ head.V.T, head.out_dim
    squares = (values[:, :, None] * values[:, None, :]).reshape(atoms.n, m * m)
    return lambda block: (block.shift(values), block.moment(2, squares).reshape(-1, m, m))


def _output_sums(head: AbstractHead, atoms: Empirical, law: _Law) -> Callable[[_Block], Columns]:
    """|E_t[u V b]|^2 and E_t |u V b|^2."""
    values = law.centred @ head.V.T
    squares = jnp.sum(values**2, axis=1)
    return lambda block: (jnp.sum(block.shift(values) ** 2, axis=1), block.moment(2, squares))


def _mean_at_length(columns: Columns, u2: Array, inverse: Array) -> tuple[Array, Array]:
    return columns[0], jnp.abs(columns[0])


def _matrix_at_length(columns: Columns, u2: Array, inverse: Array) -> tuple[Array, Array]:
    mean, second = columns
    value = inverse * second + (1 - inverse) * mean[:, :, None] * mean[:, None, :]
    return value, jnp.abs(value)


def _output_at_length(columns: Columns, u2: Array, inverse: Array) -> tuple[Array, Array]:
    square, second = columns
    value = inverse * second + (1 - inverse) * square
    return value, value


def _jacobian_sums(head: AbstractHead, atoms: Empirical, law: _Law) -> Callable[[_Block], Columns]:
    """The parts of E_t |V M|^2, M = S^2 (Cov_p - C_inf).

    M = (1/2) sum_ij u_i u_j ((x_i - x_j)(x_i - x_j)' - 2 C_inf) is a U-statistic of the L tokens, a
    sum of uncorrelated terms (Hoeffding). With C the covariance under E_t[u .], D = C - C_inf, and
    Z = u ((x - c)(x - c)' - C), c the mean under E_t[u .], these are

        its mean        L (L-1) D - L E[u^2] C_inf,
        of one token    (L-1) (Z + 2 (u-1) D) - (u^2 - E u^2) C_inf,
        of a pair       F_i (u_j-1) + (u_i-1) F_j - (B_i B_j' + B_j B_i') - 2 (u_i-1) (u_j-1) C_inf,

    where B = u y and F = u y y', each less its mean, for y = x - e with any e. We take the mean
    under E_t[u^2 .], which tokens of the largest scores dominate: two of them make no error, and e
    makes their y small.
    """
    V, limit = head.V, law.weights * law.growth
    C_inf = (law.centred.T * (limit / jnp.sum(limit))) @ law.centred
    N = V @ C_inf

    def at_node(t: Array, decay: Array, change: Array, total: Array, mean: Array) -> tuple:
        small, u = t < 1, law.growth * (total / mean)
        weights, q, change = (
            law.weights * decay / total,
            limit * decay / mean,
            limit * change / mean,
        )
        uq, uuq = q * u, q * u**2  # weights of E_t[u^2 .] and E_t[u^3 .]
        u2, u3 = jnp.sum(uq), jnp.sum(uuq)
        variance = weights @ (u - 1) ** 2
        skew = weights @ ((u - 1) * (u**2 - u2))
        of_square = weights @ (u**2 - u2) ** 2

        base = jnp.where(small, law.centred, _from_heaviest(atoms.points, q))
        shift = change @ base
        b = base - shift  # x - c
        a = b @ V.T
        around = jnp.where(small, base, b)
        gram = (around.T * change) @ around
        from_limit = gram - jnp.sum(change) * C_inf - jnp.outer(shift, shift)
        VC = V @ jnp.where(small, C_inf + from_limit, gram)
        D = V @ jnp.where(small, from_limit, gram - C_inf)
        ZZ = uq @ jnp.sum((a[:, :, None] * b[:, None, :] - VC) ** 2, axis=(1, 2))  # E_t |V Z|^2
        uZ, uuZ = (a.T * uq) @ b - u2 * VC, (a.T * uuq) @ b - u3 * VC  # E_t[u V Z], E_t[u^2 V Z]
        DD, DN = jnp.sum(D**2), jnp.sum(D * N)
        one = ZZ + 4 * variance * DD + 4 * jnp.sum(D * uZ)
        cross = jnp.sum(uuZ * N) + 2 * skew * DN

        y = _from_heaviest(atoms.points, uq)
        y = y - uq @ y / u2
        Vy = y @ V.T
        yy, VyVy = jnp.sum(y**2, axis=1), jnp.sum(Vy**2, axis=1)
        B, VB, F = q @ y, q @ Vy, (Vy.T * q) @ y
        uF = (Vy.T * uq) @ y
        p, Vp = uq @ y - B, uq @ Vy - VB
        FB, BF = uq @ (VyVy[:, None] * y) - VB @ F, uq @ (yy[:, None] * Vy) - F @ B
        pair = 2 * variance * (uq @ (yy * VyVy) - jnp.sum(F**2)) + 2 * jnp.sum((uF - F) ** 2)
        pair = pair + 2 * (uq @ yy - B @ B) * (uq @ VyVy - VB @ VB)
        pair = pair + 2 * jnp.sum((uF - jnp.outer(VB, B)) ** 2)
        pair = pair + 4 * variance * (variance * jnp.sum(N**2) - 2 * jnp.sum((uF - F) * N))
        pair = pair - 4 * (p @ FB + Vp @ BF) + 8 * Vp @ N @ p
        values = jnp.stack([DD, DN, of_square, one, cross, pair])

        # the same with all terms positive
        def size(array: Array) -> Array:
            return jnp.sqrt(jnp.sum(array**2, axis=tuple(range(1, array.ndim))))

        ab, y_, Vy_ = size(a) * size(b), size(y), size(Vy)
        c, n, d, f = (jnp.linalg.norm(matrix) for matrix in (VC, N, D, F))
        B_, VB_ = q @ y_, q @ Vy_
        uF_ = uq @ (y_ * Vy_) + f
        one_ = ZZ + 4 * variance * DD + 4 * d * (uq @ ab + u2 * c)
        cross_ = (uuq @ ab + u3 * c) * n + 2 * jnp.abs(skew) * d * n
        pair_ = 2 * variance * (uq @ (yy * VyVy) + f**2) + 2 * uF_**2
        pair_ = pair_ + 2 * (uq @ yy + B_**2) * (uq @ VyVy + VB_**2) + 2 * (uF_ + VB_ * B_) ** 2
        pair_ = pair_ + 4 * variance * n * (variance * n + 2 * uF_)
        pair_ = pair_ + 4 * (uq @ y_ + B_) * (uq @ (VyVy * y_) + VB_ * f)
        pair_ = pair_ + 4 * (uq @ Vy_ + VB_) * (uq @ (yy * Vy_) + B_ * f + 2 * n * (uq @ y_ + B_))
        terms = jnp.stack([DD, d * n, of_square, one_, cross_, pair_])
        return values, jax.lax.stop_gradient(terms), jnp.sum(N**2)

    return lambda block: jax.vmap(at_node)(*block[1:])


def _jacobian_at_length(columns: Columns, u2: Array, inverse: Array) -> tuple[Array, Array]:
    values, terms, NN = columns
    rest = 1 - inverse

    def total(parts: Array, sign: int) -> Array:
        DD, DN, of_square, one, cross, pair = parts.T
        mean = rest**2 * DD + (inverse * u2) ** 2 * NN + sign * 2 * rest * inverse * u2 * DN
        single = rest**2 * one + inverse**2 * of_square * NN + sign * 2 * rest * inverse * cross
        return mean + inverse * single + inverse**2 * rest / 2 * pair

    return total(values, -1), total(terms, 1)


def _largest_output(head: AbstractHead, law: _Law) -> Float[Array, ""]:
    """Largest |V b|^2 of an atom: T_L - T_inf is a mean of V b."""
    return jnp.max(jnp.sum((law.centred @ head.V.T) ** 2, axis=1))


def _largest_mean(head: AbstractHead, law: _Law) -> Float[Array, ""]:
    return jnp.sqrt(_largest_output(head, law))


def _largest_jacobian(head: AbstractHead, law: _Law) -> Float[Array, ""]:
    """|V Cov_p - V Cov_inf| is at most 3 max |V b| max |b|."""
    return 9 * _largest_output(head, law) * jnp.max(jnp.sum(law.centred**2, axis=1))


_MEAN = _Form(1, _mean_sums, _mean_at_length, _largest_mean, lambda head: 1)
_MATRIX = _Form(2, _matrix_sums, _matrix_at_length, _largest_output, lambda head: 1)
_OUTPUT = _Form(2, _output_sums, _output_at_length, _largest_output, lambda head: 1)
_JACOBIAN = _Form(
    4,
    _jacobian_sums,
    _jacobian_at_length,
    _largest_jacobian,
    lambda head: head.out_dim * head.dim,
)


@eqx.filter_jit
def _all_sums(
    form: _Form,
    head: AbstractHead,
    atoms: Empirical,
    tilts: Float[Array, "queries d"],
    ends: tuple[Array, Array],
    nodes: int,
) -> _Sums:
    """The sums of every query, stacked; `atoms` is one law, or a law for each query, stacked."""
    ends = jax.lax.stop_gradient(ends)
    if atoms.points.ndim == 2:
        return jax.lax.map(lambda u: _one_token_sums(form, head, atoms, u, ends, nodes), tilts)

    def of_query(pair: tuple[Empirical, Array]) -> _Sums:
        return _one_token_sums(form, head, *pair, ends, nodes)

    return jax.lax.map(of_query, (atoms, tilts))


@eqx.filter_jit
def _integrals(
    form: _Form, sums: _Sums, index: Int[Array, " pairs"], L: Float[Array, " pairs"]
) -> tuple[Float[Array, "pairs ..."], Float[Array, " pairs"]]:
    """The quantity of query index[i] at the length L[i] < inf, and its relative error."""
    numbers = sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(sums))
    size = max(1, min(_BATCH, 2**22 // numbers))

    def one(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        return _integral(form, jax.tree.map(lambda leaf: leaf[pair[0]], sums), pair[1])

    return jax.lax.map(one, (index, L), batch_size=size)


def _certified(value: Any, error: Array | np.ndarray) -> Any:
    """The value; raises where its relative error is too large."""
    known = not isinstance(error, Tracer)
    seen = np.asarray(error) if known else error
    return _checks.require(
        value,
        ~(seen <= _ACCURACY),
        rule=f"the relative error of the Laplace integral must be at most {_ACCURACY:.0e}",
        received=f"{np.max(seen):.1e}" if known else "scores or lengths too wide for the nodes",
        fix="scale the head down, pass fewer decades of lengths at a time, or sample prompts with "
        "method=lp.MonteCarlo(key)",
    )


def _each(
    form: _Form,
    head: AbstractHead,
    atoms: Empirical,
    tilts: Float[Array, "queries d"],
    index: Int[Array, "*shape"],
    L: Float[Array, "*shape"],
) -> Bounded:
    """The quantity, and its error, for every pair of a tilt and a length; 0 at L = infinity."""
    finite = jnp.isfinite(L)
    shortest = jnp.min(L, initial=jnp.inf)
    shortest = jnp.where(jnp.isfinite(shortest), shortest, 2.0)
    L = jnp.where(finite, L, shortest)  # no infinity may reach a derivative
    longest = jnp.max(L, initial=1.0)
    nodes = _ONE_LENGTH if L.size <= 1 else _nodes_for(shortest, longest)
    sums = _all_sums(form, head, _padded(atoms), tilts, (shortest, longest), nodes)
    value, error = _integrals(form, sums, jnp.ravel(index), jnp.ravel(L))
    value = _certified(value, error)
    # the relative error of an entry of a vector or a matrix refers to the largest possible one
    entries = (1,) * (value.ndim - 1)
    scale = jnp.abs(value) if value.ndim == 1 else sums.largest[jnp.ravel(index)]
    error = jnp.broadcast_to((error * scale).reshape(-1, *entries), value.shape)
    shape = (*L.shape, *value.shape[1:])
    kept = finite.reshape(*L.shape, *entries)
    value, error = (jnp.where(kept, a.reshape(shape), 0.0) for a in (value, error))
    return Bounded(value, jax.lax.stop_gradient(error))


def _padded(atoms: Empirical) -> Empirical:
    """Atoms without weight added, so that one program serves laws of similar size."""
    if is_traced(atoms):
        return atoms
    unit = 8 if atoms.n < 64 else 64
    missing = -atoms.n % unit
    points = np.pad(np.asarray(atoms.points), ((0, missing), (0, 0)), mode="edge")
    weights = np.full(atoms.n, -np.log(atoms.n))
    if atoms.log_weights is not None:
        weights = np.asarray(atoms.log_weights)
    weights = np.pad(weights, (0, missing), constant_values=-np.inf).astype(points.dtype)
    return Empirical(points).with_log_weights(jax.device_put(weights))


def _nodes_for(shortest: Array | float, longest: Array | float) -> int:
    """Number of nodes for these lengths: constant up to a ratio of LONGEST, or if not known."""
    if isinstance(longest, Tracer):
        return _MANY_LENGTHS
    beyond = math.log(float(longest) / float(shortest)) / math.log(LONGEST) - 1
    return _MANY_LENGTHS + 256 * max(0, math.ceil(beyond))


def mean(head: AbstractHead, atoms: Empirical, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L."""
    _, tilts, index, L = indexed_pairs(head, atoms, z, L)
    limit, shift = _limit_and_shift(head, atoms, tilts, index, L)
    return Bounded(limit + shift.value, shift.error + _EPSILON * jnp.abs(limit))


def mean_shift(head: AbstractHead, atoms: Empirical, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L - T."""
    _, tilts, index, L = indexed_pairs(head, atoms, z, L)
    return _each(_MEAN, head, atoms, tilts, index, L)


def second_moment(head: AbstractHead, atoms: Empirical, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L T_L'."""
    _, tilts, index, L = indexed_pairs(head, atoms, z, L)
    limit, shift = _limit_and_shift(head, atoms, tilts, index, L)

    def both_ways(a: Array, b: Array) -> Array:
        product = a[..., :, None] * b[..., None, :]
        return product + jnp.swapaxes(product, -1, -2)

    square = limit[..., :, None] * limit[..., None, :]
    around = _each(_MATRIX, head, atoms, tilts, index, L)
    value = square + both_ways(limit, shift.value) + around.value
    error = both_ways(jnp.abs(limit), shift.error) + around.error + 2 * _EPSILON * jnp.abs(square)
    return Bounded(value, error)


def _limit_and_shift(
    head: AbstractHead, atoms: Empirical, tilts: Array, index: Array, L: Array
) -> tuple[Array, Bounded]:
    limit = attend(Head(U=jnp.eye(head.dim), V=head.V), atoms, tilts)[index]
    return limit, _each(_MEAN, head, atoms, tilts, index, L)


def output_error(head: AbstractHead, atoms: Empirical, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |T_L - T|^2."""
    _, tilts, index, L = indexed_pairs(head, atoms, z, L)
    return _each(_OUTPUT, head, atoms, tilts, index, L)


def gradient_error_U(head: AbstractHead, atoms: Empirical, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |dT_L/dU - dT/dU|^2."""
    queries, tilts, index, L = indexed_pairs(head, atoms, z, L)
    found = _each(_JACOBIAN, head, atoms, tilts, index, L)
    square = jnp.sum(queries * queries, axis=-1)[index]
    return Bounded(square * found.value, square * found.error)


def gradient_error_V(head: AbstractHead, atoms: Empirical, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |dT_L/dV - dT/dV|^2: m times the squared error of the mean token."""
    found = output_error(head.reading_tokens(), atoms, z, L)
    return Bounded(head.out_dim * found.value, head.out_dim * found.error)


class LengthErrors(NamedTuple):
    """Squared errors, and the certified relative error of each (at most 1e-9)."""

    value: Float[np.ndarray, "*batch lengths"]
    relative_error: Float[np.ndarray, "*batch lengths"]


class ErrorTable(eqx.Module):
    """Squared errors of a discrete law at all lengths, from sums made once: see `error_table`."""

    sums: _Sums
    factor: Float[Array, " queries"]
    batch: tuple[int, ...] = eqx.field(static=True)
    longest: float = eqx.field(static=True)
    form: _Form = eqx.field(static=True)

    @in_float64
    def at(self, lengths: ArrayInput) -> LengthErrors:
        """The squared errors at `lengths`: known numbers from 1 to `longest`, or infinity.

        Costs a sum over 640 nodes for each query and length, whatever the number of atoms.
        """
        L = length_vector(lengths)
        finite = np.isfinite(L)
        if np.any(finite & (self.longest < L)):
            raise ValueError(
                _checks.message(
                    f"lengths must be at most {self.longest:g}, or infinity",
                    f"{np.max(L[finite]):g}",
                    "pass a larger `longest` to error_table",
                )
            )
        # a multiple of a fixed number of lengths, so that fewer or more of them compile nothing
        padded = np.pad(np.where(finite, L, 1.0), (0, -len(L) % _BATCH), mode="edge")
        queries = len(self.factor)
        index, each = np.repeat(np.arange(queries), len(padded)), np.tile(padded, queries)
        found = _integrals(self.form, self.sums, jnp.asarray(index), jnp.asarray(each))
        value, error = (np.asarray(a).reshape(queries, -1)[:, : len(L)] for a in found)
        value = np.asarray(self.factor)[:, None] * _certified(value, error)
        value, error = (np.where(finite, a, 0.0) for a in (value, error))
        return LengthErrors(*(a.reshape(*self.batch, len(L)) for a in (value, error)))

    def bounded(self, lengths: np.ndarray) -> Bounded:
        """`at`, with absolute errors."""
        found = self.at(lengths)
        return Bounded(found.value, found.value * found.relative_error)


@in_float64
def error_table(
    head: AbstractHead,
    laws: Sequence[Empirical],
    z: ArrayInput,
    of: ErrorOf = "output",
    *,
    longest: float = LONGEST,
) -> ErrorTable:
    """Squared errors of T, dT/dU or dT/dV at the queries z, for any length up to `longest`.

    All sums over atoms happen here, once; `.at(lengths)` then costs microseconds for each query and
    length. The values are those of `output_error` and `gradient_error`.

    **Arguments:** `laws` holds the law of the tokens, or one law for each query, all with the same
    number of atoms.
    `z` of shape (..., d). `of` is "output", "gradient_U" or "gradient_V".

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> from largeprompt.prompts.discrete_tokens import error_table
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> table = error_table(head, [lp.Empirical([[-1.0], [1.0]])], jnp.ones((3, 1)))
    >>> found = table.at([1.0, 100.0, 1e15])
    >>> (found.value.shape, bool(found.relative_error.max() < 1e-12))
    ((3, 3), True)
    """
    longest = _checks.number("longest", longest, "pass for example 1e15", least=1.0)
    queries, batch = queries_of(head, laws[0], z)
    tilts = tilts_of(head, laws[0], queries)
    atoms = _padded(laws[0]) if len(laws) == 1 else _stacked(laws)
    count = len(queries)
    if of == "gradient_V":
        head, factor = head.reading_tokens(), jnp.full(count, float(head.out_dim))
    else:
        squares = jnp.sum(queries * queries, axis=-1)
        factor = squares if of == "gradient_U" else jnp.ones(count)
    form = _JACOBIAN if of == "gradient_U" else _OUTPUT
    ends = (jnp.asarray(1.0), jnp.asarray(longest))
    sums = _all_sums(form, head, atoms, tilts, ends, _nodes_for(1.0, longest))
    return ErrorTable(sums, factor, batch, longest, form)


def _stacked(laws: Sequence[Empirical]) -> Empirical:
    """Laws of as many atoms each, one after the other along a new first axis."""
    weighted = [law.with_log_weights(jnp.log(law.weights)) for law in laws]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *weighted)
