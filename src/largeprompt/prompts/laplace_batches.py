"""Squared errors of dT/dU at many queries and lengths, with certified errors.

Sums over atoms do not depend on L: they are computed once for each query, on nodes that serve all
lengths. Known numbers are computed by NumPy, traced ones by JAX.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _checks
from .._arrays import Values, fixed
from .._float64 import is_traced
from .gaussian_tokens import Bounded
from .jacobian_form import Sums, integral, sums_of_query
from .token_laws import TRACED, TokenLaw, lattice_size

LONGEST = 1e15
_ONE_LENGTH, _MANY_LENGTHS = 384, 640  # nodes for one length, and for lengths from 1 to LONGEST
_ACCURACY = 1e-9  # largest relative error that is returned
_BATCH = 64  # pairs of query and length that are integrated at once


def known_sums(V: np.ndarray, law: TokenLaw, tilt: np.ndarray, ends: tuple[float, float]) -> Sums:
    """The sums of one query for known numbers, for lengths from ends[0] to ends[1]."""
    lattice = lattice_size(law, tilt[None], ends[1])
    with np.errstate(all="ignore"):
        return sums_of_query(V, law, tilt, (np.float64(ends[0]), ends[1]), None, lattice)


def known_integrals(sums: Sums, L: np.ndarray) -> np.ndarray:
    """The squared error at finite lengths, and its relative error: an array (2, lengths)."""
    with np.errstate(all="ignore"):
        parts = [integral(sums, L[i : i + _BATCH]) for i in range(0, len(L), _BATCH)]
    return np.concatenate(parts, axis=1)


@eqx.filter_jit
def _compiled(
    V: Values,
    law: TokenLaw,
    tilts: Values,
    index: np.ndarray,
    L: Values,
    ends: tuple[Values, Values],
    nodes: int,
) -> tuple[Values, Values]:
    """The squared error, and its relative error, of query index[i] at the length L[i]."""
    ends, lattice = jax.lax.stop_gradient(ends), TRACED if law.means.shape[0] else 0
    sums = jax.lax.map(lambda tilt: sums_of_query(V, law, tilt, ends, nodes, lattice), tilts)
    numbers = sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(sums))

    def one(pair: tuple[Values, Values]) -> tuple[Values, Values]:
        found = integral(jax.tree.map(lambda leaf: leaf[pair[0]], sums), pair[1][None])
        return found[0][0], found[1][0]

    size = max(1, min(_BATCH, 2**22 // numbers))
    return jax.lax.map(one, (jnp.asarray(index), L), batch_size=size)


def certified(value: Any, error: Values, widest: Callable[[], float] | None = None) -> Any:
    """The value; raises where its relative error is too large.

    For known numbers the message says how far the scores of the tokens are apart, `widest()`:
    outliers among them are the usual reason.
    """
    received = "scores or lengths too wide for the nodes"
    if widest is not None and not np.all(error <= _ACCURACY):
        received = f"{np.max(error):.1e} for tokens whose scores differ by {widest():.3g}"
    return _checks.require(
        value,
        ~(error <= _ACCURACY),
        rule=f"the relative error of the Laplace integral must be at most {_ACCURACY:.0e}",
        received=received,
        fix="remove tokens that are outliers, scale the head down, pass fewer decades of lengths "
        "at a time, or sample prompts with method=lp.MonteCarlo(key)",
    )


def jacobian_errors(
    V: Values, law: TokenLaw, tilts: Values, which: np.ndarray, L: Values
) -> Bounded:
    """E |V (Cov_p - Cov_inf)|^2 and its error, of tilts[which] at L; 0 at L = infinity."""
    traced = is_traced(V, law, tilts, L)
    xp = jnp if traced else np
    finite, shape, index = xp.isfinite(L), L.shape, np.ravel(which)
    shortest = xp.min(L, initial=xp.inf)
    shortest = xp.where(xp.isfinite(shortest), shortest, 2.0)
    L = xp.ravel(xp.where(finite, L, shortest))  # no infinity may reach a derivative
    ends = (shortest, xp.max(L, initial=1.0))
    if traced:
        nodes = _ONE_LENGTH if L.size <= 1 else _number_of_nodes(*ends)
        value, error = _compiled(V, law, tilts, index, L, ends, nodes)
    else:
        value, error = np.zeros((2, L.size))
        for query in np.unique(index):
            here = np.flatnonzero((index == query) & finite.ravel())
            if len(here):
                sums = known_sums(V, law, tilts[query], (float(ends[0]), float(ends[1])))
                value[here], error[here] = known_integrals(sums, L[here])
    value = certified(value, error, None if traced else lambda: law.widest_scores(tilts))
    value, error = (xp.where(finite, a.reshape(shape), 0.0) for a in (value, abs(value) * error))
    return Bounded(value, fixed(error))


def _number_of_nodes(shortest: Values, longest: Values) -> int:
    """Number of nodes for these lengths: constant up to a ratio of LONGEST, or if not known."""
    if isinstance(longest, Tracer):
        return _MANY_LENGTHS
    beyond = math.log(float(longest) / float(shortest)) / math.log(LONGEST) - 1
    return _MANY_LENGTHS + 256 * max(0, math.ceil(beyond))
