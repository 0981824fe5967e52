"""Stochastic descent on the in-context risk (optax): one run, or many trained together."""

import math
import warnings
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Key

from .. import _checks, _devices
from .._arrays import cast
from .._float64 import not_traced
from .._lengths import one_length
from .._typing import Array, ArrayInput, KeyInput
from ..icl import AbstractParams, AbstractTask, Attention, checked_attention
from ..prompts import AbstractMethod, Exact, MonteCarlo
from .group import Descent, Group

_MANY_TOKENS = 1e10  # about half a minute on a few cores
_RATE = 1e-3


@_checks.accepts(task=AbstractTask)
@not_traced
def descend(
    key: KeyInput,
    task: AbstractTask,
    params: AbstractParams,
    L: ArrayInput,
    steps: int,
    batch: int = 128,
    optimiser: optax.GradientTransformation | None = None,
    *,
    method: AbstractMethod | None = None,
    attention: Attention = "softmax",
    record_every: int | None = None,
    folder: str | Path | None = None,
    optimizer_name: str | None = None,
) -> Descent:
    """Stochastic descent from `params` on the mean loss of a fresh batch at every step.

    **Arguments:** `optimiser` is any of optax (None: plain SGD at rate 1e-3). `method` is the
    gradient estimator: `lp.MonteCarlo()` (if None) draws gradients from their exact law for linear
    regression, which costs less than prompts, and whole prompts for other tasks;
    `lp.MonteCarlo(whole_tokens=True)` draws whole prompts always; `lp.Exact()` takes the
    conditional expectation given w and query (linear regression: no noise from prompts, a cost
    that does not depend on L, which may be 1e9 or infinity; in float64, the others in float32). It
    has no key: `key` is that of everything random. A step that would draw more than 1.7e10 tokens
    is an error.

    Parameters and test risk are recorded every `record_every` steps (None: 100 records). With
    `folder` progress is saved there; calling again with the same arguments resumes to the same
    result, bit for bit, and more `steps` may be asked for. Functions cannot be compared, so what
    the optimiser computes is not checked on resuming: give it an `optimizer_name`, which must then
    be the same. Make an optimiser once: a program is compiled for each object.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(2), noise_variance=0.1)
    >>> start = lp.BlockParams(0.5 * jnp.eye(2), 0.5)
    >>> options = {"method": lp.Exact(), "record_every": 100}
    >>> run = lp.descend(jax.random.key(0), task, start, L=1e6, steps=200, **options)
    >>> print(run.steps, run.status)
    [  0 100 200] finished: all steps were taken
    >>> bool(run.risk[-1] < run.risk[0])
    True
    """
    key = _checks.key(key)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    return descend_many(
        key[None],
        task,
        jax.tree.map(lambda leaf: np.asarray(leaf)[None], params),
        [L],
        steps,
        batch,
        optimiser,
        method=method,
        attention=[attention],
        record_every=record_every,
        folder=folder,
        optimizer_name=optimizer_name,
    )[0]


@_checks.accepts(task=AbstractTask)
def descend_many(
    keys: Key[Array, " runs"],
    task: AbstractTask,
    params: AbstractParams,
    L: Sequence[Any],
    steps: int,
    batch: int = 128,
    optimiser: optax.GradientTransformation | None = None,
    *,
    method: AbstractMethod | None = None,
    attention: Sequence[Attention],
    record_every: int | None = None,
    folder: str | Path | None = None,
    optimizer_name: str | None = None,
    mesh: Mesh | None = None,
) -> list[Descent]:
    """Many runs of `descend` trained together.

    **Arguments:** one entry of `keys`, `L`, `attention` and of the leading axis of `params` for
    each run. Runs with the same `task.batching_key` are trained in one vmapped loop: for linear
    regression all by `lp.Exact()`, those of one attention by `lp.MonteCarlo()` (without kernels,
    see docs/devices.md, also of similar length), those of one length and attention otherwise. Runs
    with the same key see the same w and queries. The test sample comes from the first key. `mesh`
    shards the runs over devices.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> starts = lp.BlockParams(jnp.eye(1), 0.5)
    >>> starts = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), starts)
    >>> keys = jax.random.split(jax.random.key(0), 2)
    >>> options = {"method": lp.Exact(), "attention": ["softmax", "linear"]}
    >>> runs = lp.descend_many(keys, task, starts, [10, 1e9], 20, **options)
    >>> [run.status for run in runs]
    ['finished: all steps were taken', 'finished: all steps were taken']
    """
    steps, batch = _checks.count("steps", steps), _checks.count("batch", batch)
    every = math.ceil(steps / 100) if record_every is None else record_every
    every = _checks.count("record_every", every)
    lengths = [one_length(length) for length in L]
    params = jax.tree.map(np.asarray, params)
    _check_runs(keys, params, lengths, attention)
    method = _checked_method(method)
    first = jax.tree.map(lambda leaf: leaf[0], params)
    task.check_params(first)
    mesh = None if mesh is None else _devices.checked_mesh(mesh)
    if not (optimizer_name is None or isinstance(optimizer_name, str)):
        raise _checks.error("optimizer_name must be text or None", repr(optimizer_name))
    if optimiser is None:
        optimiser, optimizer_name = _plain_descent(), optimizer_name or f"optax.sgd({_RATE:g})"
    if not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        rate = optimiser if isinstance(optimiser, float) else _RATE
        raise _checks.error(
            "optimiser must be one of optax", repr(optimiser), f"pass optax.sgd({rate:g})"
        )
    _warn_of_many_tokens(lengths, attention, steps, batch, method)
    batches: dict[Hashable, list[int]] = {}
    for i, run in enumerate(zip(lengths, attention, strict=True)):
        batches.setdefault(task.batching_key(*run, method), []).append(i)
    found: dict[int, Descent] = {}
    exact = isinstance(method, Exact)
    with jax.enable_x64(exact or jax.config.read("jax_enable_x64")):
        dtype = jnp.float64 if exact else jnp.float32
        groups = []
        for runs in batches.values():
            chosen = np.asarray(runs)
            kinds: list[tuple[float, Attention]] = [(lengths[i], attention[i]) for i in runs]
            longest = max(length for length, _ in kinds)
            losses = [task.batch_loss(*kind, method, batch, dtype, longest) for kind in kinds]
            with jax.enable_x64(True):
                test_risk = task.test_risk(keys[0], kinds, first)
            start = cast(jax.tree.map(lambda leaf, i=chosen: leaf[i], params), dtype)
            own = keys if len(chosen) == len(lengths) else keys[chosen]
            groups.append(Group(task, losses, optimiser, own, start, test_risk, mesh))
        for number, (runs, group) in enumerate(zip(batches.values(), groups, strict=True)):
            names = [f"{attention[i]} at L = {lengths[i]:g}" for i in runs]
            about = {
                "runs": str(names),
                "batch": str(batch),
                "method": method_name(method),
                "record_every": str(every),
                "optimizer_name": str(optimizer_name),
            }
            checkpoint = None if folder is None else group.checkpoint(Path(folder), number, about)
            label = f"{len(runs)} runs" if len(runs) > 1 else names[0]
            found.update(zip(runs, group.train(steps, every, checkpoint, label), strict=True))
    return [found[i] for i in range(len(lengths))]


@cache
def _plain_descent() -> optax.GradientTransformation:
    """The default optimiser, made once."""
    return optax.sgd(_RATE)


def method_name(method: AbstractMethod | None) -> str:
    """The gradient estimator, as it is passed to `descend`."""
    if method is None:
        return "MonteCarlo()"
    whole = getattr(method, "whole_tokens", False)
    return f"{type(method).__name__}({'whole_tokens=True' if whole else ''})"


def _checked_method(method: AbstractMethod | None) -> AbstractMethod:
    """A method that leaves keys, batches and devices to `descend`; None is `MonteCarlo()`."""
    if method is None:
        return MonteCarlo()
    own = [name for name in ("key", "batch", "mesh") if getattr(method, name, None) is not None]
    if own:
        raise _checks.error(
            "descend takes key, batch and mesh itself",
            f"a {type(method).__name__} with its own {' and '.join(own)}",
            f"pass {type(method).__name__}() without",
        )
    return method


def _warn_of_many_tokens(
    lengths: list[float],
    attention: Sequence[Attention],
    steps: int,
    batch: int,
    method: AbstractMethod,
) -> None:
    """Warn if softmax runs draw so many tokens that a CPU takes long."""
    runs = zip(lengths, attention, strict=True)
    drawn = sum(L for L, name in runs if name == "softmax" and math.isfinite(L))
    tokens = steps * batch * drawn
    if tokens > _MANY_TOKENS and not isinstance(method, Exact):
        warnings.warn(
            f"this draws steps * batch * L = {tokens:.1e} tokens, half a minute or more on a "
            "CPU: for linear regression method=lp.Exact() costs the same for every L",
            stacklevel=4,
        )


def _check_runs(keys: Any, params: AbstractParams, lengths: list[float], attention: Any) -> None:
    sizes = {"keys": np.shape(keys), "L": (len(lengths),), "attention": (len(attention),)}
    sizes["params"] = jax.tree.leaves(params)[0].shape[:1]
    if len(set(sizes.values())) != 1 or sizes["keys"] in [(), (0,)]:
        raise _checks.error(
            "keys, params, L and attention must have one entry for each run",
            ", ".join(f"{name} with {shape}" for name, shape in sizes.items()),
            "pass keys=jax.random.split(key, runs), and parameters stacked on a leading axis",
        )
    for name in attention:
        checked_attention(name)
