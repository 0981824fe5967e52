"""Exact finite-prompt quantities for iid tokens of atoms and Gaussians: a vocabulary, embeddings, a
Gaussian mixture.

Atoms x_a with weights w_a and scores s_a = <u, x_a>; S = sum_i e^{s_i} over the L tokens of a
prompt. The Laplace transform 1/S^K = (1/Gamma(K)) int t^{K-1} e^{-tS} dt turns a moment of order K
into one integral over tau = ln t:

    E[M / S^K] = (1/Gamma(K)) int t^K phi_0(t)^L E_t[M] dtau,
    phi_0(t) = sum_a w_a exp(-t e^{s_a}),

M homogeneous of degree K in the e^{s_i}; E_t draws the L tokens iid with weights w_a exp(-t
e^{s_a}) / phi_0. The sums over atoms behind E_t[M] do not depend on L: they are computed once for
each query, on nodes that serve all lengths. A Gaussian component is a lattice of atoms with
independent noise (`token_laws`), over which E_t[M] is averaged in closed form.

**Nodes.** The integrand of each single prompt is t^K e^{-tS}. So the trapezoidal rule with step h
has the relative error 2 |Gamma(K + 2 pi i/h)| / Gamma(K) for every M >= 0, whatever the atoms
(1e-16 at h = 0.2). This bound and the identity E (sum p)^K = 1 on the same nodes certify the result
at each length. The error of the lattice of scores is known in the same way.

**Cancellation.** A squared error is E_t |M|^2 with M the error itself, a sum of squares around its
mean under E_t; atoms enter as differences to the heaviest one. So an error of 1e-35 keeps its
digits. What still cancels (in the error of dT/dU alone) is measured and counted in the relative
error, which must not exceed 1e-9.

Known numbers are computed by NumPy, unless there are very many of them; traced ones by JAX.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from .. import _checks
from .._arrays import Values, library, to_jax, to_numpy
from .._float64 import in_float64, is_traced
from .._lengths import length_vector
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from .gaussian_tokens import Bounded
from .pairs import indexed_pairs
from .token_laws import (
    DROP,
    TRACED,
    NoisyAtoms,
    TokenLaw,
    fixed,
    gamma_decay,
    lattice_size,
    noisy_atoms,
    token_law,
)

LONGEST = 1e15
_ONE_LENGTH, _MANY_LENGTHS = 384, 640  # nodes for one length, and for lengths from 1 to LONGEST
_MOST_NODES = 1280  # where NumPy needs more, rare prompts are left out
_STEP = 0.22  # of the nodes in tau, or less; more only where even _RARE does not help
_LAST = 50.0  # integrands are cut on the right at tS = 50 for every prompt,
_RARE = 100.0  # or, if the step became too large, but for a part e^-100, counted as error
_ACCURACY = 1e-9  # largest relative error that is returned
_EPSILON = 2.0**-52
_ROUNDING = 2e-14  # of the sums, relative to the same sums with all terms positive
_SAFETY = 4.0  # the identities see the errors in other proportions than the quantities do
_BATCH = 64  # pairs of query and length that are integrated at once
# numbers beyond which a compiled program is worth its compilation: for atoms, and for mixtures,
# where NumPy takes as many scores and nodes as each query needs
_BY_NUMPY = {"atoms": 2**26, "mixtures": 2**29}

ErrorOf = Literal["output", "gradient_U", "gradient_V"]


def _from_heaviest(points: Values, weights: Values) -> Values:
    """Differences to the heaviest atom, at each node: (block, atoms, d).

    Where that atom has nearly all the weight, their weighted mean is tiny and keeps its digits.
    """
    heaviest = fixed(weights).argmax(-1)
    return points - points[heaviest][:, None, :]


class _Block(NamedTuple):
    """All atoms at a block of nodes t. Softmax weighs a token by u = e^s / E_t e^s.

    Sums over atoms are products of `decay`, or `change`, with what belongs to the atoms: one matrix
    product for a block.
    """

    law: NoisyAtoms
    decay: Values  # (block, atoms) exp(-t e^s) relative to the slowest, which does not underflow
    # decay; but where it has changed little its difference to t = 0, by expm1: a sum E_t[u f] that
    # vanishes at t = 0 is then as small as its terms
    change: Values
    small: Values  # (block,) whether it is the difference
    total: Values  # (block,) the sum of w decay,
    mean: Values  # and of w e^s decay

    def u(self) -> Values:
        """Softmax weights relative to their mean under E_t; 0 for tokens that have decayed."""
        xp = library(self.decay)
        ratio = self.law.growth * (self.total / self.mean)[:, None]
        return xp.where(self.decay > 0, ratio, 0.0)

    def moment(self, power: int, values: Values) -> Values:
        """E_t[u^power values]."""
        if self.law.lattice:  # scores of a wide range, whose powers leave that of float64
            return (
                self.law.weights * self.decay / self.total[:, None] * self.u() ** power
            ) @ values
        weights = self.law.weights * self.law.growth**power
        scale = (self.total / self.mean) ** power / self.total  # in an order that stays in range
        found = self.decay @ (weights * values.T).T
        return (scale * found.T).T

    def shift(self, values: Values) -> Values:
        """E_t[u values] of values whose E_0[u values] is 0."""
        weights = self.law.weights * self.law.growth
        return self.change @ (weights[:, None] * values) / self.mean[:, None]


def _decay(law: NoisyAtoms, t: Values) -> tuple[Values, Values, Values, Values]:
    """exp(-t (e^s - least)), expm1(-t e^s), the sums (w decay, w e^s decay, ln phi_0), and the
    share of E_0[e^s] that has decayed.
    """
    xp = library(law.weights, t)
    decay = xp.exp(-t[:, None] * (law.growth - law.least))
    missing = xp.expm1(-t[:, None] * law.growth)
    pair = xp.stack([law.weights, law.weights * law.growth], axis=1)
    total, mean = (decay @ pair).T
    tail, decayed = (-missing @ pair).T
    near = tail < 0.5  # ln phi_0 is multiplied by L: it needs full relative accuracy at small t
    far = xp.log(total) - t * law.least
    log_phi = xp.where(near, xp.log1p(-xp.where(near, tail, 0.5)), far)
    return decay, missing, xp.stack([total, mean, log_phi]), decayed / xp.sum(pair[:, 1])


def _at_nodes(law: NoisyAtoms, tau: Values) -> tuple[_Block, Values, Values]:
    """The block, ln phi_0 and ln E_t[t e^s] at nodes t = e^tau."""
    xp = library(law.weights, tau)
    t = xp.exp(tau)
    decay, missing, (total, mean, log_phi), decayed = _decay(law, t)
    small = decayed < 0.5
    origin = xp.exp(xp.where(small, t * law.least, 0.0))
    change = xp.where(small[:, None], missing * origin[:, None], decay)
    return _Block(law, decay, change, small, total, mean), log_phi, tau + xp.log(mean / total)


Columns = tuple[Values, ...]  # with the nodes on the first axis


class _Form(NamedTuple):
    """A quantity as a Laplace integral of order K."""

    order: int
    # of one query: the function from a block of nodes to the sums needed there
    sums: Callable[[AbstractHead, NoisyAtoms], Callable[[_Block], Columns]]
    # (sums, E_t u^2, 1/L) -> E_t[M] / (L E_t e^s)^K, and the same with all terms positive; lengths
    # on the first axis, nodes on the second
    at_length: Callable[[Columns, Values, Values], tuple[Values, Values]]
    largest: Callable[
        [AbstractHead, NoisyAtoms], Values
    ]  # |M| / S^K is at most this, for every prompt
    width: Callable[[AbstractHead], int]  # numbers kept for each atom and node
    entries: Callable[[AbstractHead], tuple[int, ...]]  # shape of the quantity


class _Sums(NamedTuple):
    """What the integrals at all lengths need of one query, at every node."""

    step: Values
    log_phi: Values  # (nodes,)
    log_mean: Values  # (nodes,) ln E_t[t e^s]
    moments: Values  # (nodes, powers) E_t u^k for k = 2, ..., max(K, 2)
    columns: Columns
    largest: Values
    rounding: Values  # of the scores
    lattice: Values  # relative error of the sums over scores
    log_phi_beyond: Values  # phi_0^L there bounds the prompts that go beyond the last node


def _one_token_sums(
    form: _Form,
    head: AbstractHead,
    law: TokenLaw,
    tilt: Values,
    ends: tuple[Values, Values],
    nodes: int | None,
    lattice: int,
) -> _Sums:
    """The sums of one query, on nodes for lengths from ends[0] to ends[1]; None: as many nodes as
    needed.
    """
    xp = library(law, tilt)
    seen = noisy_atoms(law, tilt, ends[1], lattice)
    sums, order = form.sums(head, seen), max(form.order, 2)
    tau, beyond = _window(seen, ends, order, nodes)
    count = seen.weights.shape[0]

    def at_nodes(tau: Values) -> tuple[Values, Values, Values, Columns]:
        block, log_phi, log_mean = _at_nodes(seen, tau)
        ones = xp.ones(count)
        moments = xp.stack([block.moment(k, ones) for k in range(2, order + 1)], axis=1)
        return log_phi, log_mean, moments, sums(block)

    # blocks that stay near the cache of a CPU, or fill an accelerator
    room = 2**18 if xp is np else 2**20 if jax.default_backend() == "cpu" else 2**26
    size = max(1, min(len(tau), room // (count * form.width(head))))
    if xp is np:
        parts = [at_nodes(tau[i : i + size]) for i in range(0, len(tau), size)]
        found = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    else:
        blocks = jnp.pad(tau, (0, -len(tau) % size), mode="edge").reshape(-1, size)
        # reverse mode computes the exponentials again rather than keep them
        found = jax.lax.map(jax.checkpoint(at_nodes), blocks)
        found = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[: len(tau)], found)
    log_phi, log_mean, moments, columns = found
    return _Sums(
        step=tau[1] - tau[0],
        log_phi=log_phi,
        log_mean=log_mean,
        moments=moments,
        columns=columns,
        largest=fixed(form.largest(head, seen)),
        rounding=seen.rounding,
        lattice=xp.asarray(seen.step[0 if order == 2 else 1]),
        log_phi_beyond=beyond,
    )


def _window(
    law: NoisyAtoms, ends: tuple[Values, Values], order: int, nodes: int | None
) -> tuple[Values, Values]:
    """Nodes tau for lengths from ends[0] to ends[1], and ln phi_0 at half the last t.

    A prompt needs the nodes up to tS = 50, S between L times the smallest growth and L. Cut at t it
    loses at most 3 e^{-tS/2} of its integral, in the mean 3 phi_0(t/2)^L.
    """
    xp = library(law.weights, ends)
    law = jax.tree.map(fixed, law)
    # the integrand of a mean, E_t[u f] with E_0[u f] = 0, is of order 2 at small t
    low = -xp.log(ends[1]) - DROP / order
    full = math.log(_LAST) - xp.log(ends[0]) - xp.log(law.least)

    def log_phi(tau: Values) -> Values:
        return _decay(law, xp.exp(tau)[None] / 2)[2][2, 0]

    def bisect(_: Any, bounds: tuple[Values, Values]) -> tuple[Values, Values]:
        middle = (bounds[0] + bounds[1]) / 2
        rare = ends[0] * log_phi(middle) < -_RARE
        return xp.where(rare, bounds[0], middle), xp.where(rare, middle, bounds[1])

    # NumPy takes as many nodes as needed, and leaves out rare prompts where errors are not tiny
    if nodes is None and not law.lattice and full <= low + _STEP * _MOST_NODES:
        count = 2 + int((full - low) / _STEP)
        return np.linspace(low, full, count), np.float64(-np.inf)
    bounds = (low, full)
    if nodes is None:
        for i in range(10):
            bounds = bisect(i, bounds)
        nodes = 2 + int(min((bounds[1] - low) / _STEP, _MOST_NODES))
    else:
        bounds = jax.lax.fori_loop(0, 10, bisect, bounds)
    high = xp.minimum(full, xp.maximum(bounds[1], low + _STEP * (nodes - 1)))
    return xp.linspace(low, high, nodes), xp.where(high < full, log_phi(high), -xp.inf)


def _integral(form: _Form, sums: _Sums, L: Values) -> tuple[Values, Values]:
    """The quantity at finite lengths, and its relative errors."""
    xp, column = library(sums, L), L[:, None]

    def rule(order: int) -> Values:
        """Weights at the nodes of the integral of order K, for each length."""
        log_weights = order * (sums.log_mean + xp.log(column)) + column * sums.log_phi
        return sums.step / math.factorial(order - 1) * xp.exp(log_weights)

    def integrated(values: Values, weights: Values) -> Values:
        weights = weights.reshape(weights.shape + (1,) * (values.ndim - 2))
        return (weights * values).sum(1)

    parts = form.at_length(sums.columns, sums.moments[:, 0], 1 / column)
    value, size = (integrated(part, rule(form.order)) for part in parts)
    checked = max(form.order, 2)
    unit = (rule(checked) * _power_of_total(sums.moments.T, 1 / column)).sum(1)
    error = _SAFETY * abs(unit - 1) + gamma_decay(2 * math.pi / sums.step, checked) + sums.lattice
    error = error + 2 * checked * sums.rounding  # each p_i changes by the factor e^{2 rounding}
    # a squared error is positive; entries of a vector or a matrix may vanish
    reference = value if value.ndim == 1 else sums.largest + 0 * unit
    lost = 3 * sums.largest * xp.exp(L * sums.log_phi_beyond)
    lost = lost + _ROUNDING * size.reshape(len(L), -1).max(1)
    zero = sums.largest == 0  # one atom
    error = error + xp.where(zero, 0.0, lost / xp.where(zero, 1.0, reference))
    return value, fixed(error)


def _power_of_total(moments: Values, inverse: Values) -> Values:
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


def _squares(law: NoisyAtoms, V: Values) -> Values:
    """E[V b b' V' | s], b = x - x_inf, for each atom: (atoms, m, m)."""
    values = law.centred @ V.T
    squares = values[:, :, None] * values[:, None, :]
    return squares + law.of_noise((V @ law.noise @ V.T).T).T if law.lattice else squares


def _mean_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[_Block], Columns]:
    """E_t[u V b]."""
    values = law.centred @ head.V.T
    return lambda block: (block.shift(values),)


def _matrix_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[_Block], Columns]:
    """E_t[u V b] and E_t[u^2 V b b' V']."""
    values, m = law.centred @ head.V.T, head.out_dim
    squares = _squares(law, head.V).reshape(-1, m * m)
    return lambda block: (block.shift(values), block.moment(2, squares).reshape(-1, m, m))


def _output_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[_Block], Columns]:
    """|E_t[u V b]|^2 and E_t |u V b|^2."""
    values = law.centred @ head.V.T
    squares = (values**2).sum(1)
    if law.lattice:
        W = head.V.T @ head.V
        squares = squares + law.of_noise((W * law.noise).sum((-2, -1)))
    return lambda block: ((block.shift(values) ** 2).sum(1), block.moment(2, squares))


def _mean_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    return columns[0][None], abs(columns[0])[None]


def _matrix_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    mean, second = columns
    inverse = inverse[..., None, None]
    value = inverse * second + (1 - inverse) * mean[:, :, None] * mean[:, None, :]
    return value, abs(value)


def _output_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    square, second = columns
    value = inverse * second + (1 - inverse) * square
    return value, value


def _jacobian_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[_Block], Columns]:
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
    V, limit = head.V, law.weights * law.growth
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

    def columns(block: _Block) -> Columns:
        small, u = block.small[:, None, None], block.u()
        weights = law.weights * block.decay / block.total[:, None]
        q, change = (limit * a / block.mean[:, None] for a in (block.decay, block.change))
        uq, uuq = q * u, q * u**2  # weights of E_t[u^2 .] and E_t[u^3 .]
        u2, u3 = uq.sum(-1), uuq.sum(-1)
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
        return values, fixed(terms), NN + 0 * u2

    return columns


def _jacobian_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    values, terms, NN = columns
    rest = 1 - inverse

    def total(parts: Values, sign: int) -> Values:
        DD, DN, of_square, one, cross, pair = parts.T
        mean = rest**2 * DD + (inverse * u2) ** 2 * NN + sign * 2 * rest * inverse * u2 * DN
        single = rest**2 * one + inverse**2 * of_square * NN + sign * 2 * rest * inverse * cross
        return mean + inverse * single + inverse**2 * rest / 2 * pair

    return total(values, -1), total(terms, 1)


def _largest_output(head: AbstractHead, law: NoisyAtoms) -> Values:
    """Largest E[|V b|^2 | s] of an atom: T_L - T_inf is a mean of V b."""
    return _square(law, head.V).max()


def _square(law: NoisyAtoms, V: Values) -> Values:
    """E[|V b|^2 | s] for each atom."""
    noise = law.of_noise((V.T @ V * law.noise).sum((-2, -1))) if law.lattice else 0.0
    return ((law.centred @ V.T) ** 2).sum(1) + noise


def _largest_mean(head: AbstractHead, law: NoisyAtoms) -> Values:
    return _largest_output(head, law) ** 0.5


def _largest_jacobian(head: AbstractHead, law: NoisyAtoms) -> Values:
    """|V Cov_p - V Cov_inf| is at most 3 max |V b| max |b|."""
    identity = library(head.V).eye(head.dim)
    return 9 * _largest_output(head, law) * _square(law, identity).max()


_MEAN = _Form(
    1, _mean_sums, _mean_at_length, _largest_mean, lambda head: 1, lambda head: (head.out_dim,)
)
_MATRIX = _Form(
    2,
    _matrix_sums,
    _matrix_at_length,
    _largest_output,
    lambda head: 1,
    lambda head: (head.out_dim, head.out_dim),
)
_OUTPUT = _Form(
    2, _output_sums, _output_at_length, _largest_output, lambda head: 1, lambda head: ()
)
_JACOBIAN = _Form(
    4,
    _jacobian_sums,
    _jacobian_at_length,
    _largest_jacobian,
    lambda head: 2 * head.out_dim * head.dim,
    lambda head: (),
)


@eqx.filter_jit
def _compiled_sums(
    form: _Form,
    head: AbstractHead,
    law: TokenLaw,
    tilts: Values,
    ends: tuple[Values, Values],
    nodes: int,
    lattice: int,
) -> _Sums:
    """The sums of every query, stacked; `law` is one law, or a law for each query, stacked."""
    ends = jax.lax.stop_gradient(ends)

    def of_query(pair: tuple[TokenLaw, Values]) -> _Sums:
        return _one_token_sums(form, head, *pair, ends, nodes, lattice)

    if law.points.ndim == 2:
        return jax.lax.map(lambda u: of_query((law, u)), tilts)
    return jax.lax.map(of_query, (law, tilts))


def _all_sums(
    form: _Form,
    head: AbstractHead,
    laws: Sequence[TokenLaw],
    tilts: Values,
    ends: tuple[Values, Values],
    one_length: bool,
) -> tuple[_Sums, ...] | _Sums:
    """The sums of every query, for one law of tokens or one for each query.

    By NumPy, query by query, or by JAX, stacked.
    """
    if is_traced(head, laws, tilts, ends):
        nodes = _ONE_LENGTH if one_length else _nodes_for(*ends)
        lattice = TRACED if laws[0].means.shape[0] else 0
        return _compiled_sums(form, head, _one_law(laws), tilts, ends, nodes, lattice)
    head, laws, tilts = to_numpy((head, laws, tilts))
    sizes = [lattice_size(law, tilts, float(ends[1])) for law in laws]
    atoms = max(
        law.points.shape[0] + law.means.shape[0] * size
        for law, size in zip(laws, sizes, strict=True)
    )
    nodes = _ONE_LENGTH if one_length else _nodes_for(*ends)
    numbers = nodes * atoms * (4 + form.width(head)) * len(tilts)
    if numbers > _BY_NUMPY["mixtures" if max(sizes) else "atoms"]:
        lattice = -(-max(sizes) // 64) * 64
        if lattice:
            widest = tilts[np.argmax((tilts**2).sum(-1))]
            seen = noisy_atoms(laws[0], widest, ends[1], lattice)
            nodes = max(nodes, len(_window(seen, ends, max(form.order, 2), None)[0]))
        law = _one_law([_padded(law) for law in laws])
        head, law, tilts, ends = to_jax((head, law, tilts, ends))
        return _compiled_sums(form, head, law, tilts, ends, nodes, lattice)
    with np.errstate(all="ignore"):
        each = laws if len(laws) == len(tilts) else list(laws) * len(tilts)
        return tuple(
            _one_token_sums(
                form, head, law, u, ends, None, lattice_size(law, u[None], float(ends[1]))
            )
            for law, u in zip(each, tilts, strict=True)
        )


def _one_law(laws: Sequence[TokenLaw]) -> TokenLaw:
    """One law, or several with as many atoms each, one after the other along a new first axis."""
    if len(laws) == 1:
        return laws[0]
    return jax.tree.map(lambda *leaves: library(*leaves).stack(leaves), *laws)


@eqx.filter_jit
def _compiled_integrals(
    form: _Form, sums: _Sums, index: Values, L: Values
) -> tuple[Values, Values]:
    numbers = sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(sums))
    size = max(1, min(_BATCH, 2**22 // numbers))

    def one(pair: tuple[Values, Values]) -> tuple[Values, Values]:
        found = _integral(form, jax.tree.map(lambda leaf: leaf[pair[0]], sums), pair[1][None])
        return found[0][0], found[1][0]

    return jax.lax.map(one, (index, L), batch_size=size)


def _integrals(
    form: _Form, sums: tuple[_Sums, ...] | _Sums, index: Values, L: Values
) -> tuple[Values, Values]:
    """The quantity of query index[i] at the length L[i] < inf, and its relative error."""
    if isinstance(sums, _Sums):
        return _compiled_integrals(form, sums, jnp.asarray(index), jnp.asarray(L))
    places, found = [], []
    with np.errstate(all="ignore"):
        for i, each in enumerate(sums):
            here = np.flatnonzero(index == i)
            for start in range(0, len(here), _BATCH):
                places.append(here[start : start + _BATCH])
                found.append(_integral(form, each, L[places[-1]]))
    order = np.argsort(np.concatenate(places)) if places else []
    value, error = (np.concatenate(part)[order] for part in zip(*found, strict=True))
    return value, error


def _certified(value: Any, error: Values, widest: Callable[[], float]) -> Any:
    """The value; raises where its relative error is too large.

    The message says how far the scores of the tokens are apart, `widest()`: outliers among them are
    the usual reason.
    """
    received = "scores or lengths too wide for the nodes"
    if not isinstance(error, Tracer) and not np.all(np.asarray(error) <= _ACCURACY):
        received = f"{np.max(error):.1e} for tokens whose scores differ by {widest():.3g}"
    return _checks.require(
        value,
        ~(error <= _ACCURACY),
        rule=f"the relative error of the Laplace integral must be at most {_ACCURACY:.0e}",
        received=received,
        fix="remove tokens that are outliers, scale the head down, pass fewer decades of lengths "
        "at a time, or sample prompts with method=lp.MonteCarlo(key)",
    )


def _widest(law: TokenLaw, tilts: Values) -> float:
    """The largest difference of the scores of two atoms, at any tilt; nan if not known."""
    if is_traced(law, tilts):
        return math.nan
    scores = np.asarray(law.points)[np.asarray(law.point_weights) > 0] @ np.asarray(tilts).T
    return float(np.max(np.ptp(scores, axis=0), initial=0.0)) if len(scores) else 0.0


def _each(
    form: _Form, head: AbstractHead, law: TokenLaw, tilts: Values, index: np.ndarray, L: Values
) -> Bounded:
    """The quantity, and its error, for every pair of a tilt and a length; 0 at L = infinity."""
    xp = library(L)
    finite = xp.isfinite(L)
    if xp is np and not finite.any():
        nothing = np.zeros((*L.shape, *form.entries(head)))
        return Bounded(nothing, nothing)
    shortest = xp.min(L, initial=xp.inf)
    shortest = xp.where(xp.isfinite(shortest), shortest, 2.0)
    L = xp.where(finite, L, shortest)  # no infinity may reach a derivative
    ends = (shortest, xp.max(L, initial=1.0))
    sums = _all_sums(form, head, [law], tilts, ends, one_length=L.size <= 1)
    which = np.ravel(index)
    value, error = _integrals(form, sums, which, xp.ravel(L))
    value = _certified(value, error, lambda: _widest(law, tilts))
    xp = library(value)
    # the relative error of an entry of a vector or a matrix refers to the largest possible one
    entries = (1,) * (value.ndim - 1)
    largest = sums.largest if isinstance(sums, _Sums) else np.array([s.largest for s in sums])
    scale = abs(value) if value.ndim == 1 else largest[which]
    error = xp.broadcast_to((error * scale).reshape(-1, *entries), value.shape)
    shape = (*L.shape, *value.shape[1:])
    kept = finite.reshape((*L.shape, *entries))
    value, error = (xp.where(kept, a.reshape(shape), 0.0) for a in (value, error))
    return Bounded(value, fixed(error))


def _padded(law: TokenLaw) -> TokenLaw:
    """Atoms without weight added, so that one program serves laws of similar size."""
    count = law.points.shape[0]
    missing = -count % (8 if count < 64 else 64)
    if not missing:
        return law
    points = np.pad(law.points, ((0, missing), (0, 0)), mode="edge")
    weights = np.pad(law.point_weights, (0, missing))
    return TokenLaw(points, weights, law.means, law.covariances, law.weights)


def _nodes_for(shortest: Values, longest: Values) -> int:
    """Number of nodes for these lengths: constant up to a ratio of LONGEST, or if not known."""
    if isinstance(longest, Tracer):
        return _MANY_LENGTHS
    beyond = math.log(float(longest) / float(shortest)) / math.log(LONGEST) - 1
    return _MANY_LENGTHS + 256 * max(0, math.ceil(beyond))


class _Asked(NamedTuple):
    """Law, queries and lengths of a call: in NumPy if they are known."""

    head: AbstractHead
    law: TokenLaw
    queries: Values
    tilts: Values
    which: np.ndarray
    L: Values

    def average(self, form: _Form) -> Bounded:
        return _each(form, self.head, self.law, self.tilts, self.which, self.L)

    def limit(self) -> Values:
        """T at every pair of a query and a length."""
        if is_traced(self.law, self.tilts):
            means = jax.vmap(self.law.tilted_mean)(self.tilts)
        else:
            means = np.stack([self.law.tilted_mean(tilt) for tilt in self.tilts])
        return (means @ self.head.V.T)[self.which]


def _by_library(function: Callable[[_Asked], Bounded]) -> Callable[..., Bounded]:
    """The function of (head, mu, z, L), by NumPy if all numbers are known and by JAX otherwise."""

    def wrapped(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
        pairs = indexed_pairs(head, mu, z, L)
        law = needed_law(mu)
        if not is_traced(head, law, *pairs):
            head, law = to_numpy((head, law))
            return to_jax(function(_Asked(head, law, *pairs)))
        with jax.default_matmul_precision("highest"):
            head, law, queries, tilts, L = to_jax((head, law, *pairs[:2], pairs.L))
            return function(_Asked(head, law, queries, tilts, pairs.which, L))

    return wrapped


def needed_law(mu: AbstractMeasure) -> TokenLaw:
    """The law of the tokens as atoms and Gaussians, which it must be."""
    law = token_law(mu)
    assert law is not None  # callers ask only where it is known
    return law


@_by_library
def mean(asked: _Asked) -> Bounded:
    """E T_L."""
    limit, shift = asked.limit(), asked.average(_MEAN)
    return Bounded(limit + shift.value, shift.error + _EPSILON * abs(limit))


@_by_library
def mean_shift(asked: _Asked) -> Bounded:
    """E T_L - T."""
    return asked.average(_MEAN)


@_by_library
def second_moment(asked: _Asked) -> Bounded:
    """E T_L T_L'."""
    limit, shift = asked.limit(), asked.average(_MEAN)

    def both_ways(a: Values, b: Values) -> Values:
        product = a[..., :, None] * b[..., None, :]
        return product + product.mT

    square = limit[..., :, None] * limit[..., None, :]
    around = asked.average(_MATRIX)
    value = square + both_ways(limit, shift.value) + around.value
    error = both_ways(abs(limit), shift.error) + around.error + 2 * _EPSILON * abs(square)
    return Bounded(value, error)


@_by_library
def output_error(asked: _Asked) -> Bounded:
    """E |T_L - T|^2."""
    return asked.average(_OUTPUT)


@_by_library
def gradient_error_U(asked: _Asked) -> Bounded:
    """E |dT_L/dU - dT/dU|^2."""
    found = asked.average(_JACOBIAN)
    square = (asked.queries**2).sum(-1)[asked.which]
    return Bounded(square * found.value, square * found.error)


def gradient_error_V(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |dT_L/dV - dT/dV|^2: m times the squared error of the mean token."""
    found = output_error(head.reading_tokens(), mu, z, L)
    return Bounded(head.out_dim * found.value, head.out_dim * found.error)


class LengthErrors(NamedTuple):
    """Squared errors, and the certified relative error of each (at most 1e-9)."""

    value: Float[np.ndarray, "*batch lengths"]
    relative_error: Float[np.ndarray, "*batch lengths"]


class ErrorTable(eqx.Module):
    """Squared errors of a discrete law at all lengths, from sums made once: see `error_table`."""

    sums: tuple[_Sums, ...] | _Sums
    factor: Float[np.ndarray, " queries"]
    batch: tuple[int, ...] = eqx.field(static=True)
    longest: float = eqx.field(static=True)
    form: _Form = eqx.field(static=True)
    widest: float = eqx.field(static=True)  # difference of the scores of two tokens

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
        padded = np.where(finite, L, 1.0)
        if isinstance(self.sums, _Sums):
            # a multiple of a fixed number of lengths: fewer or more of them compile nothing
            padded = np.pad(padded, (0, -len(L) % _BATCH), mode="edge")
        queries = len(self.factor)
        index, each = np.repeat(np.arange(queries), len(padded)), np.tile(padded, queries)
        found = _integrals(self.form, self.sums, index, each)
        value, error = (np.asarray(a).reshape(queries, -1)[:, : len(L)] for a in found)
        value = self.factor[:, None] * _certified(value, error, lambda: self.widest)
        value, error = (np.where(finite, a, 0.0) for a in (value, error))
        return LengthErrors(*(a.reshape(*self.batch, len(L)) for a in (value, error)))

    def bounded(self, lengths: np.ndarray) -> Bounded:
        """`at`, with absolute errors."""
        found = self.at(lengths)
        return Bounded(found.value, found.value * found.relative_error)


@in_float64
def error_table(
    head: AbstractHead,
    laws: Sequence[AbstractMeasure],
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
    queries, tilts, which, _ = indexed_pairs(head, laws[0], z, 1.0)
    batch, count = which.shape, len(queries)
    if of == "gradient_V":
        head, factor = head.reading_tokens(), np.full(count, float(head.out_dim))
    else:
        factor = (queries**2).sum(-1) if of == "gradient_U" else np.ones(count)
    form = _JACOBIAN if of == "gradient_U" else _OUTPUT
    known, ends = [needed_law(law) for law in laws], (np.float64(1.0), np.float64(longest))
    sums = _all_sums(form, to_numpy(head), known, tilts, ends, one_length=False)
    widest = max(_widest(law, tilts) for law in known)
    return ErrorTable(sums, factor, batch, longest, form, widest)
