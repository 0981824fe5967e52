"""`engine` for traced arguments: the same averages of one head in JAX, under jit, vmap and grad.

Averages over the scores of a Gaussian component are functions of the mean c and the variance v of
its scores; their derivatives are averages of the same kind,

    dB_j/dc = j B_j - B_{j+1},    dB_j/dv = (1/2) d^2 B_j/dc^2,

so that derivatives exist where scores do not vary, too.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays import Values, fixed
from .engine import DROP, LARGEST, LAST, RARE, TAIL, Sums, with_sizes
from .token_laws import TRACED, TokenLaw, gamma_decay, lattice_error, reach_of_scores

ONE_LENGTH, MANY_LENGTHS = 384, 640  # nodes of ln t
AT_ONCE = 2**20  # nodes times scores in memory
# Gaussian components one after the other. More, and several queries, go through `lax.map`, in which
# JAX loses the rule below in forward over reverse mode: second derivatives where scores do not vary
# are NaN there.
FEW = 4


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def averages(most: int, tau: Array, centre: Array, variance: Array, longest: Array) -> Array:
    """E[1 - e^-e], E[e (e^-e - 1)] and B_0, ..., B_most at nodes, stacked, for scores N(c, v)."""
    sigma = jnp.sqrt(variance)
    x = jnp.linspace(-TAIL, reach_of_scores(sigma, longest), TRACED)
    mass = jnp.exp(-(x**2) / 2)
    return _at_nodes(most, tau, centre + sigma * x, mass / mass.sum())


@averages.defjvp
def _averages_jvp(most: int, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    _, centre, variance = tangents[:3]
    tail, gone, *B = averages(most + 3, *primals)
    first = [B[1], gone - B[2]] + [j * B[j] - B[j + 1] for j in range(most + 1)]
    second = [B[1] - B[2], gone - 3 * B[2] + B[3]]
    second += [j * j * B[j] - (2 * j + 1) * B[j + 1] + B[j + 2] for j in range(most + 1)]
    value = jnp.stack([tail, gone, *B[: most + 1]])
    return value, centre * jnp.stack(first) + variance / 2 * jnp.stack(second)


def _at_nodes(most: int, tau: Array, scores: Array, columns: Array) -> Array:
    """Sums over scores of the functions of `averages` times columns, (most + 3, nodes, ...)."""

    @jax.checkpoint  # reverse mode computes the exponentials again rather than keep them
    def block(tau: Array) -> Array:
        e = jnp.exp(jnp.minimum(tau[:, None] + scores, LARGEST))
        powers = [jnp.exp(-e)]
        for _ in range(most):
            powers.append(powers[-1] * e)
        gone = jnp.expm1(-e)
        return jnp.stack([function @ columns for function in (-gone, e * gone, *powers)], axis=1)

    size = max(1, min(len(tau), AT_ONCE // len(scores)))
    padded = jnp.pad(tau, (0, -len(tau) % size), mode="edge").reshape(-1, size)
    found = jax.lax.map(block, padded)
    return jnp.moveaxis(found.reshape(-1, *found.shape[2:])[: len(tau)], 0, 1)


def _sums(
    law: TokenLaw, tilt: Array, V: Array, ends: tuple[Array, Array], nodes: int, trace: bool
) -> Sums:
    k, n = len(law.weights), len(law.point_weights)
    pull = law.covariances @ tilt
    variance = pull @ tilt
    variance = variance + fixed(jnp.maximum(-variance, 0.0))  # rounding, not the derivatives
    centre, scores = law.means @ tilt, law.points @ tilt
    weights = jnp.concatenate([law.weights, law.point_weights])
    exponents = jnp.concatenate([centre + variance / 2, scores])
    log_weights = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1.0)), -jnp.inf)
    log_gate = log_weights + exponents
    log_mass = jax.nn.logsumexp(log_gate)
    gate = jnp.exp(log_gate - log_mass)
    values = jnp.concatenate([law.means + pull, law.points])
    from_heaviest = values - values[jnp.argmax(fixed(gate))]
    start = (from_heaviest - gate @ from_heaviest) @ V.T  # of the tilted parts, less x_inf
    pulls = pull @ V.T
    sigma = fixed(jnp.sqrt(variance))
    tau = _nodes(fixed(law), fixed(centre), sigma, fixed(scores), fixed(log_mass), ends, nodes)
    phi, tail, mass, square = jnp.zeros((4, nodes))
    near, near_size, far, far_size = jnp.zeros((4, nodes, len(V)))
    second, second_size = jnp.zeros((2, nodes, *(() if trace else (len(V), len(V)))))

    def product(a: Array, b: Array) -> Array:
        return (a * b).sum(-1) if trace else a[..., :, None] * b[..., None, :]

    def times(values: Array, matrices: Array) -> Array:
        return jnp.tensordot(values.T, matrices, 1)

    if k:
        if k <= FEW:
            found = jnp.stack([averages(4, tau, centre[i], variance[i], ends[1]) for i in range(k)])
        else:
            found = jax.lax.map(lambda at: averages(4, tau, *at, ends[1]), (centre, variance))
        tails, gone, b0, b1, b2, b3, b4 = (found * law.weights[:, None, None]).swapaxes(0, 1)
        change, a = times(b2, pulls), start[:k]
        near, near_size = times(gone, a) - change, times(-gone, abs(a)) + abs(change)
        far, far_size = times(b1, a) - change, times(b1, abs(a)) + abs(change)
        c = a - pulls
        cov = V @ law.covariances @ V.T
        cross = product(c, pulls) + product(pulls, c)
        for of_scores, matrices in (
            (b2, product(c, c) + (jnp.trace(cov, axis1=-2, axis2=-1) if trace else cov)),
            (2 * b2 - b3, cross),
            (4 * b2 - 5 * b3 + b4, product(pulls, pulls)),
        ):
            second = second + times(of_scores, matrices)
            second_size = second_size + times(abs(of_scores), abs(matrices))
        phi, tail, mass, square = b0.sum(0), tails.sum(0), b1.sum(0), b2.sum(0)
    if n:
        w, a = law.point_weights[:, None], start[k:]
        squares = product(a, a).reshape(n, -1)
        m = len(V)
        columns = jnp.concatenate([w, w * a, w * abs(a), w * squares, w * abs(squares)], axis=1)
        t, g, e0, e1, e2 = _at_nodes(2, tau, scores, columns)
        phi, tail, mass, square = phi + e0[:, 0], tail + t[:, 0], mass + e1[:, 0], square + e2[:, 0]
        near, far = near + g[:, 1 : 1 + m], far + e1[:, 1 : 1 + m]
        near_size = near_size - g[:, 1 + m : 1 + 2 * m]
        far_size = far_size + e1[:, 1 + m : 1 + 2 * m]
        of_squares, positive = jnp.split(e2[:, 1 + 2 * m :], 2, axis=1)
        second = second + of_squares.reshape(second.shape)
        second_size = second_size + positive.reshape(second.shape)
    is_near = (mass > 0.5 * jnp.exp(jnp.minimum(tau + log_mass, LARGEST)))[:, None]
    small = tail < 0.5
    log_phi = jnp.where(
        small,
        jnp.log1p(-jnp.where(small, tail, 0.5)),
        jnp.log(jnp.maximum(jnp.where(small, 1.0, phi), 1e-300)),
    )
    step = tau[1] - tau[0]
    x_step = (reach_of_scores(sigma, ends[1]) + TAIL) / (TRACED - 1)
    relative = gamma_decay(2 * math.pi / step, 2)
    relative = relative + (lattice_error(sigma, x_step, 2) if k else 0.0)
    magnitude = jnp.concatenate([law.means, law.points])
    rounding = 2.0**-52 * (jnp.max(abs(magnitude) @ abs(tilt)) + jnp.max(sigma, initial=0.0) ** 2)
    first, size = jnp.where(is_near, near, far), jnp.where(is_near, near_size, far_size)
    sums = (first, size, second, second_size, relative + 4 * rounding)
    return Sums(step, log_phi, mass, square, *sums, largest=0.0)


def _nodes(
    law: TokenLaw,
    centre: Array,
    sigma: Array,
    scores: Array,
    log_mass: Array,
    ends: tuple[Array, Array],
    count: int,
) -> Array:
    """Nodes of ln t, as `engine.nodes_of`; a fixed number of them."""
    reach = reach_of_scores(sigma, ends[1])
    present = law.point_weights > 0
    heavy = [centre + sigma * jnp.minimum(reach, 2 * sigma + TAIL), scores]
    heavy = jnp.max(
        jnp.where(jnp.concatenate([sigma >= 0, present]), jnp.concatenate(heavy), -jnp.inf)
    )
    lowest = jnp.concatenate([centre - TAIL * sigma, jnp.where(present, scores, jnp.inf)])
    low = -jnp.maximum(jnp.log(ends[1]) + log_mass, heavy) - DROP / 2
    high = math.log(LAST) - jnp.log(ends[0]) - jnp.min(lowest)

    def is_rare(tau: Array) -> Array:
        tail = jnp.zeros(())
        tau = (tau - math.log(2))[None]
        if len(centre):
            at = (centre, sigma**2)
            found = jax.lax.map(lambda one: averages(0, tau, *one, ends[1]), at)
            tail = tail + law.weights @ found[:, 0, 0]
        if len(scores):
            tail = tail + _at_nodes(0, tau, scores, law.point_weights[:, None])[0, 0, 0]
        return ends[0] * jnp.log1p(-jnp.minimum(tail, 1 - 1e-16)) < -RARE

    def bisect(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (bounds[0] + bounds[1]) / 2
        rare = is_rare(middle)
        return jnp.where(rare, bounds[0], middle), jnp.where(rare, middle, bounds[1])

    below = jax.lax.fori_loop(0, 12, bisect, (low, high))[1]
    return jnp.linspace(low, jnp.where(is_rare(high), below, high), count)


@eqx.filter_jit
def moments(
    law: TokenLaw, tilts: Array, V: Array, which: Values, L: Array, *, trace: bool
) -> tuple[Array, Array, Array, Array, Array]:
    """`with_sizes` at the query of index which[i] and the finite length L[i]."""
    ends = fixed(jnp.min(L)), fixed(jnp.max(L))
    nodes = ONE_LENGTH if len(L) == 1 else MANY_LENGTHS
    if len(tilts) == 1:
        one = _sums(law, tilts[0], V, ends, nodes, trace)
        every = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], one)
    else:
        every = jax.lax.map(lambda tilt: _sums(law, tilt, V, ends, nodes, trace), tilts)

    def at(pair: tuple[Array, Array]) -> tuple[Array, ...]:
        sums = jax.tree.map(lambda leaf: leaf[pair[0]], every)
        *found, relative = (part[0] for part in with_sizes(sums, pair[1][None]))
        return *found, fixed(relative)

    return jax.lax.map(at, (which, L))
