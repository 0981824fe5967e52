"""Losses of sampled prompts, for every task: its risk by Monte Carlo, and batches to descend."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Key

from .. import _checks
from .._quick_programs import compiled_quickly
from .._typing import Array
from ..attention import attend, attend_linear
from ..prompts.methods import Estimate, MonteCarlo, needed_key
from .params import AbstractParams
from .risks import (
    REPLICATES,
    AbstractRisk,
    Attention,
    FreshRisk,
    RiskFunction,
    for_each_head,
    mean_of_replicates,
    padded,
    refuse_traced_risk,
)
from .task import AbstractTask

_PROMPTS = 256  # of an objective
_TEST_PROMPTS = 512  # in each replicate of a test risk
_TOKENS = 2**34  # the most drawn in a step: minutes on a CPU, between two updates of the progress


class PromptLoss(eqx.Module):
    """The loss of one prompt, a function of the key that draws it."""

    task: AbstractTask
    params: AbstractParams
    length: float = eqx.field(static=True)
    attention: Attention = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""]) -> Float[Array, ""]:
        return _loss(self.task, self.attention, self.params, *self.task.draw(key, self.length))


def _loss(
    task: AbstractTask, attention: Attention, params: AbstractParams, law: Any, query: Array, y: Any
) -> Float[Array, ""]:
    operator = attend if attention == "softmax" else attend_linear
    return task.loss(operator(params.head, law, query)[0], y)


class PromptRisk(AbstractRisk):
    """The risk of any task over sampled prompts."""

    def __init__(self, task: AbstractTask, length: float, attention: Attention, method: MonteCarlo):
        self.task, self.length = task, length
        self.attention: Attention = attention
        self.method, self.key = method, needed_key(method)
        self.count = method.batch or _PROMPTS

    def of(self, params: AbstractParams) -> Estimate:
        refuse_traced_risk(params)
        tokens = int(self.length) if math.isfinite(self.length) else 1
        one = self.task.loss_of_prompt(params, self.length, self.attention, self.method)
        return self.method.average(one, numbers=self.task.dim * tokens)

    def objective(self) -> RiskFunction:
        draws = _draws(self.task, self.length, jax.random.split(self.key, self.count))
        return eqx.Partial(_mean_loss, self.task, self.attention, draws)

    def fresh(self) -> FreshRisk:
        key = jax.random.fold_in(self.key, 2**32 - 1)
        keys = jax.random.split(key, (REPLICATES, self.count))

        def along(params: AbstractParams) -> Estimate:
            heads, count = padded(params)
            samples = (_draws(self.task, self.length, k) for k in keys)
            losses = [_losses_along(self.task, self.attention, s, heads, count) for s in samples]
            return mean_of_replicates(np.stack(losses)[:, : int(count)], self.method)

        return along


@compiled_quickly
def _draws(task: AbstractTask, length: float, keys: Key[Array, " n"]) -> Any:
    return jax.vmap(lambda key: task.draw(key, length))(keys)


def _mean_loss(
    task: AbstractTask, attention: Attention, draws: Any, params: AbstractParams
) -> Float[Array, ""]:
    return jnp.mean(jax.vmap(lambda draw: _loss(task, attention, params, *draw))(draws))


@compiled_quickly
def _losses_along(
    task: AbstractTask,
    attention: Attention,
    draws: Any,
    heads: AbstractParams,
    count: Int[Array, ""],
) -> Float[Array, " heads"]:
    """The mean loss of each head on the same prompts."""
    return for_each_head(lambda head: _mean_loss(task, attention, draws, head), heads, count)


class BatchOfPrompts(eqx.Module):
    """The mean loss of a fresh batch of whole prompts, in the precision of the task."""

    task: AbstractTask
    L: float = eqx.field(static=True)
    attention: Attention = eqx.field(static=True)
    batch: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""], params: AbstractParams) -> Float[Array, ""]:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.batch))
        return jnp.mean(jax.vmap(lambda k: self._loss(k, params))(keys))

    def _loss(self, key: Key[Array, ""], params: AbstractParams) -> Float[Array, ""]:
        law: Any
        law, query, target = self.task.draw(key, self.L)
        first, *others = (self._predicted(part, law, query) for part in params.parts())
        return self.task.loss(sum(others, start=first), target)

    def _predicted(self, params: AbstractParams, law: Any, query: Array) -> Array:
        """The prediction of one head; not by `attend`, whose checks call back to Python."""
        U, v = (m.astype(query.dtype) for m in params.matrices())
        u = _product(U, query)
        if math.isfinite(self.L):
            points = law.points
            scores = _product(points, u)
            weights = jax.nn.softmax(scores) if self.attention == "softmax" else scores / self.L
            return _product(weights, points) @ v
        if self.attention == "softmax":
            return law.tilted_mean(u) @ v
        mean = law.mean()
        second_moment = law.cov() + jnp.outer(mean, mean)
        return _product(second_moment, u) @ v


def check_tokens(length: float, batch: int, fix: str) -> None:
    """Raise if a step of descent would draw too many tokens."""
    if math.isfinite(length) and batch * length > _TOKENS:
        raise _checks.error(
            f"a step of descent draws at most {_TOKENS:.2g} tokens",
            f"batch x L = {batch} x {length:g} = {batch * length:.2g}",
            fix,
        )


def risk_on_test_prompts(
    task: AbstractTask, key: Key[Array, ""], runs: Sequence[tuple[float, Attention]]
) -> FreshRisk:
    """The risk of several runs on whole prompts, the same at every call."""
    keys, losses = (
        keys_of_test_sample(key),
        [BatchOfPrompts(task, *run, _TEST_PROMPTS) for run in runs],
    )

    def along(params: AbstractParams) -> Estimate:
        heads = [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(len(runs))]
        risks = [_on_prompts(*pair, keys) for pair in zip(losses, heads, strict=True)]
        return mean_of_replicates(np.stack(risks), MonteCarlo(key), axis=1)

    return along


def keys_of_test_sample(key: Key[Array, ""]) -> Key[Array, " replicates"]:
    """Keys of the replicates of a test sample; no step of descent uses them."""
    return jax.random.split(jax.random.fold_in(key, 2**32 - 1), REPLICATES)


@eqx.filter_jit
def _on_prompts(
    loss: BatchOfPrompts, params: AbstractParams, keys: Key[Array, " replicates"]
) -> Float[Array, " replicates"]:
    return jax.lax.map(lambda key: loss(key, params), keys)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
