"""Linear regression in context with Gaussian inputs: the task of Sections 5 and 6 of Boursier & Boyer, exact at every length."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .. import _checks
from .._float64 import in_float64, is_traced
from .._lengths import one_length
from .._linalg import psd_sqrt
from .._typing import ArrayInput, KeyInput
from ..measures import AbstractMeasure, Gaussian
from ..participation import LARGEST, LONGEST, exponential_table
from ..prompts import Estimate
from ..prompts.quasi import representative
from ._exact_risk import Problem, WeightedTasks, block_linear, block_softmax, general_softmax
from ._linear_risk import linear_risk
from .params import BlockParams, Params
from .task import (
    Attention,
    FreshRisk,
    RiskFunction,
    Task,
    checked_attention,
    for_each_head,
    needed_key,
    padded,
)

_TASKS = 2048  # behind the risk of a head that is not in block form
_OBJECTIVE_TASKS = (
    64  # behind its objective, and behind each of the replicates that measure its risk along a flow
)
_REPLICATES = 8
_LOW = 2  # dimensions of the law of w up to which it is replaced by a quadrature rule
_NEGLIGIBLE = 1e-20  # weight of a node of that rule
_PROMPTS = 4096  # Wishart matrices behind the risk of ridge regression


class LinearRegression(Task):
    """w ~ N(0, S_w); x ~ N(0, Sig); y = w'x + noise; tokens (x, y), query (x_q, 0), target w'x_q + noise.

    Given w the tokens are N(0, G_w) with G_w = [[Sig, Sig w], [w'Sig, w'Sig w + tau^2]].

    **Arguments:** `cov` = Sig, `task_cov` = S_w (identity if None), `noise_variance` = tau^2, `query_cov` the covariance of x_q
    (that of the prompts if None).

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
    >>> params = lp.BlockParams(0.43 * jnp.eye(5), 2.1)
    >>> [round(float(task.risk(params, L)), 4) for L in (100, 1e9, jnp.inf)]
    [0.1299, 0.0547, 0.0547]
    """

    cov: Float[Array, "d d"]
    task_cov: Float[Array, "d d"]
    noise_variance: Float[Array, ""]
    query_cov: Float[Array, "d d"]

    def __init__(
        self,
        cov: ArrayInput,
        task_cov: ArrayInput | None = None,
        noise_variance: ArrayInput = 0.0,
        query_cov: ArrayInput | None = None,
    ):
        self.cov = _checks.covariance("cov", cov)
        d = self.cov.shape[0]
        given = np.eye(d) if task_cov is None else task_cov
        self.task_cov = _checks.covariance("task_cov", given).astype(self.cov.dtype)
        _checks.shaped("task_cov", self.task_cov, (d, d))
        noise = _checks.number("noise_variance", noise_variance, "pass a variance", least=0.0)
        self.noise_variance = jnp.asarray(noise, self.cov.dtype)
        self.query_cov = self.cov
        if query_cov is not None:
            self.query_cov = _checks.covariance("query_cov", query_cov).astype(self.cov.dtype)
            _checks.shaped("query_cov", self.query_cov, (d, d))

    @property
    def inputs(self) -> int:
        """The dimension d of the inputs."""
        return self.cov.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d + 1 of a token."""
        return self.inputs + 1

    def sample_task(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        """A vector w."""
        return psd_sqrt(self.task_cov) @ jax.random.normal(key, (self.inputs,), self.cov.dtype)

    def tokens(self, task: Float[Array, " d"]) -> AbstractMeasure:
        """N(0, G_w)."""
        pull = self.cov @ task
        corner = task @ pull + self.noise_variance
        G = jnp.block([[self.cov, pull[:, None]], [pull[None], corner[None, None]]])
        return Gaussian(jnp.zeros(self.dim, G.dtype), G, check=False)

    def sample_query(
        self, key: Key[Array, ""], task: Float[Array, " d"]
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """(x_q, 0) and w'x_q + noise."""
        draw = jax.random.normal(key, (self.dim,), self.cov.dtype)
        x = psd_sqrt(self.query_cov) @ draw[:-1]
        return jnp.append(x, 0.0), task @ x + jnp.sqrt(self.noise_variance) * draw[-1]

    def problem(self) -> Problem:
        """What the exact formulas need, in float64."""
        given = (self.cov, self.query_cov, self.task_cov, self.noise_variance)
        cov, query_cov, task_cov, noise = (a.astype(jnp.float64) for a in given)
        return Problem(cov, psd_sqrt(query_cov), task_cov, noise)

    def risk_function(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        tasks: Float[Array, "n d"] | WeightedTasks | None = None,
    ) -> RiskFunction:
        """The risk at length L as a function of parameters, to differentiate and to descend; in 64-bit mode.

        `tasks` are the tasks to average over where no closed form exists: softmax attention at
        finite L with a head that is not in block form.
        """
        if tasks is not None and not isinstance(tasks, WeightedTasks):
            tasks = _equally_weighted(tasks)
        return eqx.Partial(_risk, *self._ingredients(L, attention), tasks)

    def objective(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        like: Params,
        key: KeyInput | None = None,
        samples: int | None = None,
    ) -> RiskFunction:
        """The exact risk where `risk` has a closed form; otherwise its average over `samples`
        tasks (64 if None).

        Those are quasi-random tasks drawn from `key`; where w lives in at most two dimensions,
        nodes of Gauss-Hermite quadrature, without a key.
        """
        self.check_size(like)
        if _has_closed_form(like, L, attention):
            return self.risk_function(L, attention)
        count = _OBJECTIVE_TASKS if samples is None else _checks.count("samples", samples)
        rule = self._quadrature(count)
        return self.risk_function(
            L, attention, self.tasks(_needed(key), _exponent(count)) if rule is None else rule
        )

    def fresh_risk(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        like: Params,
        key: KeyInput | None = None,
        samples: int | None = None,
    ) -> FreshRisk | None:
        """None where the objective is the exact risk. Otherwise the risk over tasks that the
        objective does not use.
        """
        if _has_closed_form(like, L, attention):
            return None
        count = _OBJECTIVE_TASKS if samples is None else _checks.count("samples", samples)
        averages = self._averages(L, attention, key, _REPLICATES * count)

        def along(params: Params) -> Estimate:
            heads, number = padded(params)
            found = averages(heads, partial(_along, number))
            return found._replace(
                value=found.value[: int(number)], standard_error=found.standard_error[: int(number)]
            )

        return along

    def _ingredients(self, L: ArrayInput, attention: Attention) -> tuple[Problem, Any]:
        checked_attention(attention)
        length = one_length(L)
        if attention == "softmax" and math.isfinite(length):
            if length > LONGEST:
                raise ValueError(
                    _checks.message(
                        f"the risk of softmax attention is computed for L up to {LONGEST:g}",
                        f"L = {length:g}",
                        "pass L=jnp.inf",
                    )
                )
            return self.problem(), exponential_table(length)
        # at infinity softmax attention of Gaussian tokens is linear attention (Lemma 2.1)
        return self.problem(), jnp.asarray(1 / length, jnp.float64)

    @in_float64
    def risk(
        self,
        params: Params,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        key: KeyInput | None = None,
        samples: int | None = None,
    ) -> Any:
        """1/2 E (prediction - target)^2 over tasks, prompts of L tokens and queries; L = infinity included.

        Closed form, so a differentiable number without a key: heads in block form, and every head
        under linear attention or at L = infinity. Otherwise an `Estimate`: the average over the
        query is exact, that over tasks uses `samples` of them (2,048 if None). Where w lives in at
        most two dimensions they are nodes of Gauss-Hermite quadrature, the error is the distance
        to a rule with a third fewer nodes an axis, and no key is needed; otherwise they are
        quasi-random, in eight scramblings drawn from `key`, whose spread is the error.

        >>> import jax.numpy as jnp
        >>> import largeprompt as lp
        >>> task = lp.LinearRegression(jnp.eye(2), noise_variance=0.1)
        >>> head = lp.HeadParams(jnp.eye(3) / 2, jnp.array([0.1, 0.0, 1.5]))
        >>> [round(float(task.risk(head, L, "linear")), 4) for L in (10, 1e9, jnp.inf)]
        [0.2885, 0.1138, 0.1138]
        """
        self.check_size(params)
        if _has_closed_form(params, L, attention):
            return _inside(_compiled_risk(*self._ingredients(L, attention), None, params))
        count = _TASKS if samples is None else _checks.count("samples", samples)
        return self._averages(L, attention, key, count)(params, _compiled_risk)

    def _averages(
        self, L: ArrayInput, attention: Attention, key: KeyInput | None, count: int
    ) -> Callable[[Params, Callable[..., Array]], Estimate]:
        """The risk of general heads over `count` tasks in all, with an error, by a function of
        (problem, length, tasks, params).
        """
        given, fine = self._ingredients(L, attention), self._quadrature(count)
        if fine is not None:
            coarse = self._quadrature(count, share=2 / 3)

            def by_quadrature(params: Params, risk: Callable[..., Array]) -> Estimate:
                value, other = (
                    _inside(np.asarray(risk(*given, t, params))) for t in (fine, coarse)
                )
                return Estimate(value, np.abs(value - other) + 1e-14 * np.abs(value), 1)

            return by_quadrature
        keys = jax.random.split(_needed(key), _REPLICATES)
        exponent = _exponent(math.ceil(count / _REPLICATES))
        rules = [_equally_weighted(self.tasks(k, exponent)) for k in keys]

        def by_replicates(params: Params, risk: Callable[..., Array]) -> Estimate:
            values = _inside(np.stack([np.asarray(risk(*given, t, params)) for t in rules]))
            error = values.std(axis=0, ddof=1) / math.sqrt(_REPLICATES)
            return Estimate(values.mean(axis=0), error, _REPLICATES)

        return by_replicates

    def _quadrature(self, count: int, share: float = 1.0) -> WeightedTasks | None:
        """Gauss-Hermite quadrature of the law of w with at most `count` nodes, or None where w has
        too many dimensions.

        `share` scales the number of nodes an axis.
        """
        sizes, axes = np.linalg.eigh(np.asarray(self.task_cov, np.float64))
        kept = sizes > 1e-12 * max(sizes[-1], 0.0)
        rank = int(np.sum(kept))
        if rank > _LOW:
            return None
        from scipy.special import roots_hermitenorm

        an_axis = min(128, int(count ** (1 / max(rank, 1)) + 1e-9))
        x, weights = roots_hermitenorm(max(1, round(share * an_axis)))
        weights = weights / np.sum(weights)
        grid = np.stack(np.meshgrid(*[x] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
        products = np.ones(1)
        for _ in range(rank):
            products = np.outer(products, weights).ravel()
        # far nodes have no weight, but scores that may be too large to average
        large = products > _NEGLIGIBLE
        points = (grid[large] * np.sqrt(sizes[kept])) @ axes[:, kept].T
        return WeightedTasks(jnp.asarray(points), jnp.asarray(products[large]))

    def tasks(self, key: KeyInput, exponent: int = 7) -> Float[Array, "n d"]:
        """2^exponent quasi-random tasks with their negatives, so that what is odd in w averages to
        zero.
        """
        law = Gaussian(jnp.zeros(self.inputs), self.task_cov.astype(jnp.float64), check=False)
        points = representative(key, law, exponent).points
        return jnp.concatenate([points, -points])

    def check_size(self, params: Params) -> None:
        """Refuse parameters of heads for tokens of another dimension."""
        size = params.A.shape[0] + 1 if isinstance(params, BlockParams) else params.head.dim
        if size != self.dim:
            raise ValueError(
                _checks.message(
                    f"params must act on tokens of dimension {self.dim}",
                    f"a head for dimension {size}",
                    f"pass A of shape ({self.inputs}, {self.inputs}), or U of shape ({self.dim}, {self.dim})",
                )
            )

    @in_float64
    def bayes_risk(self, L: ArrayInput, key: KeyInput | None = None) -> Estimate:
        """The risk of the posterior mean: the floor tau^2/2 at infinity, ridge regression with penalty tau^2 S_w^-1 at finite L.

        1/2 (tau^2 + E tr(Sig_q Cov(w | prompt))), Sig_q the covariance of the query, averaged over Wishart matrices X'X drawn exactly in law at a cost that does not
        depend on L; needs a `key` at finite L.
        """
        length = one_length(L)
        floor = float(self.noise_variance) / 2
        if math.isinf(length):
            return Estimate(np.asarray(floor), np.asarray(0.0), 1)
        if key is None or not float(length).is_integer():
            raise ValueError(
                _checks.message(
                    "the Bayes risk at finite L needs a whole number of tokens and a key",
                    f"L = {length:g} and key = {key!r}",
                    "pass an integer L and key=jax.random.key(0)",
                )
            )
        draws = np.asarray(
            _posterior_spread(_checks.key(key), self.problem(), jnp.asarray(length), _PROMPTS)
        )
        error = draws.std(ddof=1) / math.sqrt(_PROMPTS) / 2
        return Estimate(np.asarray(floor + draws.mean() / 2), np.asarray(error), _PROMPTS)

    @in_float64
    def minimiser(self, L: ArrayInput, attention: Attention = "softmax") -> "Minimiser":
        """The best head in block form, with its risk and the norm of the gradient there, which certifies it.

        Linear attention: closed form. Softmax: BFGS from the minimiser of linear attention, then Newton steps.

        >>> import jax.numpy as jnp
        >>> import largeprompt as lp
        >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
        >>> found = task.minimiser(100)
        >>> print(round(float(found.risk), 5), round(float(found.params.A[0, 0]), 3), bool(found.gradient_norm < 1e-9))
        0.12933 0.431 True
        """
        from .minimise import minimise_block

        return Minimiser(*minimise_block(self, one_length(L), attention))


def _has_closed_form(like: Params, L: ArrayInput, attention: Attention) -> bool:
    """Whether the risk of such parameters is known without averaging over tasks."""
    checked_attention(attention)
    linear = attention == "linear" or math.isinf(one_length(L))
    return linear or isinstance(like, BlockParams)


def _needed(key: KeyInput | None) -> Key[Array, ""]:
    why = (
        "the softmax risk of a head that is not in block form, at finite L, is averaged over random "
        "tasks"
    )
    return needed_key(key, why, ", or BlockParams")


class Minimiser(NamedTuple):
    """A minimiser of the risk over heads in block form."""

    params: BlockParams
    risk: Float[Array, ""]
    gradient_norm: Float[Array, ""]


def _equally_weighted(tasks: Float[Array, "n d"]) -> WeightedTasks:
    return WeightedTasks(tasks, jnp.full(len(tasks), 1 / len(tasks)))


def _exponent(count: int) -> int:
    """Of the power of two that makes at least `count` tasks with their negatives."""
    return max(0, math.ceil(math.log2(count)) - 1)


def _risk(
    problem: Problem, length: Any, tasks: WeightedTasks | None, params: Params
) -> Float[Array, ""]:
    """The one place that knows which formula serves which parameters; `length` is a table (softmax) or 1/L (linear)."""
    linear = isinstance(length, jax.Array)
    if isinstance(params, BlockParams):
        return (block_linear if linear else block_softmax)(problem, params, length)
    params = jax.tree.map(jnp.asarray, params)  # ends of flows are NumPy arrays
    if linear:
        return linear_risk(problem, *params.matrices(), length)
    if tasks is None:
        raise ValueError(
            _checks.message(
                "a head that is not in block form needs tasks to average over",
                "none",
                "pass tasks=task.tasks(key)",
            )
        )
    return general_softmax(problem, params.general(), length, tasks)


_compiled_risk = eqx.filter_jit(_risk)


@eqx.filter_jit
def _along(
    count: Int[Array, ""], problem: Problem, length: Any, tasks: WeightedTasks, heads: Params
) -> Float[Array, " heads"]:
    """Risks of the first `count` heads on a leading axis."""
    return for_each_head(lambda head: _risk(problem, length, tasks, head), heads, count)


def _inside(risk: Any) -> Any:
    """The risk, refused if it is not a number: at once if known, at run time if traced."""
    return _checks.require(
        risk,
        jnp.isnan(risk) if is_traced(risk) else np.isnan(np.asarray(risk)),
        rule=f"the form x_q -> sigma^2 of the score variance must have norm at most {LARGEST:g}",
        received="larger parameters",
        fix="scale A (or U) down",
    )


@eqx.filter_jit
def _posterior_spread(
    key: Key[Array, ""], problem: Problem, L: Float[Array, ""], n: int
) -> Float[Array, " n"]:
    """Draws of tr(Sig_q Cov(w | prompt)): with w = R g and X'X = B W B', W ~ Wishart(L, I), the posterior of g is
    (I + R'B W B'R / tau^2)^-1, a projection where there is no noise.
    """
    d = problem.cov.shape[0]
    root = psd_sqrt(problem.task_cov)
    through, asked = psd_sqrt(problem.cov) @ root, problem.root.T @ root

    def one(key: Key[Array, ""]) -> Float[Array, ""]:
        for_normals, for_lengths = jax.random.split(key)
        # Bartlett: W = C C' with C lower triangular, its diagonal chi variables of L, L-1, .. degrees of freedom; it has only L
        # columns where L < d, and the others are set to zero, so that one program serves every L
        C = jnp.tril(jax.random.normal(for_normals, (d, d)), -1)
        freedom = L - jnp.arange(d, dtype=L.dtype)
        chi = jnp.sqrt(2 * jax.random.gamma(for_lengths, jnp.maximum(freedom, 1.0) / 2))
        C = jnp.where(freedom > 0, C + jnp.diag(chi), 0.0)
        seen, axes = jnp.linalg.eigh(through.T @ C @ C.T @ through)
        seen = jnp.maximum(seen, 0.0)
        known = problem.noise > 0
        left = jnp.where(
            known,
            problem.noise / jnp.where(known, problem.noise + seen, 1.0),
            (seen <= 1e-10 * seen[-1]).astype(jnp.float64),
        )
        return jnp.sum(left * jnp.sum((asked @ axes) ** 2, axis=0))

    return jax.lax.map(one, jax.random.split(key, n), batch_size=512)
