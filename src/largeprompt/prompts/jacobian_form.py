"""Squared error of dT/dU as a Laplace integral of order 4."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Values, fixed, library
from .laplace_integral import ORDER, Block, at_nodes, nodes_for
from .token_laws import NoisyAtoms, TokenLaw, gamma_decay, noisy_atoms

_ROUNDING = 2e-14  # of the sums, relative to the same sums with all terms positive
_SAFETY = 4.0  # the identity sees the errors in other proportions than the quantity does

Columns = tuple[Values, ...]  # with the nodes on the first axis


class Sums(NamedTuple):
    """What the integrals at all lengths need of one query, at every node."""

    step: Values
    log_phi: Values  # (nodes,)
    log_mean: Values  # (nodes,) ln E_t[t e^s]
    columns: Columns
    largest: Values  # |M| / S^4 is at most this, for every prompt
    rounding: Values  # of the scores
    lattice: Values  # relative error of the sums over scores
    log_phi_beyond: Values  # phi_0^L there bounds the prompts that go beyond the last node


def sums_of_query(
    V: Values,
    law: TokenLaw,
    tilt: Values,
    ends: tuple[Values, Values],
    nodes: int | None,
    lattice: int,
) -> Sums:
    """The sums of one query, on nodes for lengths from ends[0] to ends[1]; None: as many nodes as
    needed.
    """
    xp = library(law, tilt)
    seen = noisy_atoms(law, tilt, ends[1], lattice)
    columns_of = _columns(V, seen)
    tau, beyond = nodes_for(seen, ends, nodes)

    def sums(tau: Values) -> tuple[Values, Values, Columns]:
        block, log_phi, log_mean = at_nodes(seen, tau)
        return log_phi, log_mean, columns_of(block)

    # blocks that stay near the cache of a CPU, or fill an accelerator
    room = 2**18 if xp is np else 2**20 if jax.default_backend() == "cpu" else 2**26
    size = max(1, min(len(tau), room // (len(seen.weights) * 2 * V.size)))
    if xp is np:
        parts = [sums(tau[i : i + size]) for i in range(0, len(tau), size)]
        found = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    else:
        blocks = jnp.pad(tau, (0, -len(tau) % size), mode="edge").reshape(-1, size)
        # reverse mode computes the exponentials again rather than keep them
        found = jax.lax.map(jax.checkpoint(sums), blocks)
        found = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[: len(tau)], found)
    largest = fixed(_largest(V, seen))
    log_phi, log_mean, columns = found
    rest = (largest, seen.rounding, seen.step, beyond)
    return Sums(tau[1] - tau[0], log_phi, log_mean, columns, *rest)


def integral(sums: Sums, L: Values) -> tuple[Values, Values]:
    """The squared error at finite lengths, and its relative errors."""
    xp, inverse = library(sums, L), 1 / L[:, None]
    log_weights = ORDER * (sums.log_mean - xp.log(inverse)) + L[:, None] * sums.log_phi
    weights = sums.step / math.factorial(ORDER - 1) * xp.exp(log_weights)
    moments = sums.columns[-1].T
    value, size = (
        (weights * part).sum(1) for part in _at_length(sums.columns, moments[0], inverse)
    )
    unit = (weights * _power_of_total(moments, inverse)).sum(1)
    error = _SAFETY * abs(unit - 1) + gamma_decay(2 * math.pi / sums.step, ORDER) + sums.lattice
    error = error + 2 * ORDER * sums.rounding  # each p_i changes by the factor e^{2 rounding}
    lost = 3 * sums.largest * xp.exp(L * sums.log_phi_beyond) + _ROUNDING * size
    zero = sums.largest == 0  # one atom
    error = error + xp.where(zero, 0.0, lost / xp.where(zero, 1.0, abs(value)))
    return value, fixed(error)


def _power_of_total(moments: Values, inverse: Values) -> Values:
    """E_t (sum_i u_i)^4 / L^4 from the moments E_t u^2, E_t u^3, E_t u^4: its integral is 3!."""
    u2, u3, u4 = moments
    b, c = 1 - inverse, (1 - inverse) * (1 - 2 * inverse)
    two = 4 * u3 + 3 * u2**2
    four = c * (1 - 3 * inverse)
    return inverse**3 * u4 + inverse**2 * b * two + 6 * inverse * c * u2 + four


def _columns(V: Values, law: NoisyAtoms) -> Callable[[Block], Columns]:
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

    Noise n ~ N(0, R) of x given s adds to the moments of y = E[y | s] + n up to order four, with
    W = V'V and h = E[y | s]:

        E y y' = h h' + R,    E |Vy|^2 y = (|Vh|^2 + tr WR) h + 2 R W h,
        E |y|^2 |Vy|^2 = (|h|^2 + tr R) (|Vh|^2 + tr WR) + 4 h'R W h + 2 tr WRR.
    """
    limit = law.weights * law.growth
    xp = library(V, limit)
    W, R = V.T @ V, law.noise
    share = limit / limit.sum()
    C_inf = (law.centred.T * share) @ law.centred
    if law.lattice:
        C_inf = C_inf + law.mean_noise(share)
    N = V @ C_inf
    tr_R, tr_WR, tr_WRR = (
        law.of_noise(matrix.trace(axis1=-2, axis2=-1)) for matrix in (R, W @ R, W @ R @ R)
    )

    def inner(weights: Values, left: Values, right: Values) -> Values:
        """Sums over atoms of weights left right', (block, m, d)."""
        return (left * weights[..., None]).mT @ right

    def of_noise(weights: Values) -> Values:
        """V times the noise covariance summed over atoms, (block, m, d)."""
        return V @ law.mean_noise(weights) if law.lattice else 0.0

    def total_of(weights: Values, values: Values) -> Values:
        """Sums over atoms of weights times values, (block, ...) of (block, atoms, ...)."""
        return (weights[:, None, :] @ values)[:, 0]

    def squared(matrix: Values) -> Values:
        return (matrix**2).sum((-2, -1))

    def columns(block: Block) -> Columns:
        small, u = block.small[:, None, None], block.u()
        weights = law.weights * block.decay / block.total[:, None]
        q, change = (limit * a / block.mean[:, None] for a in (block.decay, block.change))
        uq, uuq = q * u, q * u**2  # weights of E_t[u^2 .] and E_t[u^3 .]
        u2, u3, u4 = uq.sum(-1), uuq.sum(-1), (uuq * u).sum(-1)
        variance = (weights * (u - 1) ** 2).sum(-1)
        squares = u**2 - u2[:, None]
        skew = (weights * (u - 1) * squares).sum(-1)
        of_square = (weights * squares**2).sum(-1)

        def by(vector: Values) -> Values:
            return vector[:, None, None]

        base = xp.where(small, law.centred, _from_heaviest(law.points, q))
        shift = total_of(change, base)
        b = base - shift[:, None, :]  # x - c
        a = b @ V.T
        around = xp.where(small, base, b)
        gram = inner(change, around @ V.T, around) + of_noise(change)
        from_limit = gram - by(change.sum(-1)) * N - (shift @ V.T)[:, :, None] * shift[:, None, :]
        VC = xp.where(small, N + from_limit, gram)
        D = xp.where(small, from_limit, gram - N)
        bb, aa = (b**2).sum(-1), (a**2).sum(-1)
        each = a[..., :, None] * b[..., None, :] - VC[:, None]
        if law.lattice:
            each = each + law.of_noise((V @ R).T).T
        spread = squared(each)
        if law.lattice:
            through = (law.through_noise(R @ W, b) * b).sum(-1)  # b'R W b
            spread = spread + aa * tr_R + bb * tr_WR + 2 * through + tr_WR * tr_R + tr_WRR
        ZZ = (uq * spread).sum(-1)  # E_t |V Z|^2
        uZ = inner(uq, a, b) + of_noise(uq) - by(u2) * VC  # E_t[u V Z]
        uuZ = inner(uuq, a, b) + of_noise(uuq) - by(u3) * VC  # E_t[u^2 V Z]
        DD, DN = squared(D), (D * N).sum((-2, -1))
        one = ZZ + 4 * variance * DD + 4 * (D * uZ).sum((-2, -1))
        cross = (uuZ * N).sum((-2, -1)) + 2 * skew * DN

        y = _from_heaviest(law.points, uq)
        y = y - (total_of(uq, y) / u2[:, None])[:, None, :]
        Vy = y @ V.T
        yy, VyVy = (y**2).sum(-1) + tr_R, (Vy**2).sum(-1) + tr_WR
        B, VB = total_of(q, y), total_of(q, Vy)
        F, uF = inner(q, Vy, y) + of_noise(q), inner(uq, Vy, y) + of_noise(uq)
        p, Vp = total_of(uq, y) - B, total_of(uq, Vy) - VB
        third, other, fourth = VyVy[..., None] * y, yy[..., None] * Vy, yy * VyVy
        if law.lattice:
            RWy = law.through_noise(R @ W, y)
            third = third + 2 * RWy
            other = other + 2 * law.through_noise(V @ R, y)
            fourth = fourth + 4 * (RWy * y).sum(-1) + 2 * tr_WRR
        FB = total_of(uq, third) - (VB[:, None, :] @ F)[:, 0]
        BF = total_of(uq, other) - (F @ B[:, :, None])[..., 0]
        fourth = (uq * fourth).sum(-1)
        # E |B|^2 and E |V B|^2
        BB = (uq * yy).sum(-1) - (B**2).sum(-1)
        VBVB = (uq * VyVy).sum(-1) - (VB**2).sum(-1)
        outer = VB[:, :, None] * B[:, None, :]
        pair = 2 * variance * (fourth - squared(F)) + 2 * squared(uF - F)
        pair = pair + 2 * BB * VBVB + 2 * squared(uF - outer)
        NN = (N**2).sum()
        pair = pair + 4 * variance * (variance * NN - 2 * ((uF - F) * N).sum((-2, -1)))
        pair = pair - 4 * ((p * FB).sum(-1) + (Vp * BF).sum(-1)) + 8 * ((Vp @ N) * p).sum(-1)
        values = xp.stack([DD, DN, of_square, one, cross, pair], axis=1)

        # the same with all terms positive
        def size(matrix: Values) -> Values:
            return xp.sqrt(squared(matrix))

        ab, y_, Vy_ = xp.sqrt((aa + tr_WR) * (bb + tr_R)), xp.sqrt(yy), xp.sqrt(VyVy)
        c, d, f, n = size(VC), size(D), size(F), xp.sqrt(NN)
        B_, VB_ = (q * y_).sum(-1), (q * Vy_).sum(-1)
        uqy, uqVy = (uq * y_).sum(-1), (uq * Vy_).sum(-1)
        uF_ = (uq * y_ * Vy_).sum(-1) + f
        one_ = ZZ + 4 * variance * DD + 4 * d * ((uq * ab).sum(-1) + u2 * c)
        cross_ = ((uuq * ab).sum(-1) + u3 * c) * n + 2 * abs(skew) * d * n
        pair_ = 2 * variance * (fourth + f**2) + 2 * uF_**2
        pair_ = pair_ + 2 * ((uq * yy).sum(-1) + B_**2) * ((uq * VyVy).sum(-1) + VB_**2)
        pair_ = pair_ + 2 * (uF_ + VB_ * B_) ** 2
        pair_ = pair_ + 4 * variance * n * (variance * n + 2 * uF_)
        pair_ = pair_ + 4 * (uqy + B_) * ((uq * VyVy * y_).sum(-1) + VB_ * f)
        rest = (uq * yy * Vy_).sum(-1) + B_ * f + 2 * n * (uqy + B_)
        pair_ = pair_ + 4 * (uqVy + VB_) * rest
        terms = xp.stack([DD, d * n, of_square, one_, cross_, pair_], axis=1)
        return values, fixed(terms), NN + 0 * u2, xp.stack([u2, u3, u4], axis=1)

    return columns


def _at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    """E_t |V M|^2 / (L E_t e^s)^4, and the same with all terms positive, (lengths, nodes)."""
    values, terms, NN, _ = columns
    rest = 1 - inverse

    def total(parts: Values, sign: int) -> Values:
        DD, DN, of_square, one, cross, pair = parts.T
        mean = rest**2 * DD + (inverse * u2) ** 2 * NN + sign * 2 * rest * inverse * u2 * DN
        single = rest**2 * one + inverse**2 * of_square * NN + sign * 2 * rest * inverse * cross
        return mean + inverse * single + inverse**2 * rest / 2 * pair

    return total(values, -1), total(terms, 1)


def _from_heaviest(points: Values, weights: Values) -> Values:
    """Differences to the heaviest atom, at each node: (block, atoms, d).

    Where that atom has nearly all the weight, their weighted mean is tiny and keeps its digits.
    """
    heaviest = fixed(weights).argmax(-1)
    return points - points[heaviest][:, None, :]


def _largest(V: Values, law: NoisyAtoms) -> Values:
    """|V Cov_p - V Cov_inf| is at most 3 max |V b| max |b|, b = x - x_inf."""

    def largest(V: Values) -> Values:
        """Largest E[|V b|^2 | s] of an atom."""
        noise = law.of_noise((V.T @ V * law.noise).sum((-2, -1))) if law.lattice else 0.0
        return (((law.centred @ V.T) ** 2).sum(1) + noise).max()

    return 9 * largest(V) * largest(library(V).eye(V.shape[1]))
