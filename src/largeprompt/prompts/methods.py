"""How an average over prompts is computed: exactly, from quasi-random points, or from samples."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from .. import _checks, _devices
from .._typing import KeyInput

_FIRST_CHECK = 128  # replicates before the first check of the error; then at every doubling


class Estimate(NamedTuple):
    """An average, its error, and the method that computed it.

    `error` is the numerical error of an exact method, the standard error of a sampled one.
    """

    value: Any
    error: Any
    method: "AbstractMethod"


class AbstractMethod(eqx.Module):
    """A way to compute an average over prompts."""


class Exact(AbstractMethod):
    """Closed forms, Laplace integrals and convergent quadrature over queries; no random numbers."""


class QuasiMonteCarlo(AbstractMethod):
    """Scrambled Sobol points wherever no exact average exists; exact in the prompt length.

    **Arguments:** `points` represent one law (rounded up to a power of two), in `replicates`
    independent scramblings, whose spread is the error.
    """

    key: KeyInput | None
    points: int | None = eqx.field(static=True)
    replicates: int = eqx.field(static=True)

    def __init__(
        self, key: KeyInput | None = None, *, points: int | None = None, replicates: int = 8
    ):
        self.key = None if key is None else _checks.key(key)
        self.points = None if points is None else _checks.count("points", points)
        self.replicates = _checks.count("replicates", replicates)
        if self.replicates < 2:
            raise ValueError(
                _checks.message(
                    "replicates must be at least 2", "1", "pass 8: their spread is the error"
                )
            )

    def keys(self) -> Key[Array, " replicates"]:
        """One key for each replicate."""
        return jax.random.split(needed_key(self), self.replicates)


class MonteCarlo(AbstractMethod):
    """Independent prompts, until the relative error or the budget is reached.

    Outputs of Gaussian tokens are drawn from their scores alone, exactly in law; other measures,
    and `whole_tokens=True`, draw all tokens.

    **Arguments:** replicate i uses `fold_in(key, i)`, and the error is checked after 128, 256,
    512, ... replicates, so the result depends neither on `batch` nor on the `mesh` of devices that
    share the replicates of a batch.
    """

    key: KeyInput | None
    relative_error: float = eqx.field(static=True)
    max_replicates: int = eqx.field(static=True)
    batch: int | None = eqx.field(static=True)
    whole_tokens: bool = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    progress: bool = eqx.field(static=True)

    def __init__(
        self,
        key: KeyInput | None = None,
        *,
        relative_error: float = 0.01,
        max_replicates: int = 100_000,
        batch: int | None = None,
        whole_tokens: bool = False,
        mesh: Mesh | None = None,
        progress: bool = False,
    ):
        self.key = None if key is None else _checks.key(key)
        self.relative_error = _checks.number(
            "relative_error", relative_error, "pass for example 0.01", above=0.0
        )
        self.max_replicates = _checks.count("max_replicates", max_replicates)
        self.batch = None if batch is None else _checks.count("batch", batch)
        self.whole_tokens = bool(whole_tokens)
        self.mesh = None if mesh is None else _devices.checked_mesh(mesh)
        self.progress = bool(progress)

    def average(self, function: Callable[[Key[Array, ""]], Array], *, numbers: int = 1) -> Estimate:
        """Mean of `function(key)` over independent keys, with its standard error.

        `numbers` is how many numbers one call draws; it bounds the batch where `batch` is None.

        >>> import jax
        >>> import largeprompt as lp
        >>> method = lp.MonteCarlo(jax.random.key(0), max_replicates=1000)
        >>> found = method.average(jax.random.uniform)
        >>> bool(abs(found.value - 0.5) < 4 * found.error)
        True
        """
        key, budget = needed_key(self), self.max_replicates
        batch = self.batch or max(1, min(128, _AT_ONCE // numbers))
        draw = _draws if self.mesh is None else partial(_draws_on, self.mesh)
        values: list[np.ndarray] = []
        done, check = 0, min(_FIRST_CHECK, budget)
        with _progress_bar(budget, self.progress) as advance:
            while True:
                while done < check:
                    # the last batch is drawn whole and cut, so that no new shape is compiled
                    drawn = np.asarray(draw(function, key, jnp.asarray(done), batch), np.float64)
                    values.append(drawn[: check - done])
                    advance(len(values[-1]))
                    done += len(values[-1])
                value, error = _summary(np.concatenate(values))
                if check == budget or np.all(error <= self.relative_error * np.abs(value)):
                    return Estimate(value, error, self)
                check = min(2 * check, budget)


_AT_ONCE = 2**22  # numbers drawn at once


def needed_key(method: QuasiMonteCarlo | MonteCarlo) -> Key[Array, ""]:
    """The key of a method that draws random numbers."""
    if method.key is None:
        name = type(method).__name__
        raise ValueError(
            _checks.message(
                f"{name} needs a key", "key=None", f"pass {name}(jax.random.key(0), ...)"
            )
        )
    return method.key


@eqx.filter_jit
def _draws(function: Callable, key: Key[Array, ""], start: Array, batch: int) -> Array:
    """Replicates start, start + 1, ...; compiled once for a function and its shapes."""
    return _replicates((function, key), start + jnp.arange(batch, dtype=start.dtype))


def _draws_on(
    mesh: Mesh, function: Callable, key: Key[Array, ""], start: Array, batch: int
) -> Array:
    """The same replicates, sharded over the devices of a mesh."""
    indices = start + jnp.arange(_devices.padded_size(batch, mesh), dtype=start.dtype)
    if isinstance(function, eqx.Module):
        return _devices.spread(_replicates, mesh, (function, key), indices)[:batch]
    return _devices.spread(_replicates, mesh, (None, key), indices, function=function)[:batch]


def _replicates(shared: tuple, indices: Array, function: Callable | None = None) -> Array:
    one, key = shared
    one = one if function is None else function
    return jax.vmap(lambda i: one(jax.random.fold_in(key, i)))(indices)


def _summary(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over replicates, and its standard error."""
    if not np.all(np.isfinite(values)):
        raise ValueError(
            _checks.message(
                "every replicate must be finite",
                f"{int(np.sum(~np.isfinite(values)))} values that are NaN or infinite",
                "check the scale of the scores, or turn on 64-bit mode",
            )
        )
    n = len(values)
    if n == 1:
        return np.asarray(values[0]), np.full(values.shape[1:], np.inf)
    error = values.std(axis=0, ddof=1) / math.sqrt(n)
    return np.asarray(values.mean(axis=0)), np.asarray(error)


@contextmanager
def _progress_bar(budget: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """A function that reports replicates to a progress bar on standard error, if `shown`."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replicates (at most)", total=budget)
        yield lambda count: bar.advance(task, count)
