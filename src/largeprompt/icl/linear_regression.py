"""Linear regression in context with Gaussian inputs, exact at every length.

The task of Sections 5 and 6 of Boursier & Boyer.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .. import _checks
from .._arrays import cast
from .._float64 import in_float64, not_traced
from .._lengths import one_length, token_count
from .._linalg import psd_sqrt
from .._typing import ArrayInput, KeyInput
from ..measures import AbstractMeasure, Gaussian
from ..participation import LARGEST, LONGEST, exponential_table
from ..prompts.methods import (
    AbstractMethod,
    Estimate,
    Exact,
    MonteCarlo,
    QuasiMonteCarlo,
    needed_key,
)
from ..prompts.quasi import representative
from ..prompts.sampling import SCORES_AND_VALUES
from ..prompts.weighted_sums import capacity_for, has_kernel
from ._exact_risk import Problem, WeightedDraws
from .gradient_estimators import (
    AbstractPromptLoss,
    ConditionalLoss,
    InfinitePromptLoss,
    LossOfOne,
    Regression,
    ScoreLoss,
    WholePromptLoss,
)
from .many_head_risk import ManyHeadExact, SummedRisk
from .output_moments import output_moments
from .params import AbstractParams, blocks_of
from .prompt_losses import check_tokens
from .regression_risk import RegressionRisk
from .risks import (
    REPLICATES,
    AbstractRisk,
    Attention,
    BatchLoss,
    ExactRisk,
    FreshRisk,
    LossOfKey,
    RiskFunction,
    checked_attention,
    compiled,
    for_each_head,
    mean_of_replicates,
    padded,
    refuse_traced_risk,
    require_number,
    unsupported,
)
from .task import AbstractTask
from .wishart import isotropic_bayes_risk

_POINTS = 256  # values of w in each replicate of a risk
_OBJECTIVE_POINTS = 64  # of an objective, and of each replicate of its test risk
_LOW = 2  # dimensions of the law of w up to which it is replaced by a quadrature rule
_NEGLIGIBLE = 1e-20  # weight of a node of that rule
_PROMPTS = 4096  # Wishart matrices of a batch
# relative errors of closed forms (tests compare them with mpmath and with quadrature)
_LINEAR_ERROR = 1e-12
_SOFTMAX_ERROR, _LONG, _ERROR_OF_LONG = 1e-9, 1e20, 1e-6  # up to _LONG, and beyond
_RANGE = f"the form x_q -> sigma^2 of the score variance must have norm at most {LARGEST:g}"


@final
class LinearRegression(AbstractTask):
    """Linear regression: $w ~ N(0, S_w), x ~ N(0, Sig), y = w'x + noise$, tokens (x, y).

    Queries are (x_q, 0), targets w'x_q + noise.

    Given w the tokens are N(0, G_w) with $G_w = [[Sig, Sig w], [w'Sig, w'Sig w + tau^2]]$.

    **Arguments:** `cov` = Sig, `task_cov` = S_w (identity if None), `noise_variance` = tau^2,
    `query_cov` the covariance of x_q (that of the prompts if None).

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
    >>> params = lp.BlockParams(0.43 * jnp.eye(5), 2.1)
    >>> [round(float(task.risk(params, L).value), 4) for L in (100, 1e9, jnp.inf)]
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
        largest = float(jnp.finfo(self.cov.dtype).max)
        if noise > largest:
            raise _checks.error(
                f"noise_variance must be at most {largest:.1e} in {self.cov.dtype}, as cov has it",
                f"{noise:g}",
                "choose other units, or pass float64 covariances in JAX's 64-bit mode",
            )
        self.noise_variance = jax.device_put(np.asarray(noise, self.cov.dtype))
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

    def sample_w(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        """w ~ N(0, S_w)."""
        return psd_sqrt(self.task_cov) @ jax.random.normal(key, (self.inputs,), self.cov.dtype)

    def tokens(self, w: Float[Array, " d"]) -> AbstractMeasure:
        """N(0, G_w)."""
        pull = self.cov @ w
        corner = w @ pull + self.noise_variance
        G = jnp.block([[self.cov, pull[:, None]], [pull[None], corner[None, None]]])
        return Gaussian(jnp.zeros(self.dim, G.dtype), G, check=False)

    def sample_query(
        self, key: Key[Array, ""], w: Float[Array, " d"]
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """(x_q, 0) and w'x_q + noise."""
        draw = jax.random.normal(key, (self.dim,), self.cov.dtype)
        x = psd_sqrt(self.query_cov) @ draw[:-1]
        return jnp.append(x, 0.0), w @ x + jnp.sqrt(self.noise_variance) * draw[-1]

    def problem(self) -> Problem:
        """What the exact formulas need, in float64."""
        given = (self.cov, self.query_cov, self.task_cov, self.noise_variance)
        cov, query_cov, task_cov, noise = cast(given, jnp.float64)
        return Problem(cov, psd_sqrt(query_cov), task_cov, noise)

    def risk_function(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        draws: Float[Array, "n d"] | WeightedDraws | None = None,
    ) -> RegressionRisk:
        """The risk at length L as a function of parameters, to differentiate; in 64-bit mode.

        `draws` are values of w to average over where no closed form exists: softmax attention at
        finite L with a head that is not in block form.
        """
        if draws is not None and not isinstance(draws, WeightedDraws):
            draws = _equally_weighted(draws)
        return RegressionRisk(*self._ingredients(L, attention), draws)

    def risk_by(
        self,
        L: ArrayInput,
        attention: Attention,
        like: AbstractParams,
        method: AbstractMethod | None,
    ) -> AbstractRisk:
        """By every method: closed form, quadrature, quasi-random w, and sampled prompts.

        The average over the query is exact unless prompts are sampled. The risk is in closed form
        for heads in block form, and for every head under linear attention or at L = infinity.
        Otherwise w remains to be averaged over: `lp.Exact()` uses Gauss-Hermite quadrature where w
        has at most two dimensions, with the distance to a rule of a third fewer nodes an axis as
        error; `lp.QuasiMonteCarlo(key)` uses 256 quasi-random values (or `points`) in each of its
        scramblings.
        """
        if isinstance(method, MonteCarlo):
            return super().risk_by(L, attention, like, method)
        return task_risk(self, L, attention, like, method)

    def exact_risk(
        self, length: float, attention: Attention, like: AbstractParams
    ) -> AbstractRisk | None:
        """Closed forms, or quadrature where w has at most two dimensions; in 64-bit mode."""
        closed = self._closed_form(length, attention, like)
        if closed is None and len(like.parts()) == 1 and self._rank() <= _LOW:
            return _Quadrature(self, length, attention)
        return closed

    def _closed_form(
        self, length: float, attention: Attention, like: AbstractParams
    ) -> AbstractRisk | None:
        blocks = blocks_of(like)
        if len(like.parts()) > 1:
            if blocks is None:
                return None
            if attention == "linear" or math.isinf(length):
                summed = SummedRisk(self.risk_function(length, attention))
                return ExactRisk(summed, _LINEAR_ERROR, _RANGE)
            self._check_length(length)
            return ManyHeadExact(self.problem(), length)
        if attention == "linear" or math.isinf(length):
            return ExactRisk(self.risk_function(length, attention), _LINEAR_ERROR, _RANGE)
        if like.as_block() is None:
            return None
        error = _SOFTMAX_ERROR if length <= _LONG else _ERROR_OF_LONG
        return ExactRisk(self.risk_function(length, attention), error, _RANGE)

    def _ingredients(self, L: ArrayInput, attention: Attention) -> tuple[Problem, Any]:
        checked_attention(attention)
        length = one_length(L)
        if attention == "softmax" and math.isfinite(length):
            self._check_length(length)
            return self.problem(), exponential_table(length)
        # at infinity softmax attention of Gaussian tokens is linear attention (Lemma 2.1)
        return self.problem(), jax.device_put(np.float64(1 / length))

    def _check_length(self, length: float) -> None:
        if length > LONGEST:
            raise _checks.error(
                f"the risk of softmax attention is computed for L up to {LONGEST:g}",
                f"L = {length:g}",
                "pass L=jnp.inf",
            )

    def _rank(self) -> int:
        """The dimension of the law of w."""
        sizes = np.linalg.eigvalsh(np.asarray(self.task_cov, np.float64))
        return int(np.sum(sizes > 1e-12 * max(sizes[-1], 0.0)))

    def quadrature_of_w(self, count: int, share: float = 1.0) -> WeightedDraws:
        """Gauss-Hermite quadrature of the law of w with at most `count` nodes.

        `share` scales the number of nodes an axis.
        """
        from scipy.special import roots_hermitenorm

        sizes, axes = np.linalg.eigh(np.asarray(self.task_cov, np.float64))
        kept = sizes > 1e-12 * max(sizes[-1], 0.0)
        rank = int(np.sum(kept))
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
        return WeightedDraws(jnp.asarray(points), jnp.asarray(products[large]))

    def quasi_random_w(self, key: KeyInput, exponent: int = 7) -> Float[Array, "n d"]:
        """2^exponent quasi-random values of w and their negatives, so odd terms average to 0."""
        law = Gaussian(jnp.zeros(self.inputs), self.task_cov.astype(jnp.float64), check=False)
        points = representative(key, law, exponent).points
        return jnp.concatenate([points, -points])

    def is_stiff(self, length: float) -> bool:
        """At infinity the flow ends where it meets the valley: nothing drifts."""
        return math.isfinite(length)

    def loss_of_prompt(
        self, params: AbstractParams, length: float, attention: Attention, method: MonteCarlo
    ) -> LossOfKey:
        """From the scores alone, in float32; with `whole_tokens` as for every task."""
        if method.whole_tokens or len(params.parts()) > 1:
            return super().loss_of_prompt(params, length, attention, method)
        loss = self.batch_loss(length, attention, method, 1, jnp.float32)
        assert isinstance(loss, AbstractPromptLoss)
        return LossOfOne(loss, jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params))

    def batch_loss(
        self,
        length: float,
        attention: Attention,
        method: AbstractMethod,
        batch: int,
        dtype: Any,
        longest: float | None = None,
    ) -> BatchLoss:
        """By `lp.Exact()` the expectation given w and queries; by `lp.MonteCarlo()` from scores."""
        regression = Regression(self, dtype)
        if isinstance(method, Exact):
            of_softmax = jax.device_put(np.float64(math.inf if attention == "linear" else length))
            return ConditionalLoss(regression, output_moments(length, attention), of_softmax, batch)
        if not isinstance(method, MonteCarlo):
            serves = "lp.Exact(), lp.MonteCarlo() or lp.MonteCarlo(whole_tokens=True)"
            raise unsupported(self, "three gradient estimators", method, serves)
        if math.isinf(length):
            return InfinitePromptLoss(regression, batch)
        tokens = token_count(length)
        if method.whole_tokens or attention == "softmax":
            fix = "pass method=lp.Exact(), whose cost does not depend on L, or a shorter L"
            check_tokens(length, batch, fix)
        if method.whole_tokens:
            return WholePromptLoss(regression, batch, tokens, attention)
        if attention == "linear":  # draws no tokens
            return ScoreLoss(
                regression, batch, jax.device_put(np.asarray(length, dtype)), attention, 0
            )
        capacity = capacity_for(token_count(longest or length), SCORES_AND_VALUES)
        return ScoreLoss(regression, batch, jax.device_put(np.uint32(tokens)), attention, capacity)

    def batching_key(self, length: float, attention: Attention, method: AbstractMethod) -> Hashable:
        """All runs share a key under `lp.Exact()`, those of one attention under `lp.MonteCarlo()`.

        A kernel draws as many tokens as each prompt needs; XLA alone gives all prompts of a program
        the same capacity, so runs must then need the same.
        """
        if isinstance(method, Exact):
            return None
        if math.isinf(length) or not isinstance(method, MonteCarlo) or method.whole_tokens:
            return (length, attention)
        if attention == "linear" or has_kernel(SCORES_AND_VALUES):
            return attention
        return (capacity_for(token_count(length), SCORES_AND_VALUES), attention)

    def test_risk(
        self,
        key: Key[Array, ""],
        runs: Sequence[tuple[float, Attention]],
        like: AbstractParams,
    ) -> FreshRisk:
        """Exact in block form; otherwise exact given w and query, over quasi-random ones."""
        from .regression_test_risk import conditional_test_risk, exact_test_risk

        if blocks_of(like) is not None:
            risks = [self._closed_form(*run, like) for run in runs]
            return exact_test_risk([risk.objective() for risk in risks if risk is not None])
        if len(like.parts()) > 1:
            return super().test_risk(key, runs, like)
        return conditional_test_risk(self, key, runs)

    @not_traced
    @in_float64
    def bayes_risk(self, L: ArrayInput, method: AbstractMethod | None = None) -> Estimate:
        """The risk of the posterior mean: ridge regression with penalty tau^2 S_w^-1.

        At infinity the noise floor tau^2/2. At finite L it is
        $1/2 (tau^2 + E tr(Sig_q Cov(w | prompt)))$, Sig_q the covariance of the query, averaged
        over Wishart matrices X'X at a cost that does not depend on L: exactly (`method` None or
        `lp.Exact()`) where all covariances are multiples of the identity, from their mean spectral
        density. Otherwise `method` must be `lp.MonteCarlo(key)`, which draws batches of 4096
        matrices (or `batch`).

        >>> import jax, jax.numpy as jnp
        >>> import largeprompt as lp
        >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
        >>> found = task.bayes_risk(100, lp.MonteCarlo(jax.random.key(0)))
        >>> print(f"{found.value:.4f} {task.bayes_risk(100).value:.6f}")
        0.0526 0.052645
        """
        length = one_length(L)
        if method is None or isinstance(method, Exact) or math.isinf(length):
            exact = self.exact_bayes_risk(length)
            if exact is not None:
                return exact
        _check_whole(length)
        if not isinstance(method, MonteCarlo):
            limits = "an exact Bayes risk only if all covariances are multiples of the identity"
            raise unsupported(self, limits, method, "lp.MonteCarlo(key)")
        key, problem = needed_key(method), self.problem()
        size = min(method.batch or _PROMPTS, method.max_replicates)
        draws = np.empty(0)
        while True:
            batch = key if not draws.size else jax.random.fold_in(key, draws.size)
            found = _posterior_variances(batch, problem, jnp.asarray(length), size)
            draws = np.append(draws, found)
            value = float(problem.noise) / 2 + draws.mean() / 2
            error = draws.std(ddof=1) / math.sqrt(draws.size) / 2
            enough = error <= method.relative_error * value
            if enough or draws.size + size > method.max_replicates:
                return Estimate(np.asarray(value), np.asarray(error), method)

    @in_float64
    def exact_bayes_risk(self, length: float) -> Estimate | None:
        """The risk of ridge regression where it is known exactly, otherwise None."""
        problem = self.problem()
        if math.isinf(length):
            return Estimate(np.asarray(float(problem.noise) / 2), np.asarray(0.0), Exact())
        _check_whole(length)
        value = isotropic_bayes_risk(problem, int(length))
        if value is None:
            return None
        return Estimate(np.asarray(value), np.asarray(_LINEAR_ERROR * value), Exact())

    @not_traced
    @in_float64
    def minimiser(
        self, L: ArrayInput, attention: Attention = "softmax", heads: int = 1
    ) -> "Minimiser":
        """The best head in block form, its risk, and the gradient norm there, which certifies it.

        Linear attention: closed form. Softmax: BFGS from the minimiser of linear attention, then
        Newton steps. Several `heads` give the best `MultiHeadParams` found: the best pair, to which
        opposite pairs and single heads are added one after the other. That they are the best of all
        is not certified. Their risk may have no minimiser: where heads do best in the limit
        A_h -> 0 with b_h A_h fixed, the descent stops on the way. Where larger scores than the
        exact risk allows may do better, it stops there: it warns, and `at_limit` is True. `status`
        says which. All A_h are multiples of the identity for isotropic tasks, and have the
        eigenvectors of all covariances if they share them.

        >>> import jax.numpy as jnp
        >>> import largeprompt as lp
        >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
        >>> found = task.minimiser(100)
        >>> print(f"{found.risk:.5f} {found.params.A[0, 0]:.3f} {found.gradient_norm < 1e-9}")
        0.12933 0.431 True
        """
        from .minimise import minimise_block
        from .minimise_heads import minimise_heads

        checked_attention(attention)
        length, count = one_length(L), _checks.count("heads", heads)
        if count == 1:
            return Minimiser(*minimise_block(self, length, attention))
        return Minimiser(*minimise_heads(self, length, attention, count))


class Minimiser(NamedTuple):
    """A minimiser of the risk over heads in block form."""

    params: Any  # BlockParams, or MultiHeadParams for several heads
    risk: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    at_limit: bool = False  # whether scores ended at the largest deviation of the exact risk
    status: str = "converged"  # or why `gradient_norm` is not small


class _Quadrature(AbstractRisk):
    """Gauss-Hermite quadrature over w; the distance to a coarser rule is the error."""

    def __init__(self, task: LinearRegression, length: float, attention: Attention):
        self.task, self.length = task, length
        self.attention: Attention = attention

    def _function(self, count: int, share: float = 1.0) -> RiskFunction:
        rule = self.task.quadrature_of_w(count, share)
        return self.task.risk_function(self.length, self.attention, rule)

    def objective(self) -> RiskFunction:
        return self._function(_OBJECTIVE_POINTS)

    @in_float64
    def of(self, params: AbstractParams) -> Estimate:
        refuse_traced_risk(params)
        return self._estimate(REPLICATES * _POINTS, lambda risk: compiled(risk, params))

    def fresh(self) -> FreshRisk:
        def along(params: AbstractParams) -> Estimate:
            heads, number = padded(params)
            found = self._estimate(
                REPLICATES * _OBJECTIVE_POINTS, lambda risk: _along(number, risk, heads)
            )
            return _first(found, int(number))

        return along

    def _estimate(self, count: int, evaluate: Callable[[RiskFunction], Array]) -> Estimate:
        value, coarse = (
            _inside(np.asarray(evaluate(self._function(count, share)))) for share in (1.0, 2 / 3)
        )
        return Estimate(value, np.abs(value - coarse) + 1e-14 * np.abs(value), Exact())


class _QuasiRandom(AbstractRisk):
    """The risk over quasi-random w, in scramblings that give the error."""

    def __init__(
        self, task: LinearRegression, length: float, attention: Attention, method: QuasiMonteCarlo
    ):
        self.task, self.length, self.method = task, length, method
        self.attention: Attention = attention
        needed_key(method)

    def _keys(self) -> Key[Array, " replicates"]:
        return jax.random.split(needed_key(self.method), self.method.replicates)

    def _functions(self, keys: Any, default: int) -> list[RiskFunction]:
        # a power of two, half of them negatives of the others
        exponent = max(0, math.ceil(math.log2(self.method.points or default)) - 1)
        draws = [self.task.quasi_random_w(key, exponent) for key in keys]
        return [self.task.risk_function(self.length, self.attention, w) for w in draws]

    @in_float64
    def of(self, params: AbstractParams) -> Estimate:
        refuse_traced_risk(params)
        functions = self._functions(self._keys(), _POINTS)
        values = [np.asarray(compiled(function, params)) for function in functions]
        return mean_of_replicates(_inside(np.stack(values)), self.method)

    def objective(self) -> RiskFunction:
        return self._functions([needed_key(self.method)], _OBJECTIVE_POINTS)[0]

    def fresh(self) -> FreshRisk:
        functions = self._functions(self._keys(), _OBJECTIVE_POINTS)

        def along(params: AbstractParams) -> Estimate:
            heads, number = padded(params)
            values = np.stack([_along(number, function, heads) for function in functions])
            return _first(mean_of_replicates(_inside(values), self.method), int(number))

        return along


def _check_whole(length: float) -> None:
    if not length.is_integer():
        raise _checks.error(
            "the Bayes risk at finite L needs a whole number of tokens",
            f"L = {length:g}",
            "pass an integer L",
        )


def _equally_weighted(draws: Float[Array, "n d"]) -> WeightedDraws:
    return WeightedDraws(draws, jnp.full(len(draws), 1 / len(draws)))


@in_float64
def task_risk(
    task: LinearRegression,
    L: ArrayInput,
    attention: Attention,
    like: AbstractParams,
    method: AbstractMethod | None,
) -> AbstractRisk:
    """The risk by a method that samples no prompts."""
    checked_attention(attention)
    task.check_params(like)
    length = one_length(L)
    quasi = isinstance(method, QuasiMonteCarlo)
    if quasi or method is None or isinstance(method, Exact):
        known = task._closed_form if quasi else task.exact_risk
        found = known(length, attention, like)
        if found is not None:
            return found
    if len(like.parts()) > 1:
        limits = "a risk of several heads in closed form only if all are in block form"
        raise unsupported(task, limits, method, "lp.MonteCarlo(key), or heads of BlockParams")
    if isinstance(method, QuasiMonteCarlo):
        return _QuasiRandom(task, length, attention, method)
    limits = (
        "an exact softmax risk at finite L only for block heads, or w of at most two dimensions"
    )
    serves = "lp.QuasiMonteCarlo(key) or lp.MonteCarlo(key), or BlockParams"
    raise unsupported(task, limits, method, serves)


@eqx.filter_jit
def _along(
    count: Int[Array, ""], function: RiskFunction, heads: AbstractParams
) -> Float[Array, " heads"]:
    """Risks of the first `count` heads on a leading axis."""
    return for_each_head(function, heads, count)


def _first(found: Estimate, count: int) -> Estimate:
    return found._replace(value=found.value[:count], error=found.error[:count])


def _inside(risk: np.ndarray) -> np.ndarray:
    return require_number(risk, _RANGE)


@eqx.filter_jit
def _posterior_variances(
    key: Key[Array, ""], problem: Problem, L: Float[Array, ""], n: int
) -> Float[Array, " n"]:
    """Draws of tr(Sig_q Cov(w | prompt)).

    With w = R g and X'X = B W B', W ~ Wishart(L, I), the posterior covariance of g is
    (I + R'B W B'R / tau^2)^-1, a projection without noise.
    """
    d = problem.cov.shape[0]
    root = psd_sqrt(problem.task_cov)
    through, asked = psd_sqrt(problem.cov) @ root, problem.root.T @ root

    def one(key: Key[Array, ""]) -> Float[Array, ""]:
        for_normals, for_lengths = jax.random.split(key)
        # Bartlett: W = C C', C lower triangular, its diagonal chi variables of L, L-1, .. degrees
        # of freedom; where L < d the other columns are 0, so that one program serves every L
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
