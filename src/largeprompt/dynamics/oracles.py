"""Gradient oracles of descent: losses of a fresh batch whose gradients are unbiased for that of the risk.

Linear regression. Given the task w and the query x_q a token is C zeta, zeta standard normal in R^{d+1}, C = [[B, 0], [w'B, tau]]
with B B' = Sig. So a head acts on standard normal vectors, with the score direction a = C'u, u = U (x_q, 0), and the read-out c = C'v:

    prediction f = sum_i p_i <c, zeta_i>,   p = softmax(<a, zeta_i>),
    df/dc = sum_i p_i zeta_i,               df/da = sum_i p_i (<c, zeta_i> - f) zeta_i.

`prompts` draws all tokens, `reduced` (reduced.py) draws (f, df/da, df/dc) from their exact law at a fraction of the cost, `exact`
takes the conditional expectation of the loss given (w, x_q), which depends on <a, a>, <a, c> and <c, c> only. All three see the same
tasks and queries for the same key. Other tasks: whole prompts of L tokens.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from .. import _checks
from .._lengths import token_count
from .._linalg import psd_sqrt
from ..icl import LinearRegression, Task
from ..icl.params import Params
from ..icl.task import Attention
from ..measures import Empirical
from ..prompts._weighted_sums import capacity_for, weighted_sums
from ..prompts.normals import counters, normal_pairs, words
from ..prompts.sampling import SCORES_AND_VALUES, polar
from .output_moments import OutputMoments, output_moments
from .reduced import Response, frame, reduced_linear, reduced_softmax

OracleName = Literal["prompts", "reduced", "exact"]
Oracle = Callable[[Key[Array, ""], Params], Float[Array, ""]]  # the mean loss of a fresh batch

_NUMBERS = 2**22  # random numbers held at once
_TOKENS = 2**34  # the most drawn in a step: minutes on a CPU, between two signs of progress
# streams of random numbers: 0 is that of new keys, prompt i has _PROMPTS + i
_QUERIES, _NOISE, _REST, _PROMPTS = 1, 2, 3, 4


class Queries(NamedTuple):
    """Tasks w, queries x_q, and the noise of their targets."""

    w: Float[Array, "n d"]
    x: Float[Array, "n d"]
    noise: Float[Array, " n"]


class Regression(eqx.Module):
    """Linear regression in context as oracles need it: roots of its covariances, in the precision of the descent."""

    root: Float[Array, "d d"]
    query_root: Float[Array, "d d"]
    task_root: Float[Array, "d d"]
    noise: Float[Array, ""]

    def __init__(self, task: LinearRegression, dtype: Any):
        with jax.enable_x64(True):
            covariances = (task.cov, task.query_cov, task.task_cov)
            roots = [psd_sqrt(cov.astype(jnp.float64)) for cov in covariances]
            self.root, self.query_root, self.task_root = (r.astype(dtype) for r in roots)
            self.noise = jnp.sqrt(task.noise_variance.astype(jnp.float64)).astype(dtype)

    def queries(self, key: Key[Array, ""], n: int) -> Queries:
        """N tasks, each with one query; the same numbers in float32 and float64."""
        for_tasks, for_queries = normal_pairs(words(key), _QUERIES, counters((n, len(self.root))))
        for_noise, _ = normal_pairs(words(key), _NOISE, counters((n,)))
        drawn = (a.astype(self.root.dtype) for a in (for_tasks, for_queries, for_noise))
        return self.queries_from(*drawn)

    def queries_from(
        self,
        for_tasks: Float[Array, "n d"],
        for_queries: Float[Array, "n d"],
        for_noise: Float[Array, " n"],
    ) -> Queries:
        """Tasks, queries and noise made of standard normals."""
        w, x = _product(for_tasks, self.task_root), _product(for_queries, self.query_root)
        return Queries(w, x, self.noise * for_noise)

    def directions(
        self, params: Params, queries: Queries
    ) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
        """(a, c) of every query: scores and values of a token are <a, zeta> and <c, zeta>."""
        U, v = params.matrices()
        u = _product(queries.x, U[:, :-1].T)
        return self._whitened(u, queries), self._whitened(jnp.broadcast_to(v, u.shape), queries)

    def _whitened(self, u: Float[Array, "n D"], queries: Queries) -> Float[Array, "n D"]:
        inputs = _product(u[:, :-1] + queries.w * u[:, -1:], self.root)
        return jnp.concatenate([inputs, self.noise * u[:, -1:]], axis=1)


def conditional_loss(
    regression: Regression, moments: OutputMoments, params: Params, queries: Queries
) -> Float[Array, ""]:
    """The mean over (w, x_q) of E[1/2 (f - y)^2 | w, x_q]: exact at every length, no prompt is drawn."""
    a, c = regression.directions(params, queries)
    target = jnp.sum(queries.w * queries.x, axis=1)
    s, mean, size = (jnp.sum(left * right, axis=1) for left, right in ((a, a), (a, c), (c, c)))
    errors = jax.vmap(moments.squared_error)(s, mean, size, target)
    return 0.5 * (jnp.mean(errors) + regression.noise**2)


class ExactOracle(eqx.Module):
    """The conditional expectation given tasks and queries: no noise from prompts, a cost that does not depend on L."""

    regression: Regression
    moments: OutputMoments
    batch: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""], params: Params) -> Float[Array, ""]:
        queries = self.regression.queries(key, self.batch)
        return conditional_loss(self.regression, self.moments, params, queries)


class _PromptOracle(eqx.Module):
    """One prompt for each task and query of a batch; `responses` says what head and prompt make of them."""

    regression: Regression
    batch: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""], params: Params) -> Float[Array, ""]:
        queries = self.regression.queries(key, self.batch)
        a, c = self.regression.directions(params, queries)
        target = jnp.sum(queries.w * queries.x, axis=1) + queries.noise
        fixed_a, fixed_c = jax.lax.stop_gradient((a, c))
        f, by_a, by_c = self.responses(key, fixed_a, fixed_c)
        # f with its derivatives as drawn: nothing is differentiated through the sampling
        predictions = f + jnp.sum(by_a * (a - fixed_a) + by_c * (c - fixed_c), axis=1)
        return 0.5 * jnp.mean((predictions - target) ** 2)

    @abstractmethod
    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        """(f, df/da, df/dc) of one prompt for each row of a and c."""


class WholePrompts(_PromptOracle):
    """`prompts`: all tokens are drawn."""

    L: int = eqx.field(static=True)
    attention: Attention = eqx.field(static=True)

    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.batch))
        one, at_once = _whole_prompt(self.attention), _NUMBERS // (self.L * a.shape[1])
        if len(a) <= at_once:
            return jax.vmap(lambda *row: one(*row, self.L))(keys, a, c)
        return jax.lax.map(lambda row: one(*row, self.L), (keys, a, c), batch_size=max(1, at_once))


class InfinitePrompts(_PromptOracle):
    """Both oracles at infinite length: f = <a, c> for both attentions (Lemma 2.1)."""

    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        return jnp.sum(a * c, axis=1), c, a


class ReducedPrompts(_PromptOracle):
    """`reduced`: predictions and their derivatives drawn from their exact law.

    The length is data and `capacity` the numbers that hold the longest of several: runs of different lengths stack.
    """

    L: Shaped[Array, "*runs"]  # a 32-bit integer where tokens are drawn
    attention: Attention = eqx.field(static=True)
    capacity: int = eqx.field(static=True)

    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        if self.attention == "linear":
            return reduced_linear(key, a, c, self.L)
        prompts = _PROMPTS + jnp.arange(self.batch, dtype=jnp.uint32)
        plane = jax.vmap(frame)(a, c)
        _, cosine, sine = value = polar(plane.alpha, plane.beta)
        scales = (plane.sigma, cosine, sine)
        sums = weighted_sums(
            words(key), prompts, scales, self.L[None], self.capacity, SCORES_AND_VALUES
        )
        rest = normal_pairs(words(key), _REST, counters(a.shape), a.dtype)
        return jax.vmap(reduced_softmax)(*sums, *rest, plane, value)


def _whole_prompt(attention: Attention) -> Callable:
    """(f, df/da, df/dc) of one prompt of L standard normal tokens."""

    def softmax(key: Key[Array, ""], a: Array, c: Array, L: int) -> tuple[Array, Array, Array]:
        tokens = jax.random.normal(key, (L, len(a)), a.dtype)
        p = jax.nn.softmax(_product(tokens, a))
        values = _product(tokens, c)
        f = p @ values
        return f, _product(p * (values - f), tokens), _product(p, tokens)

    def linear(key: Key[Array, ""], a: Array, c: Array, L: int) -> tuple[Array, Array, Array]:
        tokens = jax.random.normal(key, (L, len(a)), a.dtype)
        scores, values = _product(tokens, a) / L, _product(tokens, c)
        return scores @ values, _product(values, tokens) / L, _product(scores, tokens)

    return softmax if attention == "softmax" else linear


class TaskOracle(eqx.Module):
    """Fresh prompts of any task, in the task's own precision."""

    task: Task
    L: float = eqx.field(static=True)
    attention: Attention = eqx.field(static=True)
    batch: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""], params: Params) -> Float[Array, ""]:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.batch))
        return jnp.mean(jax.vmap(lambda k: self._loss(k, params))(keys))

    def _loss(self, key: Key[Array, ""], params: Params) -> Float[Array, ""]:
        law, query, target = self.task.draw(key, self.L)
        # not through `attend`: the checks of a head are calls back to Python, at every step
        U, v = (m.astype(query.dtype) for m in params.matrices())
        u = _product(U, query)
        if isinstance(law, Empirical) and math.isfinite(self.L):
            points = law.points
            scores = _product(points, u)
            weights = jax.nn.softmax(scores) if self.attention == "softmax" else scores / self.L
            return self.task.loss(_product(weights, points) @ v, target)
        if self.attention == "softmax":
            return self.task.loss(law.tilted_mean(u) @ v, target)
        mean = law.mean()
        second_moment = law.cov() + jnp.outer(mean, mean)
        return self.task.loss(_product(second_moment, u) @ v, target)


def check_work(task: Task, L: float, attention: Attention, name: OracleName, batch: int) -> None:
    """Refuse steps that draw more tokens than can be waited for."""
    known = isinstance(task, LinearRegression)
    drawn = name == "prompts" or (name == "reduced" and attention == "softmax")
    if drawn and math.isfinite(L) and batch * L > _TOKENS:
        exact = "oracle='exact', whose cost does not depend on L, or " if known else ""
        raise ValueError(
            _checks.message(
                f"a step of descent draws at most {_TOKENS:.2g} tokens",
                f"batch x L = {batch} x {L:g} = {batch * L:.2g} with oracle={name!r}",
                f"pass {exact}a shorter L or a smaller batch",
            )
        )


def make_oracle(
    task: Task,
    L: float,
    attention: Attention,
    name: OracleName,
    batch: int,
    dtype: Any,
    longest: float | None = None,
) -> ExactOracle | _PromptOracle | TaskOracle:
    """The oracle of that name for a task, or a refusal that says which oracles it has.

    Reduced oracles with one `longest` length (their own, if None) stack.
    """
    if name not in ("prompts", "reduced", "exact"):
        raise ValueError(
            _checks.message(
                "oracle must be 'prompts', 'reduced' or 'exact'", repr(name), "name one of them"
            )
        )
    if name != "exact" and math.isfinite(L):
        token_count(L)
    if isinstance(task, LinearRegression):
        regression = Regression(task, dtype)
        if name == "exact":
            return ExactOracle(regression, output_moments(L, attention), batch)
        if math.isinf(L):
            return InfinitePrompts(regression, batch)
        if name == "prompts":
            return WholePrompts(regression, batch, int(L), attention)
        if attention == "linear":  # draws no tokens
            return ReducedPrompts(regression, batch, jnp.asarray(L, dtype), attention, 0)
        capacity = capacity_for(token_count(longest or L), SCORES_AND_VALUES)
        length = jnp.asarray(int(L), jnp.uint32)
        return ReducedPrompts(regression, batch, length, attention, capacity)
    if name != "prompts":
        raise ValueError(
            _checks.message(
                f"the oracle {name!r} knows Gaussian linear regression only",
                f"a {type(task).__name__}",
                "pass oracle='prompts', which draws prompts of any task",
            )
        )
    return TaskOracle(task, L, attention, batch)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
