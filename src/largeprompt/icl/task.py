"""What a task is: a law of tasks, tokens given the task, a query with its target, and a loss; its risk at every prompt length."""

import abc
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .. import _checks
from .._typing import ArrayInput, KeyInput
from ..attention import attend, attend_linear
from ..measures import AbstractMeasure
from ..prompts import Estimate, estimate
from ..prompts._arguments import whole_length
from .params import Params

Attention = Literal["softmax", "linear"]
RiskFunction = Callable[[Params], Float[Array, ""]]

_PROMPTS = 256  # behind the objective of a task whose risk is not known


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
        length = checked_length(L)

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
            law = law.sample(for_prompt, whole_length(length))
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
    ) -> RiskFunction:
        """The risk as a function of parameters of the form of `like`, to differentiate and to descend.

        Exact where the task knows its risk; otherwise the mean loss over prompts drawn once from `key`.
        """
        checked_attention(attention)
        length = checked_length(L)
        keys = jax.random.split(self._needed(key), _PROMPTS)
        return eqx.Partial(_mean_loss, self, attention, _draws(self, length, keys))

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


def checked_length(L: ArrayInput) -> float:
    """L as a known number >= 1, infinity included."""
    return _checks.number("L", L, "pass a number of tokens, or math.inf", least=1.0, finite=False)
