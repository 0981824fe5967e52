"""Work spread over the devices of a mesh, with JAX's own runtime: the same code for one process and for many.

A mesh is a `jax.sharding.Mesh`; all its axes are taken together as one row of devices. What is spread (tokens of a prompt, replicates,
runs) lies along a leading axis and is padded to a multiple of the number of devices; what is not, every device has whole.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._message import message


def checked_mesh(mesh: Any) -> Mesh:
    """The devices of a mesh, or a refusal that says how to make one."""
    if not isinstance(mesh, Mesh):
        raise ValueError(
            message(
                "mesh must be a jax.sharding.Mesh",
                type(mesh).__name__,
                'pass jax.make_mesh((jax.device_count(),), ("devices",)), or None for one device',
            )
        )
    # axes that JAX places by itself, whatever those of the mesh passed: arrays of every origin may then be spread over it
    return Mesh(mesh.devices, mesh.axis_names)


def over(mesh: Mesh) -> PartitionSpec:
    """The leading axis spread over all devices."""
    return PartitionSpec(tuple(mesh.axis_names))


def padded_size(n: int, mesh: Mesh) -> int:
    """The next multiple of the number of devices."""
    return -(-n // mesh.size) * mesh.size


def padded(tree: Any, mesh: Mesh) -> Any:
    """Arrays lengthened by copies of their last entry, so that every device has equally many."""

    def longer(leaf: Any) -> Any:
        missing = padded_size(len(leaf), mesh) - len(leaf)
        return leaf if not missing else jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, 0)])

    return jax.tree.map(longer, tree)


def spread(
    work: Callable[..., Any],
    mesh: Mesh,
    shared: Any,
    parts: Any,
    *,
    gathered: bool = False,
    **settings: Any,
) -> Any:
    """`work(shared, parts, **settings)` on every device with its own piece of `parts`; results lie along the leading axis as these do.

    With `gathered` the work ends in a collective operation and every device has the whole result. In several processes every process
    passes the same arrays and gets back the same results, as arrays of its own. It must be a function of a module and the
    settings hashable: then it is compiled once.
    """
    fixed = tuple(sorted(settings.items()))
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((shared, parts))):
        return _run(work, mesh, gathered, fixed, shared, parts)
    whole, piece = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, over(mesh))
    shared = jax.tree.map(lambda leaf: _placed(leaf, whole), shared)
    parts = jax.tree.map(lambda leaf: _placed(leaf, piece), parts)
    found = _run(work, mesh, gathered, fixed, shared, parts)
    return found if jax.process_count() == 1 else jax.tree.map(_fetched, found)


@partial(jax.jit, static_argnames=("work", "mesh", "gathered", "fixed"))
def _run(work: Callable, mesh: Mesh, gathered: bool, fixed: tuple, shared: Any, parts: Any) -> Any:
    return jax.shard_map(
        lambda shared, parts: work(shared, parts, **dict(fixed)),
        mesh=mesh,
        in_specs=(PartitionSpec(), over(mesh)),
        out_specs=PartitionSpec() if gathered else over(mesh),
        check_vma=False,  # a kernel does not say what it varies over
    )(shared, parts)


def _placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array on its devices: each process brings the pieces of its own."""
    if jax.process_count() == 1:
        return jax.device_put(leaf, sharding)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _placed(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _fetched(leaf: jax.Array) -> jax.Array:
    """The whole of an array that lies on the devices of several processes."""
    from jax.experimental import multihost_utils

    if leaf.is_fully_replicated:
        return jnp.asarray(np.asarray(leaf))
    return jnp.asarray(multihost_utils.process_allgather(leaf, tiled=True))
