"""Prompts of Gaussian tokens, sampled exactly in law from their scores alone.

The output of one head at one query needs only the scores: given standardised scores
g_i = (s_i - <u, m>)/sigma the tokens are x_i = m + (G u / sigma) g_i + residual, the residual
N(0, R) with R = G - G u u'G / sigma^2 independent of the scores. So the weighted sum of the
residuals is one Gaussian of covariance (sum p_i^2) R, and a prompt costs L scalar normals instead
of L d. The sums over tokens are streamed (weighted_sums.py): memory does not depend on L.

Random numbers: token i of prompt r uses the address (key, r, i), so a draw depends on the key and
its index, not on how many are drawn, how they are batched, or where.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Key, UInt32

from .. import _checks, _devices
from .._arrays import to_numpy
from .._float64 import is_traced
from .._lengths import token_count
from .._linalg import psd_sqrt, safe_sqrt, without_slope
from .._typing import Array, ArrayInput, KeyInput
from ..attention import AbstractHead
from ..attention.softmax import queries_of, tilts_of
from ..measures import AbstractMeasure, Gaussian
from .joint_sampling import joint_gradients, joint_outputs
from .normals import counters, normal_pairs, words
from .weighted_sums import Layout, capacity_for, weighted_sums


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def sample_outputs(
    key: KeyInput,
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput,
    L: int,
    n: int,
    *,
    mesh: Mesh | None = None,
) -> Float[Array, "n m"]:
    """`n` independent draws of T_L(z) for Gaussian tokens, exact in law, in the measure's
    precision. A `MultiHead` costs a normal for each token and head.

    **Arguments:** one query `z` of shape (d,), a whole number `L` of tokens (1e8 is fine), the
    number `n` of prompts. With a `mesh` its devices share the prompts: the same draws, key for key.
    Derivatives in the head are those of the draws, except where all scores are equal (U z = 0):
    there they are NaN; differentiate `finite_mean` instead.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> lp.sample_outputs(jax.random.key(0), head, mu, jnp.ones(2), L=1000, n=5).shape
    (5, 2)
    """
    mu, z, L, n = _one_query("sample_outputs", head, mu, z, L, n)
    capacity = capacity_for(L, _SCORES)
    shared = (_checks.key(key), head, mu, z, jnp.asarray(L, jnp.uint32))
    one_part = _outputs if len(head.heads) == 1 else joint_outputs
    return _sampled(one_part, shared, n, mesh, capacity=capacity)


class GradientSamples(NamedTuple):
    """Draws of d<y, T>/dU, shape (n, d, k), and d<y, T>/dV, shape (n, m, d).

    Those of a `MultiHead` have one more axis after the first: the heads.
    """

    U: Float[Array, "n *heads d k"]
    V: Float[Array, "n *heads m d"]


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def sample_gradients(
    key: KeyInput,
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput,
    L: int,
    n: int,
    cotangent: ArrayInput,
    *,
    mesh: Mesh | None = None,
) -> GradientSamples:
    """`n` independent draws of the gradient of <y, T_L(z)> in (U, V), y the `cotangent` of shape
    (m,), exact in law.

    d<y,T>/dU = (sum_i p_i (v_i - v) x_i) z' with v_i = <y, V x_i>, v = sum_i p_i v_i, and d<y,T>/dV
    = y (sum_i p_i x_i)'. Two normals a token: its score, and v_i given the score; the rest is one
    Gaussian a prompt. A `MultiHead` needs two normals for each token and head; the gradients of its
    heads are drawn jointly.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> key, z = jax.random.key(0), jnp.ones(2)
    >>> draws = lp.sample_gradients(key, head, mu, z, 100, 5, cotangent=jnp.ones(2))
    >>> (draws.U.shape, draws.V.shape)
    ((5, 2, 2), (5, 2, 2))
    """
    mu, z, L, n = _one_query("sample_gradients", head, mu, z, L, n)
    y = _checks.shaped("cotangent", _checks.finite("cotangent", cotangent), (head.out_dim,))
    y = _checks.cast("cotangent", y, mu.dtype)
    if not is_traced(head, mu, y):
        along = [to_numpy(one.V).T @ to_numpy(y) for one in head.heads]
        _check_variances("values along the cotangent", along, mu, "V or the cotangent")
    capacity = capacity_for(L, SCORES_AND_VALUES)
    shared = (_checks.key(key), head, mu, z, y, jnp.asarray(L, jnp.uint32))
    one_part = _gradients if len(head.heads) == 1 else joint_gradients
    return GradientSamples(*_sampled(one_part, shared, n, mesh, capacity=capacity))


def _sampled(one_part: Any, shared: tuple, n: int, mesh: Mesh | None, *, capacity: int) -> Any:
    """`one_part(shared, prompts)` for prompts 0, .., n - 1, on one device or on a mesh."""
    if mesh is None:
        return _on_one_device(one_part, shared, n, capacity)
    mesh = _devices.checked_mesh(mesh)
    prompts = jnp.arange(_devices.padded_size(n, mesh), dtype=jnp.uint32)
    found = _devices.run_sharded(one_part, mesh, shared, prompts, capacity=capacity)
    return jax.tree.map(lambda leaf: leaf[:n], found)


@partial(jax.jit, static_argnames=("one_part", "n", "capacity"))
def _on_one_device(one_part: Any, shared: tuple, n: int, capacity: int) -> Any:
    return one_part(shared, jnp.arange(n, dtype=jnp.uint32), capacity=capacity)


def _one_query(
    name: str, head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: int, n: int
) -> tuple[Gaussian, Float[Array, " d"], int, int]:
    queries, batch = queries_of(head, mu, z)
    normal = mu.as_gaussian()
    if normal is None:
        raise _checks.error(
            f"{name} draws scores of Gaussian tokens",
            f"a {type(mu).__name__}",
            "attend to mu.sample(key, L), or average with expect(..., lp.MonteCarlo(key))",
        )
    if batch:
        raise _checks.error(
            f"{name} takes one query of shape ({head.query_dim},)",
            f"z of shape {(*batch, head.query_dim)}",
            "use jax.vmap over the queries, with one key each",
        )
    query = _checks.cast("z", queries[0], mu.dtype)
    check_scores(head, normal, query)
    return normal, query, token_count(L), _checks.count("n", n)


def check_scores(head: AbstractHead, mu: Gaussian, z: Float[Array, " d"]) -> None:
    """Raise if known scores have a variance beyond the type they are drawn in."""
    if not is_traced(head, mu, z):
        tilts = [to_numpy(one.U) @ to_numpy(z) for one in head.heads]
        _check_variances("scores", tilts, mu, "U or z")


def _check_variances(name: str, directions: list[Any], mu: Gaussian, scaled: str) -> None:
    covariance = to_numpy(mu.covariance)
    largest = max(direction @ covariance @ direction for direction in directions)
    if not largest <= jnp.finfo(mu.dtype).max:
        raise _checks.error(
            f"{name} must have a variance in the range of {mu.dtype}, in which they are drawn",
            f"a variance of {largest:.3g}",
            f"scale {scaled} down, or turn on 64-bit mode",
        )


def _score_direction(
    head: AbstractHead, mu: Gaussian, z: Float[Array, " d"]
) -> tuple[Array, Array]:
    """(sigma, G u / sigma): the deviation of a score, and how a token moves with its standardised
    score.

    Where scores do not vary there is no direction, so that derivatives there are NaN.
    """
    tilt = tilts_of(head, mu, z[None])[0]
    pull = jnp.matmul(mu.covariance, tilt, precision="highest")
    flat = jax.lax.stop_gradient((tilt @ pull <= 0) & (jnp.trace(mu.covariance) > 0))
    tilt = without_slope(tilt, flat)
    pull = jnp.matmul(mu.covariance, tilt, precision="highest")
    sigma = safe_sqrt(jnp.maximum(tilt @ pull, 0.0))
    return sigma, jnp.where(sigma > 0, pull / jnp.where(sigma > 0, sigma, 1.0), 0.0)


def _two_scores(g: Array, h: Array):
    """A pair of normals is two tokens: f = (1, g)."""
    return [(s, [jnp.ones_like(s), s]) for s in (g, h)]


def _score_and_value(g: Array, e: Array, cosine: Array, sine: Array):
    """A pair of normals is one token of value cosine g + sine e, a standard normal: f = (1, g, e,
    value).
    """
    return [(g, [jnp.ones_like(g), g, e, cosine * g + sine * e])]


_SCORES = Layout(_two_scores, per_counter=2, first=((0, 0), (0, 1)), second=((0, 0),), native=True)
SCORES_AND_VALUES = Layout(
    _score_and_value,
    per_counter=1,
    first=((0, 0), (0, 1), (0, 2), (3, 1), (3, 2)),
    second=((0, 0), (0, 3), (3, 3)),
    native=True,
)


def polar(alpha: Array, beta: Array) -> tuple[Array, Array, Array]:
    """(scale, cosine, sine) of alpha g + beta e = scale (cosine g + sine e); of 0 all vanish."""
    size = jnp.maximum(jnp.abs(alpha), jnp.abs(beta))
    safe = jnp.where(size > 0, size, 1.0)
    squares = (alpha / safe) ** 2 + (beta / safe) ** 2
    length = safe * jnp.sqrt(jnp.where(size > 0, squares, 1.0))
    return jnp.where(size > 0, length, 0.0), alpha / length, beta / length


class FrameMoments(NamedTuple):
    """Moments of a prompt with values v_i in the plane of g_i and e_i.

    Weighted means of g and e, weighted covariances of v with them, and the coefficients of the
    residual r of a token outside both directions: sum p_i r_i = weight_norm N and
    sum p_i (v_i - v) r_i = slope N + left N' for independent standard normals N and N' (times the
    root of the residual's covariance).
    """

    mean_g: Array
    mean_e: Array
    cov_g: Array
    cov_e: Array
    weight_norm: Array
    slope: Array
    left: Array


def frame_moments(
    first: Float[Array, " 5"], second: Float[Array, " 3"], scale: Array, cosine: Array, sine: Array
) -> FrameMoments:
    """From the sums of `SCORES_AND_VALUES`, made with the same cosine and sine: values are v_i =
    scale (cosine g_i + sine e_i).
    """
    total = first[0]
    _, g, e, vg, ve = first / total
    q, qv, qvv = second / total**2
    v = cosine * g + sine * e
    # the residuals enter both sums with covariance [[sum p^2 (v_i-v)^2, sum p^2 (v_i-v)], [., sum
    # p^2]] times theirs
    weight_norm = jnp.sqrt(q)
    slope = (qv - v * q) / weight_norm
    left = jnp.maximum(qvv - 2 * v * qv + v**2 * q - slope**2, 0.0)
    cov_g, cov_e = vg - v * g, ve - v * e
    return FrameMoments(
        g, e, scale * cov_g, scale * cov_e, weight_norm, scale * slope, scale * jnp.sqrt(left)
    )


def _streams(key: Key[Array, ""]) -> tuple[Array, Array]:
    """Key words of the tokens and of the rest of a prompt."""
    return words(jax.random.fold_in(key, 0)), words(jax.random.fold_in(key, 1))


def _outputs(shared: tuple, prompts: UInt32[Array, " n"], *, capacity: int) -> Float[Array, "n m"]:
    """Outputs of the prompts named."""
    key, head, mu, z, L = shared
    sigma, direction = _score_direction(head, mu, z)
    V = head.V.astype(mu.dtype)
    along = jnp.matmul(V, direction, precision="highest")
    residual = mu.covariance - jnp.outer(direction, direction)
    root = psd_sqrt(
        jnp.matmul(jnp.matmul(V, residual, precision="highest"), V.T, precision="highest")
    )
    centre = jnp.matmul(V, mu.centre, precision="highest")
    for_tokens, for_rest = _streams(key)
    first, second = weighted_sums(for_tokens, prompts, (sigma[None],), L[None], capacity, _SCORES)
    mean_score, y2 = first[:, 1] / first[:, 0], second[:, 0] / first[:, 0] ** 2
    noise, _ = normal_pairs(for_rest, prompts[:, None], counters((1, len(V))), mu.dtype)
    return (
        centre
        + mean_score[:, None] * along
        + jnp.sqrt(y2)[:, None] * jnp.matmul(noise, root, precision="highest")
    )


def _gradients(shared: tuple, prompts: UInt32[Array, " n"], *, capacity: int) -> GradientSamples:
    """Gradients of the prompts named."""
    key, head, mu, z, y, L = shared
    sigma, direction = _score_direction(head, mu, z)
    covector = jnp.matmul(y, head.V.astype(mu.dtype), precision="highest")  # v_i = <covector, x_i>
    residual = mu.covariance - jnp.outer(direction, direction)
    pull = residual @ covector
    beta = safe_sqrt(jnp.maximum(covector @ pull, 0.0))  # deviation of v_i given its score
    second_direction = jnp.where(beta > 0, pull / jnp.where(beta > 0, beta, 1.0), 0.0)
    root = psd_sqrt(residual - jnp.outer(second_direction, second_direction))
    alpha = covector @ direction

    # v_i - <covector, m> = alpha g_i + beta e_i with g_i, e_i independent normals
    for_tokens, for_rest = _streams(key)
    scale, cosine, sine = polar(alpha, beta)
    scales = sigma[None], cosine[None], sine[None]
    sums = weighted_sums(for_tokens, prompts, scales, L[None], capacity, SCORES_AND_VALUES)
    normals = normal_pairs(for_rest, prompts[:, None], counters((1, mu.dim)), mu.dtype)

    def one(
        first: Float[Array, " 5"], second: Float[Array, " 3"], *normals: Float[Array, " d"]
    ) -> tuple[Array, Array]:
        found = frame_moments(first, second, scale, cosine, sine)
        noise = [jnp.matmul(part, root, precision="highest") for part in normals]
        mean = found.mean_g * direction + found.mean_e * second_direction
        mean = mu.centre + mean + found.weight_norm * noise[0]
        moved = found.cov_g * direction + found.cov_e * second_direction
        moved = moved + found.slope * noise[0] + found.left * noise[1]
        return jnp.outer(moved, z), jnp.outer(y, mean)

    return GradientSamples(*jax.vmap(one)(*sums, *normals))
