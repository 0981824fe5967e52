"""The nodes of a Laplace integral at one query, for tokens of atoms and Gaussians.

Atoms x_a with weights w_a and scores s_a = <u, x_a>; S = sum_i e^{s_i} over the L tokens of a
prompt. The Laplace transform 1/S^K = (1/Gamma(K)) int t^{K-1} e^{-tS} dt turns a moment of order K
into one integral over tau = ln t:

    E[M / S^K] = (1/Gamma(K)) int t^K phi_0(t)^L E_t[M] dtau,
    phi_0(t) = sum_a w_a exp(-t e^{s_a}),

M homogeneous of degree K in the e^{s_i}; E_t draws the L tokens iid with weights w_a exp(-t
e^{s_a}) / phi_0. Here K = 4: `jacobian_form` gives M, the squared error of dT/dU. The sums over
atoms behind E_t[M] do not depend on L: they are computed once for each query, on nodes that serve
all lengths. A Gaussian component is a lattice of atoms with independent noise (`token_laws`), over
which E_t[M] is averaged in closed form.

**Nodes.** The integrand of each single prompt is t^K e^{-tS}. So the trapezoidal rule with step h
has the relative error 2 |Gamma(K + 2 pi i/h)| / Gamma(K) for every M >= 0, whatever the atoms
(1e-16 at h = 0.2). This bound and the identity E (sum p)^K = 1 on the same nodes certify the result
at each length. The error of the lattice of scores is known in the same way.

**Cancellation.** A squared error is E_t |M|^2 with M the error itself, a sum of squares around its
mean under E_t; atoms enter as differences to the heaviest one. So an error of 1e-35 keeps its
digits. What still cancels is measured and counted in the relative error, which must not exceed
1e-9.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from .._arrays import Values, fixed, library
from .token_laws import DROP, NoisyAtoms

_MOST_NODES = 1280  # where NumPy needs more, rare prompts are left out
_STEP = 0.22  # of the nodes in tau, or less; more only where even _RARE does not help
_LAST = 50.0  # integrands are cut on the right at tS = 50 for every prompt,
_RARE = 100.0  # or, if the step became too large, but for a part e^-100, counted as error
ORDER = 4


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


def at_nodes(law: NoisyAtoms, tau: Values) -> tuple[Block, Values, Values]:
    """The block, ln phi_0 and ln E_t[t e^s] at nodes t = e^tau."""
    xp = library(law.weights, tau)
    t = xp.exp(tau)
    decay, missing, (total, mean, log_phi), decayed = _decay(law, t)
    small = decayed < 0.5
    origin = xp.exp(xp.where(small, t * law.least, 0.0))
    change = xp.where(small[:, None], missing * origin[:, None], decay)
    return Block(law, decay, change, small, total, mean), log_phi, tau + xp.log(mean / total)


def nodes_for(
    law: NoisyAtoms, ends: tuple[Values, Values], nodes: int | None
) -> tuple[Values, Values]:
    """Nodes tau for lengths from ends[0] to ends[1], and ln phi_0 at half the last t.

    `nodes` None: as many as needed. A prompt needs the nodes up to tS = 50, S between L times the
    smallest growth and L. Cut at t it loses at most 3 e^{-tS/2} of its integral, in the mean
    3 phi_0(t/2)^L.
    """
    xp = library(law.weights, ends)
    law = jax.tree.map(fixed, law)
    low = -xp.log(ends[1]) - DROP / ORDER
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
