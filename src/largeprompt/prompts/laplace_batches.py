"""Laplace integrals of many queries at many lengths, with certified errors.

Sums over atoms do not depend on L: they are computed once for each query, on nodes that serve all
lengths. Known numbers are computed by NumPy, unless there are very many of them; traced ones by
JAX.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _checks
from .._arrays import Values, library, to_jax, to_numpy
from .._float64 import is_traced
from ..attention import AbstractHead
from .gaussian_tokens import Bounded
from .laplace_integral import Form, Sums, integral, nodes_for, one_token_sums, scale_of
from .token_laws import TRACED, TokenLaw, fixed, lattice_size, noisy_atoms

LONGEST = 1e15
_ONE_LENGTH, _MANY_LENGTHS = 384, 640  # nodes for one length, and for lengths from 1 to LONGEST
_ACCURACY = 1e-9  # largest relative error that is returned
BATCH = 64  # pairs of query and length that are integrated at once
# numbers beyond which a compiled program is worth its compilation: for atoms, and for mixtures,
# where NumPy takes as many scores and nodes as each query needs
_BY_NUMPY = {"atoms": 2**26, "mixtures": 2**29}


@eqx.filter_jit
def _compiled_sums(
    form: Form,
    head: AbstractHead,
    law: TokenLaw,
    tilts: Values,
    ends: tuple[Values, Values],
    nodes: int,
    lattice: int,
) -> Sums:
    """The sums of every query, stacked; `law` is one law, or a law for each query, stacked."""
    ends = jax.lax.stop_gradient(ends)

    def of_query(pair: tuple[TokenLaw, Values]) -> Sums:
        return one_token_sums(form, head, *pair, ends, nodes, lattice)

    if law.points.ndim == 2:
        return jax.lax.map(lambda u: of_query((law, u)), tilts)
    return jax.lax.map(of_query, (law, tilts))


def all_sums(
    form: Form,
    head: AbstractHead,
    laws: Sequence[TokenLaw],
    tilts: Values,
    ends: tuple[Values, Values],
    one_length: bool,
) -> tuple[Sums, ...] | Sums:
    """The sums of every query, for one law of tokens or one for each query.

    By NumPy, query by query, or by JAX, stacked.
    """
    if is_traced(head, laws, tilts, ends):
        nodes = _ONE_LENGTH if one_length else _number_of_nodes(*ends)
        lattice = TRACED if laws[0].means.shape[0] else 0
        return _compiled_sums(form, head, _one_law(laws), tilts, ends, nodes, lattice)
    head, laws, tilts = to_numpy((head, laws, tilts))
    sizes = [lattice_size(law, tilts, float(ends[1])) for law in laws]
    atoms = max(
        law.points.shape[0] + law.means.shape[0] * size
        for law, size in zip(laws, sizes, strict=True)
    )
    nodes = _ONE_LENGTH if one_length else _number_of_nodes(*ends)
    numbers = nodes * atoms * (4 + form.width(head)) * len(tilts)
    if numbers > _BY_NUMPY["mixtures" if max(sizes) else "atoms"]:
        lattice = -(-max(sizes) // 64) * 64
        if lattice:
            widest = tilts[np.argmax((tilts**2).sum(-1))]
            seen = noisy_atoms(laws[0], widest, ends[1], lattice)
            nodes = max(nodes, len(nodes_for(seen, ends, max(form.order, 2), None)[0]))
        law = _one_law([_padded(law) for law in laws])
        head, law, tilts, ends = to_jax((head, law, tilts, ends))
        return _compiled_sums(form, head, law, tilts, ends, nodes, lattice)
    with np.errstate(all="ignore"):
        each = laws if len(laws) == len(tilts) else list(laws) * len(tilts)
        return tuple(
            one_token_sums(
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
def _compiled_integrals(form: Form, sums: Sums, index: Values, L: Values) -> tuple[Values, Values]:
    numbers = sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(sums))
    size = max(1, min(BATCH, 2**22 // numbers))

    def one(pair: tuple[Values, Values]) -> tuple[Values, Values]:
        found = integral(form, jax.tree.map(lambda leaf: leaf[pair[0]], sums), pair[1][None])
        return found[0][0], found[1][0]

    return jax.lax.map(one, (index, L), batch_size=size)


def integrals(
    form: Form, sums: tuple[Sums, ...] | Sums, index: Values, L: Values
) -> tuple[Values, Values]:
    """The quantity of query index[i] at the length L[i] < inf, and its relative error."""
    if isinstance(sums, Sums):
        return _compiled_integrals(form, sums, jnp.asarray(index), jnp.asarray(L))
    places, found = [], []
    with np.errstate(all="ignore"):
        for i, each in enumerate(sums):
            here = np.flatnonzero(index == i)
            for start in range(0, len(here), BATCH):
                places.append(here[start : start + BATCH])
                found.append(integral(form, each, L[places[-1]]))
    order = np.argsort(np.concatenate(places)) if places else []
    value, error = (np.concatenate(part)[order] for part in zip(*found, strict=True))
    return value, error


def certified(value: Any, error: Values, widest: Callable[[], float]) -> Any:
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


def widest_scores(law: TokenLaw, tilts: Values) -> float:
    """The largest difference of the scores of two atoms, at any tilt; nan if not known."""
    if is_traced(law, tilts):
        return math.nan
    scores = np.asarray(law.points)[np.asarray(law.point_weights) > 0] @ np.asarray(tilts).T
    return float(np.max(np.ptp(scores, axis=0), initial=0.0)) if len(scores) else 0.0


def averages_of(
    form: Form, head: AbstractHead, law: TokenLaw, tilts: Values, index: np.ndarray, L: Values
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
    sums = all_sums(form, head, [law], tilts, ends, one_length=L.size <= 1)
    which = np.ravel(index)
    value, error = integrals(form, sums, which, xp.ravel(L))
    value = certified(value, error, lambda: widest_scores(law, tilts))
    xp = library(value)
    entries = (1,) * (value.ndim - 1)
    largest = sums.largest if isinstance(sums, Sums) else np.array([s.largest for s in sums])
    scale = scale_of(value, largest[which])
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


def _number_of_nodes(shortest: Values, longest: Values) -> int:
    """Number of nodes for these lengths: constant up to a ratio of LONGEST, or if not known."""
    if isinstance(longest, Tracer):
        return _MANY_LENGTHS
    beyond = math.log(float(longest) / float(shortest)) / math.log(LONGEST) - 1
    return _MANY_LENGTHS + 256 * max(0, math.ceil(beyond))
