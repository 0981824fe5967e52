"""Engines that compute tilted moments of given tokens: dense, streamed over blocks, or fused.

All engines return the same `TiltedMoments`. *dense* keeps all scores, queries x tokens, in memory.
*streamed* keeps the scores of one block of tokens and merges the moments of the blocks, so that its
memory does not grow with the number of tokens. *fused* does the same in one kernel, on a GPU
(gpu_kernel.py) or a CPU (_native); without a kernel for the device it falls back to *streamed*.
"""

from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from .. import _checks, _devices, _native
from .._arrays import Values
from .._typing import Array
from ..measures import Empirical, KeyValues, TiltedMoments, tilted_moments

Engine = Literal["auto", "dense", "streamed", "fused"]

_DENSE_SCORES = 2**22  # most scores for which `auto` chooses the dense engine
_BLOCK_SCORES = 2**19  # scores per block of the streamed engine, which stay in the cache
_GPU_BLOCK_SCORES = 2**26  # larger on a GPU, where a block is one launch and must fill the chip
# fewest scores for which `auto` chooses a kernel: below, launching it costs as much as the work
_FUSED_SCORES = {"gpu": 2**20, "cpu": 2**12}


class Tokens(NamedTuple):
    """Points of a prompt and its log weights; with `values` the points are keys only."""

    points: Float[Array, "n d"]
    values: Float[Array, "n v"] | None
    log_weights: Float[Array, " n"] | None


def empirical_moments(
    prompt: Empirical,
    tilts: Float[Array, "q d"],
    *,
    with_cov: bool = False,
    engine: Engine = "auto",
    block_size: int | None = None,
) -> TiltedMoments:
    """Tilted moments of a prompt at q tilts, by the given engine ("auto" chooses by size)."""
    tokens = Tokens(prompt.points, None, prompt.log_weights)
    return _moments(tokens, tilts, with_cov=with_cov, engine=engine, block_size=block_size)


def key_value_moments(
    pair: KeyValues,
    tilts: Float[Array, "q k"],
    *,
    engine: Engine = "auto",
    block_size: int | None = None,
) -> TiltedMoments:
    """Log normaliser and mean value of keys and values at q tilts of the keys.

    The two arrays are read in place.
    """
    tokens = Tokens(pair.keys, pair.values, pair.log_weights)
    return _moments(tokens, tilts, with_cov=False, engine=engine, block_size=block_size)


def mean_by_numpy(
    points: Values, values: Values, log_weights: Values | None, tilts: Values
) -> Values:
    """Mean value at every tilt of the points; NumPy reads the tokens in place."""
    rows = max(1, _DENSE_SCORES // len(points))
    means = np.empty((len(tilts), values.shape[-1]), np.result_type(tilts, values))
    for start in range(0, len(tilts), rows):
        terms = tilts[start : start + rows] @ points.T
        if log_weights is not None:
            terms = terms + log_weights
        terms = np.exp(terms - terms.max(axis=1, keepdims=True))
        total = terms.sum(axis=1, keepdims=True)
        means[start : start + rows] = terms @ values / total
    return means


def _moments(
    tokens: Tokens,
    tilts: Float[Array, "q d"],
    *,
    with_cov: bool,
    engine: Engine,
    block_size: int | None,
) -> TiltedMoments:
    engine, block_size = checked_engine(engine, block_size)
    # for the default device; `_by_kernel` checks again for the device that runs the program
    device, n = jax.default_backend(), len(tokens.points)
    kernel_here = block_size is None and _has_kernel(device, tokens, tilts, with_cov)
    scores = n * len(tilts)
    if engine == "auto" and kernel_here and scores >= _FUSED_SCORES[device]:
        engine = "fused"
    if engine == "auto":
        engine = "dense" if scores <= _DENSE_SCORES and block_size is None else "streamed"
    if engine == "dense":
        points, values, logs = tokens
        return tilted_moments(points, logs, tilts, with_cov=with_cov, values=values)
    block_size = _block(block_size, n, len(tilts))
    if engine == "fused" and kernel_here:
        return _by_kernel(tokens, tilts, with_cov, block_size)
    return _streamed(tokens, tilts, with_cov=with_cov, block_size=block_size)


def _block(block_size: int | None, n: int, queries: int) -> int:
    """Number of tokens in a block of the streamed engine."""
    if block_size is None:
        largest = _GPU_BLOCK_SCORES if jax.default_backend() == "gpu" else _BLOCK_SCORES
        block_size = max(1024, largest // max(1, queries))
    return min(block_size, n)


def checked_engine(engine: Any, block_size: Any) -> tuple[Engine, int | None]:
    """Validate the name of an engine and a block size (or None)."""
    _checks.choice("engine", engine, get_args(Engine))
    return engine, None if block_size is None else _checks.count("block_size", block_size)


def sharded_moments(
    tokens: Tokens,
    tilts: Float[Array, "q d"],
    mesh: Mesh,
    *,
    with_cov: bool = False,
    engine: Engine = "auto",
    block_size: int | None = None,
) -> TiltedMoments:
    """Moments of tokens sharded over a mesh, the shards merged."""
    n = len(tokens.points)
    missing = _devices.padded_size(n, mesh) - n
    if missing:  # pad with tokens of weight 0
        points, values, logs = tokens
        logs = jnp.zeros(n, points.dtype) if logs is None else logs
        logs = jnp.pad(logs, (0, missing), constant_values=-jnp.inf)
        points, values = jax.tree.map(
            lambda array: jnp.pad(array, ((0, missing), (0, 0))), (points, values)
        )
        tokens = Tokens(points, values, logs)
    return _devices.run_sharded(
        _part_of_a_prompt,
        mesh,
        tilts,
        tokens,
        gathered=True,
        axes=tuple(mesh.axis_names),
        with_cov=with_cov,
        engine=engine,
        block_size=block_size,
    )


def _part_of_a_prompt(
    tilts: Float[Array, "q d"], tokens: Tokens, *, axes: tuple[str, ...], **options
) -> TiltedMoments:
    part = _moments(tokens, tilts, **options)
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, axes), part).union()


def _has_kernel(device: str, tokens: Tokens, tilts: Float[Array, "q d"], with_cov: bool) -> bool:
    """Whether the device has a kernel for these tokens and tilts."""
    points, values, _ = tokens
    if device == "gpu":
        from . import gpu_kernel  # imports Pallas, only where it is used

        return gpu_kernel.fits(points, values, len(tilts), with_cov=with_cov)
    read = points if values is None else values
    return device == "cpu" and not with_cov and _native.fits(points, read, tilts)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _by_kernel(
    tokens: Tokens, tilts: Float[Array, "q d"], with_cov: bool, block_size: int
) -> TiltedMoments:
    kernels = {}
    if jax.default_backend() == "gpu" and _has_kernel("gpu", tokens, tilts, with_cov):
        kernels["cuda"] = partial(_on_gpu, with_cov=with_cov)
    if _has_kernel("cpu", tokens, tilts, with_cov):
        kernels["cpu"] = _on_cpu
    streamed = partial(_streamed, with_cov=with_cov, block_size=block_size)
    return jax.lax.platform_dependent(tokens, tilts, **kernels, default=streamed)


def _on_gpu(tokens: Tokens, tilts: Float[Array, "q d"], *, with_cov: bool) -> TiltedMoments:
    from . import gpu_kernel

    return gpu_kernel.fused_moments(*tokens, tilts, with_cov=with_cov)


def _on_cpu(tokens: Tokens, tilts: Float[Array, "q d"]) -> TiltedMoments:
    points, values, logs = tokens
    found = _native.tilted_moments(points, points if values is None else values, logs, tilts)
    return TiltedMoments(*found, None)


@_by_kernel.defjvp
def _by_kernel_jvp(with_cov: bool, block_size: int, primals: tuple, tangents: tuple) -> tuple:
    """Derivatives of a kernel are those of the streamed engine."""
    engine = partial(_streamed, with_cov=with_cov, block_size=block_size)
    return jax.jvp(engine, primals, tangents)


@partial(jax.jit, static_argnames=("with_cov", "block_size"))
def _streamed(
    tokens: Tokens, tilts: Float[Array, "q d"], *, with_cov: bool, block_size: int
) -> TiltedMoments:
    """Merge the moments of whole blocks in a scan, then those of the remainder."""

    def block(start: Array | int, size: int) -> TiltedMoments:
        points, values, logs = jax.tree.map(
            lambda array: jax.lax.dynamic_slice_in_dim(array, start, size), tokens
        )
        return tilted_moments(points, logs, tilts, with_cov=with_cov, values=values)

    whole, remainder = divmod(len(tokens.points), block_size)

    def step(summary: TiltedMoments, index: Array) -> tuple[TiltedMoments, None]:
        return summary.merge(block(index * block_size, block_size)), None

    summary = block(0, block_size)
    if whole > 1:
        summary, _ = jax.lax.scan(step, summary, jnp.arange(1, whole))
    if remainder:
        summary = summary.merge(block(whole * block_size, remainder))
    return summary
