"""Monte Carlo over prompts, for every measure: a value never comes without its standard error."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from .. import _checks, _devices
from .._lengths import token_count
from .._typing import ArrayInput, KeyInput
from ..attention import Head, attend, attend_jacobians
from ..attention.softmax import queries_of
from ..measures import AbstractMeasure
from .sampling import sample_outputs

Quantity = Literal["finite_mean", "output_error", "gradient_U_error", "gradient_V_error"]
_QUANTITIES = ("finite_mean", "output_error", "gradient_U_error", "gradient_V_error")
_FIRST_LOOK = 128  # replicates before the first check of the error; then at every doubling


class Estimate(NamedTuple):
    """A Monte Carlo value, its standard error, and the number of independent replicates behind both."""

    value: np.ndarray
    standard_error: np.ndarray
    replicates: int


def estimate(
    key: KeyInput,
    quantity: Quantity | Callable[[Key[Array, ""]], Array],
    head: Head | None = None,
    mu: AbstractMeasure | None = None,
    z: ArrayInput | None = None,
    L: int | None = None,
    *,
    route: Literal["tokens", "scores"] = "tokens",
    relative_error: float = 0.01,
    max_replicates: int = 100_000,
    batch: int = 128,
    progress: bool = False,
    mesh: Mesh | None = None,
) -> Estimate:
    """Average a quantity over independent prompts until its relative error or the budget is reached.

    **Arguments:** `quantity` is a name ("finite_mean", "output_error", "gradient_U_error", "gradient_V_error", each at one query
    `z` and a whole number `L` of tokens) or a function of a key. `route="tokens"` samples whole tokens and attends to them, for
    every measure; `route="scores"` draws outputs of Gaussian tokens from their scores. Replicate i uses `fold_in(key, i)`
    and the error is looked at after 128, 256, 512, ... replicates, so the result does not depend on `batch`, nor on a `mesh`, over whose
    devices the replicates of a batch are spread.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> found = lp.estimate(jax.random.key(0), "output_error", head, lp.Rademacher(2), jnp.ones(2), L=50)
    >>> bool(found.standard_error <= 0.01 * found.value)
    True
    """
    key, batch = _checks.key(key), _checks.count("batch", batch)
    budget = _checks.count("max_replicates", max_replicates)
    if not (isinstance(relative_error, (int, float)) and relative_error > 0):
        raise ValueError(
            _checks.message(
                "relative_error must be > 0", repr(relative_error), "pass for example 0.01"
            )
        )
    one = quantity if callable(quantity) else replicate(quantity, head, mu, z, L, route)
    draw = _draws if mesh is None else partial(_draws_on, _devices.checked_mesh(mesh))
    values: list[np.ndarray] = []
    done, look = 0, min(_FIRST_LOOK, budget)
    with _advance(budget, progress) as advance:
        while True:
            while done < look:
                # the last batch is drawn whole and cut, so that no new shape is compiled
                values.append(
                    np.asarray(draw(one, key, jnp.asarray(done), batch), np.float64)[: look - done]
                )
                advance(len(values[-1]))
                done += len(values[-1])
            result = _summary(np.concatenate(values))
            if look == budget or np.all(
                result.standard_error <= relative_error * np.abs(result.value)
            ):
                return result
            look = min(2 * look, budget)


@eqx.filter_jit
def _draws(one: Callable, key: Key[Array, ""], start: Array, batch: int) -> Array:
    """Replicates start, start + 1, ...: compiled once for a quantity and its shapes, whatever key, head and measure."""
    return _replicates((one, key), start + jnp.arange(batch, dtype=start.dtype))


def _draws_on(mesh: Mesh, one: Callable, key: Key[Array, ""], start: Array, batch: int) -> Array:
    """The same, spread over the devices of a mesh."""
    indices = start + jnp.arange(_devices.padded_size(batch, mesh), dtype=start.dtype)
    if isinstance(one, eqx.Module):
        return _devices.spread(_replicates, mesh, (one, key), indices)[:batch]
    return _devices.spread(_replicates, mesh, (None, key), indices, function=one)[:batch]


def _replicates(shared: tuple, indices: Array, function: Callable | None = None) -> Array:
    one, key = shared
    one = one if function is None else function
    return jax.vmap(lambda i: one(jax.random.fold_in(key, i)))(indices)


def _summary(values: np.ndarray) -> Estimate:
    if not np.all(np.isfinite(values)):
        raise ValueError(
            _checks.message(
                "every replicate must be finite",
                f"{int(np.sum(~np.isfinite(values)))} values that are NaN or infinite",
                "look at the scale of the scores, or turn on 64-bit mode",
            )
        )
    n = len(values)
    error = (
        values.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(values.shape[1:], np.inf)
    )
    return Estimate(values.mean(axis=0), error, n)


def replicate(quantity, head, mu, z, L, route) -> "Replicate":
    """The quantity of one prompt, as a function of its key; arguments are checked here."""
    if quantity not in _QUANTITIES:
        raise ValueError(
            _checks.message(
                f"quantity must be one of {_QUANTITIES} or a function of a key",
                repr(quantity),
                "name one",
            )
        )
    if route not in ("tokens", "scores"):
        raise ValueError(
            _checks.message("route must be 'tokens' or 'scores'", repr(route), "name one")
        )
    if head is None or mu is None or z is None or L is None:
        raise ValueError(
            _checks.message(
                f"{quantity!r} needs head, mu, z and L", "one of them missing", "pass all four"
            )
        )
    _, shape = queries_of(head, mu, z)
    length = token_count(L)
    if shape:
        raise ValueError(
            _checks.message(
                f"estimate takes one query of shape ({head.dim},)",
                f"a batch of shape {shape}",
                "call it once for each query",
            )
        )
    if route == "scores" and quantity.startswith("gradient"):
        raise ValueError(
            _checks.message(
                "route='scores' serves 'finite_mean' and 'output_error'",
                quantity,
                "use route='tokens'",
            )
        )

    limit = None
    if quantity == "output_error":
        limit = attend(head, mu, z)
    elif quantity.startswith("gradient"):
        limit = _jacobian(quantity, head, mu, z)
    return Replicate(head, mu, jnp.asarray(z), limit, quantity, route, length)


class Replicate(eqx.Module):
    """A quantity of one prompt, as a function of its key."""

    head: Head
    mu: AbstractMeasure
    z: Array
    limit: Array | None  # of the infinite prompt, where the quantity is an error
    quantity: Quantity = eqx.field(static=True)
    route: Literal["tokens", "scores"] = eqx.field(static=True)
    length: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""]) -> Array:
        if self.quantity.startswith("gradient"):
            prompt = self.mu.sample(key, self.length)
            found = _jacobian(self.quantity, self.head, prompt, self.z)
        elif self.route == "scores":
            found = sample_outputs(key, self.head, self.mu, self.z, self.length, 1)[0]
        else:
            found = attend(self.head, self.mu.sample(key, self.length), self.z)
        return found if self.limit is None else jnp.sum((found - self.limit) ** 2)


def _jacobian(quantity: Quantity, head: Head, mu: AbstractMeasure, z: ArrayInput) -> Array:
    """The derivative that "gradient_U_error" or "gradient_V_error" names."""
    field = quantity.removeprefix("gradient_").removesuffix("_error")
    return getattr(attend_jacobians(head, mu, z), field)


@contextmanager
def _advance(budget: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """A function to report replicates to: a progress bar on standard error if asked for, otherwise nothing."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replicates (at most)", total=budget)
        yield lambda count: bar.advance(task, count)
