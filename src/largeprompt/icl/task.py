"""What a task is: a law of tasks, tokens given the task, a query with its target, and a loss; its risk at every prompt length."""

import abc
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .. import _checks
from .._lengths import one_length, token_count
from .._typing import ArrayInput, KeyInput
from ..attention import attend, attend_linear
from ..measures import AbstractMeasure
from ..prompts import Estimate, estimate
from .params import Params

Attention = Literal["softmax", "linear"]
RiskFunction = Callable[[Params], Float[Array, ""]]
FreshRisk = Callable[[Params], Estimate]  # of heads on a leading axis

_PROMPTS = 256  # behind the objective of a task whose risk is not known
_REPLICATES = 8  # of as many fresh prompts, behind the risk along a flow
_CHUNK = 64  # heads


class Task(eqx.Module):
    """An in-context learning task. Four methods make one; `risk` then comes for free, sampled, with its standard error.

    **To write your own** define `dim` (of a token), `sample_task(key)`, `tokens(task)` -> a measure, and
    `sample_query(key, task)` -> (query token, target). See docs/learning.md for one in thirty lines.
    """

    dim: eqx.AbstractVar[int]

    @abc.abstractmethod
    def sample_task(self, key: Key[Array, ""]) -> Any:
        """One task, drawn from the law of tasks."""

    @abc.abstractmethod
    def tokens(self, task: Any) -> AbstractMeasure:
        """The law of a token given the task."""

    @abc.abstractmethod
    def sample_query(
        self, key: Key[Array, ""], task: Any
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """A query token and its target."""

    def loss(self, prediction: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
        """Half the squared error: 1-smooth, as Theorem 4.3 asks."""
        return 0.5 * (prediction - target) ** 2

    def sampled_risk(
        self,
        params: Params,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        key: KeyInput,
        relative_error: float = 0.01,
        max_replicates: int = 100_000,
    ) -> Estimate:
        """E loss over tasks, prompts of L tokens and queries, by Monte Carlo; L = infinity attends to the measure itself."""
        checked_attention(attention)
        length = one_length(L)

        def one(key: Key[Array, ""]) -> Float[Array, ""]:
            return self._loss_of(params, attention, *self.draw(key, length))

        size = self.dim * (length if math.isfinite(length) else 1)
        batch = int(max(1, min(128, 2**22 // size)))
        return estimate(
            key, one, relative_error=relative_error, max_replicates=max_replicates, batch=batch
        )

    def draw(self, key: Key[Array, ""], length: float) -> tuple[AbstractMeasure, Array, Array]:
        """A prompt of `length` tokens (at infinity the law of its tokens), a query and its target."""
        for_task, for_prompt, for_query = jax.random.split(key, 3)
        task = self.sample_task(for_task)
        law = self.tokens(task)
        if math.isfinite(length):
            law = law.sample(for_prompt, token_count(length))
        return law, *self.sample_query(for_query, task)

    def _loss_of(
        self,
        params: Params,
        attention: Attention,
        law: AbstractMeasure,
        query: Array,
        target: Array,
    ) -> Float[Array, ""]:
        operator = attend if attention == "softmax" else attend_linear
        return self.loss(operator(params.head, law, query)[0], target)

    def objective(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        like: Params,
        key: KeyInput | None = None,
        samples: int | None = None,
    ) -> RiskFunction:
        """The training objective, a function of parameters of the form of `like`, to differentiate
        and to descend.

        The risk where the task knows it; otherwise the mean loss over `samples` prompts (256 if
        None) drawn once from `key`, which is lower than the risk at parameters fitted to them.
        """
        checked_attention(attention)
        draws = _draws(self, one_length(L), self._keys(key, samples, fresh=False)[0])
        return eqx.Partial(_mean_loss, self, attention, draws)

    def fresh_risk(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        like: Params,
        key: KeyInput | None = None,
        samples: int | None = None,
    ) -> FreshRisk | None:
        """The risk of heads on a leading axis over prompts that `objective` does not use; None
        where the objective is the risk.

        All heads see the same eight replicates of `samples` prompts (256 if None); the spread of
        the replicates is the error.
        """
        checked_attention(attention)
        keys, length = self._keys(key, samples, fresh=True), one_length(L)

        def along(params: Params) -> Estimate:
            heads, count = padded(params)
            losses = [_losses_along(self, attention, length, k, heads, count) for k in keys]
            values = np.stack(losses)[:, : int(count)]
            error = values.std(axis=0, ddof=1) / math.sqrt(_REPLICATES)
            return Estimate(values.mean(axis=0), error, _REPLICATES)

        return along

    def _keys(self, key: KeyInput | None, samples: int | None, *, fresh: bool) -> Key[Array, "r n"]:
        """Keys of the prompts of the objective, in one replicate, or of fresh ones in several."""
        count = _PROMPTS if samples is None else _checks.count("samples", samples)
        needed = self._needed(key)
        if not fresh:
            return jax.random.split(needed, count)[None]
        return jax.random.split(jax.random.fold_in(needed, 2**32 - 1), (_REPLICATES, count))

    def _needed(self, key: KeyInput | None) -> Key[Array, ""]:
        return needed_key(key, f"the risk of a {type(self).__name__} is sampled")

    def risk(
        self,
        params: Params,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        key: KeyInput | None = None,
    ) -> Any:
        """The risk at prompt length L: a number where the task knows a formula, otherwise the `Estimate` of `sampled_risk`, which
        needs a `key`.
        """
        return self.sampled_risk(params, L, attention, key=self._needed(key))


@eqx.filter_jit
def _draws(task: Task, length: float, keys: Key[Array, " n"]) -> Any:
    return jax.vmap(lambda key: task.draw(key, length))(keys)


def _mean_loss(task: Task, attention: Attention, draws: Any, params: Params) -> Float[Array, ""]:
    return jnp.mean(jax.vmap(lambda draw: task._loss_of(params, attention, *draw))(draws))


@eqx.filter_jit
def _losses_along(
    task: Task,
    attention: Attention,
    length: float,
    keys: Key[Array, " n"],
    heads: Params,
    count: Int[Array, ""],
) -> Float[Array, " heads"]:
    """The mean loss of each head on the same prompts."""
    draws = _draws(task, length, keys)
    return for_each_head(lambda head: _mean_loss(task, attention, draws, head), heads, count)


def padded(params: Params) -> tuple[Params, Int[Array, ""]]:
    """Heads on a leading axis, padded to a multiple of 64 so that one program serves any number of
    them, and their number.
    """
    count = len(jax.tree.leaves(params)[0])

    def pad(leaf: Any) -> Array:
        leaf = np.asarray(leaf)
        widths = [(0, -count % _CHUNK)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.asarray(np.pad(leaf, widths, mode="edge"))

    return jax.tree.map(pad, params), jnp.asarray(count, jnp.int32)


def for_each_head(
    function: RiskFunction, heads: Params, count: Int[Array, ""]
) -> Float[Array, " heads"]:
    """A function of the first `count` heads on a leading axis; zero for the others."""

    def step(i: Array, found: Array) -> Array:
        head = jax.tree.map(lambda leaf: leaf[i], heads)
        return found.at[i].set(function(head).astype(found.dtype))

    return jax.lax.fori_loop(0, count, step, jnp.zeros(len(jax.tree.leaves(heads)[0])))


def needed_key(key: KeyInput | None, why: str, fix: str = "") -> Key[Array, ""]:
    """The key, or a refusal that says why one is needed."""
    if key is None:
        raise ValueError(
            _checks.message(
                f"{why} and needs a key", "key=None", f"pass key=jax.random.key(0){fix}"
            )
        )
    return _checks.key(key)


def checked_attention(attention: str) -> None:
    """Refuse attentions that do not exist."""
    if attention not in ("softmax", "linear"):
        raise ValueError(
            _checks.message(
                "attention must be 'softmax' or 'linear'", repr(attention), "name one of them"
            )
        )
