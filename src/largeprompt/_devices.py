"""Computations sharded over the devices of a mesh, in one process or several.

A mesh is a `jax.sharding.Mesh`; its axes are flattened to one row of devices. What is sharded
(tokens of a prompt, replicates, runs) lies along a leading axis, which is padded to a multiple of
the number of devices. Everything else is replicated on every device.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._message import error


def checked_mesh(mesh: Any) -> Mesh:
    """Check that `mesh` is a `jax.sharding.Mesh`."""
    if not isinstance(mesh, Mesh):
        raise error(
            "mesh must be a jax.sharding.Mesh",
            type(mesh).__name__,
            'pass jax.make_mesh((jax.device_count(),), ("devices",)), or None for one device',
        )
    # with axes of type Auto, whatever the types of those passed, so that any array can be sharded
    return Mesh(mesh.devices, mesh.axis_names)


def over(mesh: Mesh) -> PartitionSpec:
    """Partition the leading axis over all devices."""
    return PartitionSpec(tuple(mesh.axis_names))


def padded_size(n: int, mesh: Mesh) -> int:
    """Round `n` up to a multiple of the number of devices."""
    return -(-n // mesh.size) * mesh.size


def padded(tree: Any, mesh: Mesh) -> Any:
    """Pad arrays with copies of their last entry to a multiple of the number of devices."""

    def longer(leaf: Any) -> Any:
        missing = padded_size(len(leaf), mesh) - len(leaf)
        return leaf if not missing else jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, 0)])

    return jax.tree.map(longer, tree)


def run_sharded(
    work: Callable[..., Any],
    mesh: Mesh,
    shared: Any,
    parts: Any,
    *,
    gathered: bool = False,
    compiler_options: tuple[tuple[str, Any], ...] = (),
    **settings: Any,
) -> Any:
    """Run `work(shared, parts, **settings)` on every device with its shard of `parts`.

    Results are sharded along the leading axis like `parts`. With `gathered`, the work ends in a
    collective operation and every device has the whole result. With several processes, each passes
    the same arrays and receives the same results as local arrays. `work` must be a function of a
    module and the settings hashable, so that it is compiled once.
    """
    fixed = tuple(sorted(settings.items()))
    run = _program(compiler_options)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((shared, parts))):
        return run(work, mesh, gathered, fixed, shared, parts)
    whole, piece = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, over(mesh))
    shared = jax.tree.map(lambda leaf: _placed(leaf, whole), shared)
    parts = jax.tree.map(lambda leaf: _placed(leaf, piece), parts)
    found = run(work, mesh, gathered, fixed, shared, parts)
    return found if jax.process_count() == 1 else jax.tree.map(_fetched, found)


@cache
def _program(compiler_options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    names = ("work", "mesh", "gathered", "fixed")
    return jax.jit(_run, static_argnames=names, compiler_options=dict(compiler_options))


def _run(work: Callable, mesh: Mesh, gathered: bool, fixed: tuple, shared: Any, parts: Any) -> Any:
    return jax.shard_map(
        lambda shared, parts: work(shared, parts, **dict(fixed)),
        mesh=mesh,
        in_specs=(PartitionSpec(), over(mesh)),
        out_specs=PartitionSpec() if gathered else over(mesh),
        check_vma=False,  # kernels do not declare what they vary over
    )(shared, parts)


def _placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Put an array on its devices; each process provides the shards of its own devices."""
    if jax.process_count() == 1:
        return jax.device_put(leaf, sharding)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _placed(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _fetched(leaf: jax.Array) -> jax.Array:
    """Gather an array that is sharded over several processes."""
    from jax.experimental import multihost_utils

    if leaf.is_fully_replicated:
        return jnp.asarray(np.asarray(leaf))
    return jnp.asarray(multihost_utils.process_allgather(leaf, tiled=True))
