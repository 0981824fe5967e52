"""Softmax attention as an operator on measures, for finite and infinite prompts."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from .. import _checks, _devices
from .._arrays import library
from .._float64 import in_numpy, known_in_float64
from .._typing import Array, ArrayInput
from ..measures import AbstractMeasure, Empirical, KeyValues, TiltedMoments, require_domain
from .engines import (
    Engine,
    Tokens,
    checked_engine,
    empirical_moments,
    key_value_moments,
    mean_by_numpy,
    sharded_moments,
)
from .head import AbstractHead, Head

Result = TypeVar("Result")


@_checks.accepts(head=AbstractHead)
def attend(
    head: AbstractHead,
    measure: AbstractMeasure,
    z: ArrayInput,
    *,
    engine: Engine = "auto",
    block_size: int | None = None,
    mesh: Mesh | None = None,
) -> Float[Array, "*batch m"]:
    """Attention of the queries z to the tokens of `measure`:

    $$T[mu](z) = V E[x e^{<x, U z>}] / E[e^{<x, U z>}] = V grad psi_mu(U z)$$

    (Boursier & Boyer, Sec. 2). On an `Empirical` measure this is softmax attention over its tokens;
    on a `Gaussian` it is V m + V G U z (Lemma 2.1). Keys and values in two arrays are read in place
    (`KeyValues`). Outputs of a `MultiHead` are added. It raises where U z lies outside the domain
    of psi (`measure.in_domain`).

    **Arguments:** `z` of shape (k,) or (..., k). The other arguments concern measures given by
    tokens, such as `Empirical`: `engine` is "dense" (all scores in memory), "streamed" (over
    blocks of `block_size` tokens), "fused" (one kernel) or "auto" (by size and device); a `mesh`
    shards the tokens over its devices. Scores, weights and sums of bfloat16 tokens are float32.

    **Returns:** an array of shape (m,) or (..., m). On a law such as `Gaussian` it is computed in
    float64 and a NumPy array, unless JAX traces it. On tokens it has their precision, and is a
    NumPy array, computed by NumPy, if nothing was passed as a JAX array; kernels and devices serve
    tokens in float32 and JAX arrays.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> print(lp.attend(head, lp.Gaussian(jnp.zeros(2), 2 * jnp.eye(2)), jnp.array([1.0, -1.0])))
    [ 2. -2.]
    """
    engine, block_size = checked_engine(engine, block_size)
    z = checked_queries(head, measure, z)
    options = {"engine": engine, "block_size": block_size, "mesh": mesh}
    first, *others = (_attend(one, measure, z, **options) for one in head.heads)
    return sum(others, start=first)


def of_known_numbers(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function of (head, measure, z, ...) that returns NumPy arrays where its numbers are known.

    On a law it computes in float64. On given tokens it computes in their type, and returns NumPy
    arrays if neither these nor the other arguments are JAX arrays: tokens on a device stay there.
    """
    on_law, on_tokens = known_in_float64(function), in_numpy(function)

    @wraps(function)
    def wrapped(head: Any, measure: AbstractMeasure, *args: Any, **kwargs: Any) -> Result:
        tokens = measure.as_key_values() is not None or measure.as_prompt() is not None
        as_they_are = tokens or _is_float64((head, measure, args))
        return (on_tokens if as_they_are else on_law)(head, measure, *args, **kwargs)

    return wrapped


def _is_float64(tree: Any) -> bool:
    """Whether all leaves are NumPy arrays in float64, which need no conversion."""
    leaves = jax.tree.leaves(tree)
    return all(isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in leaves)


@of_known_numbers
def _attend(
    head: Head,
    measure: AbstractMeasure,
    z: Float[Array, "*batch k"],
    *,
    engine: Engine,
    block_size: int | None,
    mesh: Mesh | None,
) -> Float[Array, "*batch m"]:
    """The output of one head at queries that were checked."""
    pair = measure.as_key_values()
    plain = engine == "auto" and block_size is None and mesh is None
    by_numpy = plain and library(head, measure, z) is np
    if pair is not None and head.splits_at(pair.key_dim):
        if by_numpy:
            tilts = z.reshape(-1, head.query_dim) @ head.U[: pair.key_dim].T
            means = mean_by_numpy(pair.keys, pair.values, pair.log_weights, tilts)
            return (means @ head.V[:, pair.key_dim :].T).reshape(*z.shape[:-1], head.out_dim)
        if mesh is None:
            return _attend_pair(head, pair, z, engine=engine, block_size=block_size)
        return _attend_pair_on_mesh(head, pair, z, mesh, engine=engine, block_size=block_size)
    if mesh is None:
        prompt = measure.as_prompt()
        if prompt is not None and by_numpy:
            tilts = z.reshape(-1, head.query_dim) @ head.U.T
            means = mean_by_numpy(prompt.points, prompt.points, prompt.log_weights, tilts)
            return (means @ head.V.T).reshape(*z.shape[:-1], head.out_dim)
        if prompt is not None:
            return _attend_tokens(head, prompt, z, engine=engine, block_size=block_size)
        normal = measure.as_gaussian() if by_numpy else None
        if normal is not None:  # Lemma 2.1
            tilts = z.reshape(-1, head.query_dim) @ head.U.T
            means = normal.centre + tilts @ normal.covariance
            return (means @ head.V.T).reshape(*z.shape[:-1], head.out_dim)
        return _attend_law(head, measure, inside_domain(head, measure, z))
    queries, options = z.reshape(-1, head.query_dim), {"engine": engine, "block_size": block_size}
    found = read_out(head, _on_mesh(head, measure, queries, mesh, **options).mean)
    return found.reshape(*z.shape[:-1], head.out_dim)


# Compiled, so that a call outside `jit` is one dispatch. All leaves of a prompt are arrays, so that
# plain `jit` works, whose calls cost less than those of `eqx.filter_jit`.
@partial(jax.jit, static_argnames=("engine", "block_size"))
def _attend_tokens(
    head: Head,
    prompt: Empirical,
    z: Float[Array, "*batch k"],
    *,
    engine: Engine,
    block_size: int | None,
) -> Float[Array, "*batch m"]:
    tilts = tilts_of(head, prompt, z.reshape(-1, head.query_dim))
    means = empirical_moments(prompt, tilts, engine=engine, block_size=block_size).mean
    return read_out(head, means).reshape(*z.shape[:-1], head.out_dim)


@partial(jax.jit, static_argnames=("engine", "block_size"))
def _attend_pair(
    head: Head,
    pair: KeyValues,
    z: Float[Array, "*batch k"],
    *,
    engine: Engine,
    block_size: int | None,
) -> Float[Array, "*batch m"]:
    """`_attend_tokens` for a head whose scores need keys only and whose outputs need values."""
    moments = key_value_moments(
        pair, _tilts_of_keys(head, pair, z), engine=engine, block_size=block_size
    )
    return _read_values(head, pair, moments.mean).reshape(*z.shape[:-1], head.out_dim)


def _attend_pair_on_mesh(
    head: Head, pair: KeyValues, z: Float[Array, "*batch k"], mesh: Mesh, **options: Any
) -> Float[Array, "*batch m"]:
    """`_attend_pair` with keys and values sharded over the devices of a mesh."""
    tokens = Tokens(pair.keys, pair.values, pair.log_weights)
    tilts = _tilts_of_keys(head, pair, z)
    means = sharded_moments(tokens, tilts, _devices.checked_mesh(mesh), **options).mean
    return _read_values(head, pair, means).reshape(*z.shape[:-1], head.out_dim)


def _tilts_of_keys(
    head: Head, pair: KeyValues, z: Float[Array, "*batch k"]
) -> Float[Array, "q d_k"]:
    dtype = np.promote_types(pair.dtype, np.float32)
    U, z = _checks.same_dtype(head.U[: pair.key_dim], z)
    return jnp.matmul(z.reshape(-1, head.query_dim), U.T, precision="highest").astype(dtype)


def _read_values(head: Head, pair: KeyValues, means: Float[Array, "q d_v"]) -> Float[Array, "q m"]:
    V, means = _checks.same_dtype(head.V[:, pair.key_dim :], means)
    return jnp.matmul(means, V.T, precision="highest")


@eqx.filter_jit
def _attend_law(
    head: Head, measure: AbstractMeasure, z: Float[Array, "*batch k"]
) -> Float[Array, "*batch m"]:
    means = jax.vmap(measure.tilted_mean)(tilts_of(head, measure, z.reshape(-1, head.query_dim)))
    return read_out(head, means).reshape(*z.shape[:-1], head.out_dim)


def _on_mesh(
    head: Head, measure: AbstractMeasure, queries: Float[Array, "q k"], mesh: Mesh, **options: Any
) -> TiltedMoments:
    """Tilted moments of tokens sharded over the devices of a mesh."""
    mesh = _devices.checked_mesh(mesh)
    prompt = measure.as_prompt()
    if prompt is None:
        raise _checks.error(
            "`mesh` is only supported for measures given by tokens, such as Empirical",
            f"a {type(measure).__name__}",
            "drop `mesh=`",
        )
    tokens = Tokens(prompt.points, None, prompt.log_weights)
    return sharded_moments(tokens, tilts_of(head, measure, queries), mesh, **options)


def read_out(head: AbstractHead, means: Float[Array, "q d"]) -> Float[Array, "q m"]:
    """V x for every row x, in the common dtype."""
    V, means = _checks.same_dtype(head.V, means)
    return jnp.matmul(means, V.T, precision="highest")


class Jacobians(NamedTuple):
    """dT/dU of shape (..., m, d, k) and dT/dV of shape (..., m, m, d).

    Those of a `MultiHead` have one more axis after the batch: the heads.
    """

    U: Float[Array, "*batch m d k"]
    V: Float[Array, "*batch m m d"]


@_checks.accepts(head=AbstractHead)
def attend_jacobians(
    head: AbstractHead,
    measure: AbstractMeasure,
    z: ArrayInput,
    *,
    engine: Engine = "auto",
    block_size: int | None = None,
    mesh: Mesh | None = None,
) -> Jacobians:
    """Derivatives of $T[mu](z)$ in the head's parameters, from the tilted covariance:

    $$dT_a / dU_jk = (V Cov_u)_aj z_k,    dT_a / dV_bj = delta_ab (grad psi(u))_j,    u = U z$$

    (Boursier & Boyer, Sec. 3). Same arguments as `attend`. For a `MultiHead` the derivatives in
    the parameters of each head, stacked on an axis after those of the batch.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), 3 * jnp.eye(1))
    >>> dU, dV = lp.attend_jacobians(head, mu, jnp.array([2.0]))
    >>> print(dU.ravel(), dV.ravel())
    [6.] [6.]
    """
    engine, block_size = checked_engine(engine, block_size)
    queries, batch = queries_of(head, measure, z)
    parts = [_of_head(one, measure, queries, engine, block_size, mesh) for one in head.heads]
    if len(parts) == 1:
        found = parts[0]
    else:
        xp = library(parts)
        found = (xp.stack(part, axis=1) for part in zip(*parts, strict=True))
    return Jacobians(*(part.reshape(*batch, *part.shape[1:]) for part in found))


@of_known_numbers
def _of_head(
    head: Head,
    measure: AbstractMeasure,
    queries: Float[Array, "q k"],
    engine: Engine,
    block_size: int | None,
    mesh: Mesh | None,
) -> Jacobians:
    """The derivatives of the output of one head."""
    if mesh is None:
        queries = inside_domain(head, measure, queries)
        return _attend_jacobians(head, measure, queries, engine, block_size)
    options = {"with_cov": True, "engine": engine, "block_size": block_size}
    moments = _on_mesh(head, measure, queries, mesh, **options)
    assert moments.cov is not None  # for the type checker: requested above
    return _jacobians(head, queries, moments.mean, moments.cov)


@eqx.filter_jit
def _attend_jacobians(
    head: Head,
    measure: AbstractMeasure,
    queries: Float[Array, "q k"],
    engine: Engine,
    block_size: int | None,
) -> Jacobians:
    tilts = tilts_of(head, measure, queries)
    prompt = measure.as_prompt()
    if prompt is not None:
        moments = empirical_moments(
            prompt, tilts, with_cov=True, engine=engine, block_size=block_size
        )
        means, covs = moments.mean, moments.cov
        assert covs is not None  # for the type checker: requested above
    else:
        means = jax.vmap(measure.tilted_mean)(tilts)
        covs = jax.vmap(measure.tilted_cov)(tilts)
    return _jacobians(head, queries, means, covs)


def _jacobians(
    head: Head, queries: Float[Array, "q k"], means: Float[Array, "q d"], covs: Array
) -> Jacobians:
    V, covs, queries = _checks.same_dtype(head.V, covs, queries)
    identity = jnp.eye(head.out_dim, dtype=means.dtype)
    d_u = jnp.einsum("ai,qij,qk->qajk", V, covs, queries, precision="highest")
    return Jacobians(d_u, jnp.einsum("ab,qj->qabj", identity, means))


def tilts_of(
    head: AbstractHead, measure: AbstractMeasure, queries: Float[Array, "q k"]
) -> Float[Array, "q d"]:
    """U z for every query, in the precision of the measure but at least float32."""
    U, queries = _checks.same_dtype(head.U, queries)
    dtype = np.promote_types(measure.dtype, np.float32)
    return jnp.matmul(queries, U.T, precision="highest").astype(dtype)


def inside_domain(
    head: AbstractHead, measure: AbstractMeasure, z: Float[Array, "*batch k"]
) -> Float[Array, "*batch k"]:
    """Return the queries, or raise if E e^{<x, Uz>} is infinite at one of them."""
    if not measure.finite_everywhere:
        for one in head.heads:
            z = require_domain(
                measure, "U z", tilts_of(one, measure, z.reshape(-1, head.query_dim)), z
            )
    return z


def queries_of(
    head: AbstractHead, measure: AbstractMeasure, z: ArrayInput
) -> tuple[Float[Array, "q k"], tuple[int, ...]]:
    """Validate the queries and flatten them to (q, k); also returns the shape of the batch."""
    z = checked_queries(head, measure, z)
    return z.reshape(-1, head.query_dim), z.shape[:-1]


def checked_queries(
    head: AbstractHead, measure: AbstractMeasure, z: ArrayInput
) -> Float[Array, "*batch k"]:
    """Validate the queries: an array that fits the head, and a measure that does."""
    _checks.kind("measure", measure, AbstractMeasure)
    if measure.dim != head.dim:
        raise _checks.error(
            "head and measure must have the same dimension d",
            f"a head of dimension {head.dim} and a measure of dimension {measure.dim}",
            "make U of shape (d, k) with the d of the tokens, "
            "or map the tokens with measure.affine(A)",
        )
    z = _checks.finite("z", z)
    if z.ndim == 0 or z.shape[-1] != head.query_dim:
        raise _checks.error(
            f"z must have shape (..., {head.query_dim}), the dimension of the head's queries",
            f"shape {z.shape}",
            "put the coordinates of a query on the last axis",
        )
    return z
