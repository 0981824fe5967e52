"""A finite-prompt average at one query as a Laplace integral, for tokens of atoms and Gaussians.

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
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Values, library
from ..attention import AbstractHead
from .token_laws import DROP, NoisyAtoms, TokenLaw, fixed, gamma_decay, noisy_atoms

_MOST_NODES = 1280  # where NumPy needs more, rare prompts are left out
_STEP = 0.22  # of the nodes in tau, or less; more only where even _RARE does not help
_LAST = 50.0  # integrands are cut on the right at tS = 50 for every prompt,
_RARE = 100.0  # or, if the step became too large, but for a part e^-100, counted as error
_ROUNDING = 2e-14  # of the sums, relative to the same sums with all terms positive
_SAFETY = 4.0  # the identities see the errors in other proportions than the quantities do


class Block(NamedTuple):
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


def _at_nodes(law: NoisyAtoms, tau: Values) -> tuple[Block, Values, Values]:
    """The block, ln phi_0 and ln E_t[t e^s] at nodes t = e^tau."""
    xp = library(law.weights, tau)
    t = xp.exp(tau)
    decay, missing, (total, mean, log_phi), decayed = _decay(law, t)
    small = decayed < 0.5
    origin = xp.exp(xp.where(small, t * law.least, 0.0))
    change = xp.where(small[:, None], missing * origin[:, None], decay)
    return Block(law, decay, change, small, total, mean), log_phi, tau + xp.log(mean / total)


Columns = tuple[Values, ...]  # with the nodes on the first axis


class Form(NamedTuple):
    """A quantity as a Laplace integral of order K."""

    order: int
    # of one query: the function from a block of nodes to the sums needed there
    sums: Callable[[AbstractHead, NoisyAtoms], Callable[[Block], Columns]]
    # (sums, E_t u^2, 1/L) -> E_t[M] / (L E_t e^s)^K, and the same with all terms positive; lengths
    # on the first axis, nodes on the second
    at_length: Callable[[Columns, Values, Values], tuple[Values, Values]]
    largest: Callable[
        [AbstractHead, NoisyAtoms], Values
    ]  # |M| / S^K is at most this, for every prompt
    width: Callable[[AbstractHead], int]  # numbers kept for each atom and node
    entries: Callable[[AbstractHead], tuple[int, ...]]  # shape of the quantity


class Sums(NamedTuple):
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


def one_token_sums(
    form: Form,
    head: AbstractHead,
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
    sums, order = form.sums(head, seen), max(form.order, 2)
    tau, beyond = nodes_for(seen, ends, order, nodes)
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
    return Sums(
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


def nodes_for(
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


def integral(form: Form, sums: Sums, L: Values) -> tuple[Values, Values]:
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
    reference = scale_of(value, sums.largest)
    lost = 3 * sums.largest * xp.exp(L * sums.log_phi_beyond)
    lost = lost + _ROUNDING * size.reshape(len(L), -1).max(1)
    zero = sums.largest == 0  # one atom
    error = error + xp.where(zero, 0.0, lost / xp.where(zero, 1.0, reference))
    return value, fixed(error)


def scale_of(value: Values, largest: Values) -> Values:
    """What relative errors refer to: a squared error itself, the trace of a matrix of squares, and
    the largest possible entry of a vector, all of whose entries may vanish.
    """
    if value.ndim == 1:
        return abs(value)
    return value.trace(axis1=-2, axis2=-1) if value.ndim == 3 else largest + 0 * value[:, 0]


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
