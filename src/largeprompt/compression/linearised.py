"""Affine maps of the query nearest to attention, and how far attention is from them.

T[mu](z) = V grad psi(U z) is affine if psi is quadratic (Lemma 2.1). Three affine maps serve every
measure:

    origin      psi replaced by its quadratic at u = 0: the Gaussian of mu's mean and covariance
    mean query  psi replaced by its quadratic at u = U E z, the tilt of the mean query
    best        least squares over the law nu of the queries. For Gaussian nu the slope is
                E_nu[V hess psi(U z)] U (Gaussian integration by parts), for every mu.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._float64 import in_float64, is_traced, not_traced
from .._linalg import covariance_root
from .._typing import Array, ArrayInput
from ..attention import AbstractHead, Head
from ..attention.head import one_head
from ..attention.softmax import inside_domain
from ..measures import AbstractMeasure, Gaussian, Scaled
from ..prompts import AbstractMethod, Estimate, Exact, MonteCarlo, QuasiMonteCarlo, needed_key
from ..prompts import representative as represented

At = Literal["best", "mean query", "origin"]

_FOLDS = 5  # parts of given queries, each predicted from the others
_ORDERS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of Gauss-Hermite rules along each axis
_MOST_NODES = 2**14
_GOAL = 1e-11  # relative change at which orders stop growing
_ENOUGH = 1e-4  # largest relative change of slope and residual between the last two orders
_EXPONENT = 10  # 2^10 scrambled queries
_AT_ONCE = 64  # queries whose d x d covariances are in memory


class AffineMap(eqx.Module):
    """The map z -> slope z + intercept, and how far attention is from it.

    `residual.value` is $E|T - slope z - intercept|^2 / E|T - E T|^2$ over the queries: 0 if
    attention is affine, 1 for the best constant. `residual.error` is its error.
    """

    slope: Float[Array, "m k"]
    intercept: Float[Array, " m"]
    residual: Estimate
    at: str = eqx.field(static=True)

    def __repr__(self) -> str:
        if is_traced(self) or not eqx.is_array(self.slope):
            return eqx.tree_pformat(self)
        slope, intercept = (
            np.array2string(np.asarray(part), precision=4, threshold=36).replace("\n", "\n ")
            for part in (self.slope, self.intercept)
        )
        residual = f"{self.residual.value:.4g} +- {self.residual.error:.1g}"
        return (
            f"AffineMap: {self.at}, residual {residual}, slope\n {slope}\nintercept\n {intercept}"
        )

    def __call__(self, z: ArrayInput) -> Float[Array, "*batch m"]:
        z = _checks.finite("z", z)
        z, slope, intercept = _checks.same_dtype(z, self.slope, self.intercept)
        return jnp.matmul(z, slope.T, precision="highest") + intercept


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@not_traced
@in_float64
def linearise(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure | ArrayInput,
    at: At = "best",
    *,
    method: AbstractMethod | None = None,
) -> AffineMap:
    """The affine map of the query nearest to attention on mu, over queries of law nu.

    **Arguments:** `nu` is a law of queries, or an array of sampled queries of shape (n, k). `at` is
    "best" (least squares over nu), "mean query" (Taylor expansion at the mean query) or "origin"
    (expansion at 0: Lemma 2.1 with the moments of mu). `method` says how to average over a law: by
    default exactly, which serves discrete laws and Gaussian queries that reach at most three
    dimensions, unless scores vary too much for a quadrature rule. `QuasiMonteCarlo(key)` serves
    every law; `MonteCarlo(key)` draws `max_replicates` queries and treats them as samples.

    **Returns:** a callable `AffineMap` with `slope`, `intercept` and `residual`, the mean squared
    error over nu relative to the variance of the output. For sampled queries every residual is
    predicted by a map fitted to the other four fifths of them.

    >>> import numpy as np
    >>> import largeprompt as lp
    >>> head = lp.Head(U=np.eye(1), V=np.eye(1))
    >>> found = lp.linearise(head, lp.Rademacher(1), lp.Gaussian([0.0], [[1.0]]))
    >>> print(found.slope.round(4), found.residual.value.round(4))
    [[0.6057]] 0.0695
    """
    head = one_head(head)
    check_dimension("mu", mu, head.dim)
    problem = _Problem(head, mu, at)
    if isinstance(nu, AbstractMeasure):
        check_dimension("nu", nu, head.query_dim)
        slope, intercept, residual = _over_law(problem, nu, method)
    else:
        queries = _checks.shaped("nu", _checks.finite("nu", nu), ("n", head.query_dim))
        if method is not None:
            raise _checks.error(
                "method must be None if nu is an array of sampled queries",
                f"method={method!r}",
                "pass the law of the queries as nu, or leave method out",
            )
        slope, intercept, residual = _over_samples(problem, np.asarray(queries, np.float64))
    return AffineMap(jnp.asarray(slope), jnp.asarray(intercept), residual, at)


class _Rule(NamedTuple):
    """Weighted queries; for a Gaussian law the best slope comes from Hessians."""

    z: np.ndarray  # (q, k)
    weights: np.ndarray  # (q,)
    by_hessians: bool


class _Problem(NamedTuple):
    head: Head
    mu: AbstractMeasure
    at: At

    def outputs(self, z: np.ndarray) -> np.ndarray:
        """T at every query."""
        queries = inside_domain(self.head, self.mu, jnp.asarray(z))
        return np.asarray(_outputs(self.head, self.mu, queries))

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """The derivative dT/dz = V hess psi(U z) U at every query."""
        queries = inside_domain(self.head, self.mu, jnp.asarray(z))
        return np.asarray(_slopes(self.head, self.mu, queries))

    def fitted(self, rule: _Rule, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slope and intercept of the map at the queries of a rule."""
        z, weights = rule.z, rule.weights
        if self.at != "best":
            centre = np.zeros((1, z.shape[1])) if self.at == "origin" else (weights @ z)[None]
            slope, output = self.slopes(centre)[0], self.outputs(centre)[0]
            return slope, output - slope @ centre[0]
        mean_z, mean_output = weights @ z, weights @ outputs
        if rule.by_hessians:
            slope = np.tensordot(weights, self.slopes(z), axes=1)
        else:
            roots = np.sqrt(weights)[:, None]
            slope = np.linalg.lstsq(roots * (z - mean_z), roots * (outputs - mean_output))[0].T
        return slope, mean_output - slope @ mean_z


@eqx.filter_jit
def _outputs(head: Head, mu: AbstractMeasure, z: Float[Array, "q k"]) -> Float[Array, "q m"]:
    def one(query: Array) -> Array:
        return head.V @ mu.tilted_mean(head.U @ query)

    return jax.lax.map(one, z, batch_size=_AT_ONCE)


@eqx.filter_jit
def _slopes(head: Head, mu: AbstractMeasure, z: Float[Array, "q k"]) -> Float[Array, "q m k"]:
    def one(query: Array) -> Array:
        return head.V @ mu.tilted_cov(head.U @ query) @ head.U

    return jax.lax.map(one, z, batch_size=_AT_ONCE)


Fit = tuple[np.ndarray, np.ndarray, Estimate]


def _over_law(problem: _Problem, nu: AbstractMeasure, method: AbstractMethod | None) -> Fit:
    """The map and its residual for a law of queries."""
    at_random = nu.uniforms_needed != 0  # not a point
    if isinstance(method, QuasiMonteCarlo) and at_random:
        return _over_scrambled(problem, nu, method)
    if isinstance(method, MonteCarlo) and at_random:
        draws = nu.sample(needed_key(method), method.max_replicates).points
        slope, intercept, residual = _over_samples(problem, np.asarray(draws, np.float64))
        return slope, intercept, residual._replace(method=method)
    if not isinstance(method, Exact | QuasiMonteCarlo | MonteCarlo | None):
        raise _checks.error(
            "method must be Exact, QuasiMonteCarlo, MonteCarlo or None",
            f"a {type(method).__name__}",
            "pass lp.QuasiMonteCarlo(key), or sampled queries as nu",
        )
    head, tokens = problem.head, problem.mu.as_gaussian()
    if tokens is not None:  # Lemma 2.1: every expansion is the map itself
        slope, intercept = head.V @ tokens.covariance @ head.U, head.V @ tokens.centre
        none = np.zeros(())
        return np.asarray(slope), np.asarray(intercept), Estimate(none, none, Exact())
    slope, intercept, residual, change = _converged(problem, _exact_rules(problem, nu))
    return slope, intercept, Estimate(np.asarray(residual), np.asarray(change), Exact())


def _exact_rules(problem: _Problem, nu: AbstractMeasure) -> Iterator[_Rule]:
    """Ever finer rules for averages over nu; a single one if it is exact."""
    normal = nu.as_gaussian()
    if normal is not None:
        root = _root_seen_by(problem.head, normal)
        if root.shape[1] <= 3:
            return _gauss_hermite(np.asarray(normal.centre, np.float64), root)
        raise ValueError(
            _no_exact_rule(f"Gaussian queries that reach {root.shape[1]} dimensions, more than 3")
        )
    if (atoms := nu.atoms()) is not None:
        return iter([_Rule(*_numbers(atoms.points, atoms.weights), False)])
    if nu.quadrature() is not None:
        levels = (nu.quadrature(level) for level in range(5))
        found = (level for level in levels if level is not None)
        return (_Rule(*_numbers(rule.points, rule.weights), False) for rule in found)
    raise ValueError(_no_exact_rule(f"queries of law {type(nu).__name__}"))


def _no_exact_rule(queries: str) -> str:
    return _checks.message(
        "linearise needs an exact rule for averages over nu, or another method",
        queries,
        "pass method=lp.QuasiMonteCarlo(key) or lp.MonteCarlo(key), or sampled queries as nu",
    )


def _numbers(points: Array, weights: Array) -> tuple[np.ndarray, np.ndarray]:
    weights_64 = np.asarray(weights, np.float64)
    return np.asarray(points, np.float64), weights_64 / weights_64.sum()


def _converged(
    problem: _Problem, rules: Iterator[_Rule]
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Map and residual by ever finer rules, and the last change of the residual."""
    before, change, moved, nodes = None, 0.0, 0.0, 0
    slope, intercept, residual = np.zeros(()), np.zeros(()), 0.0
    for rule in rules:
        outputs, nodes = problem.outputs(rule.z), len(rule.z)
        slope, intercept = problem.fitted(rule, outputs)
        residual = _ratio(rule.weights, outputs, rule.z @ slope.T + intercept)
        if before is not None:
            change = abs(residual - before[0])
            moved = np.max(np.abs(slope - before[1])) / max(np.max(np.abs(slope)), 1e-300)
            if max(moved, change / max(residual, 1e-6)) <= _GOAL:
                break
        before = residual, slope
    if max(moved, change / max(residual, 1e-2)) > _ENOUGH:
        raise ValueError(
            _no_exact_rule(
                f"scores so large that {nodes:,} nodes are not enough: the last refinement "
                f"changed the residual by {change:.1g} and the slope by {moved:.1g} of its size"
            )
        )
    return slope, intercept, residual, change


def _ratio(weights: np.ndarray, outputs: np.ndarray, predicted: np.ndarray) -> float:
    """E|T - predicted|^2 / E|T - E T|^2; 0 where both vanish."""
    error = weights @ np.sum((outputs - predicted) ** 2, axis=1)
    deviation = weights @ np.sum((outputs - weights @ outputs) ** 2, axis=1)
    scale = weights @ np.sum(outputs**2, axis=1)
    if deviation <= 1e-28 * scale:  # a constant output: affine, up to rounding
        return 0.0 if error <= 1e-26 * scale else np.inf
    return float(error / deviation)


def _root_seen_by(head: Head, normal: Gaussian) -> np.ndarray:
    """A factor R with few columns such that z = mean + R g has the law of U z, seen from tokens."""
    root = covariance_root(np.asarray(normal.covariance, np.float64))
    _, values, axes = np.linalg.svd(np.asarray(head.U, np.float64) @ root)
    rank = int(np.sum(values > 1e-13 * max(values.max(initial=0.0), 1e-300)))
    return root @ axes[:rank].T


def _gauss_hermite(mean: np.ndarray, root: np.ndarray) -> Iterator[_Rule]:
    """Tensor rules for z = mean + root g, of growing order."""
    dim = root.shape[1]
    for order in _ORDERS if dim else (1,):
        if order**dim > _MOST_NODES:
            return
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        weights = weights / weights.sum()
        grid = np.stack(np.meshgrid(*[nodes] * dim, indexing="ij"), -1) if dim else np.zeros((1, 0))
        product = np.ones(1)
        for _ in range(dim):
            product = np.multiply.outer(product, weights).ravel()
        kept = product > 1e-20 * product.max()  # far nodes weigh nothing and may overflow
        z = mean + grid.reshape(len(product), dim)[kept] @ root.T
        yield _Rule(z, product[kept] / product[kept].sum(), True)


def _over_scrambled(problem: _Problem, nu: AbstractMeasure, method: QuasiMonteCarlo) -> Fit:
    """Averages over scrambled Sobol queries; independent scramblings give the error."""
    exponent = _EXPONENT if method.points is None else int(np.ceil(np.log2(method.points)))
    keys = jax.random.split(needed_key(method), method.replicates)
    by_hessians = nu.as_gaussian() is not None
    rules = []
    for key in keys:
        points = np.asarray(represented(key, nu, exponent).points, np.float64)
        rules.append(_Rule(points, np.full(len(points), 1 / len(points)), by_hessians))
    outputs = [problem.outputs(rule.z) for rule in rules]
    fits = [problem.fitted(*pair) for pair in zip(rules, outputs, strict=True)]
    slope, intercept = (np.mean(part, axis=0) for part in zip(*fits, strict=True))
    residuals = [
        _ratio(rule.weights, output, rule.z @ slope.T + intercept)
        for rule, output in zip(rules, outputs, strict=True)
    ]
    error = np.std(residuals, ddof=1) / np.sqrt(len(residuals))
    return slope, intercept, Estimate(np.asarray(np.mean(residuals)), np.asarray(error), method)


def _over_samples(problem: _Problem, z: np.ndarray) -> Fit:
    """The map fitted to all queries, its residual by cross-validation."""
    n, k = z.shape
    fewest = -(-(k + 2) * _FOLDS // (_FOLDS - 1))
    if n < fewest:
        raise _checks.error(
            f"an affine map of {k} coordinates needs at least {fewest} queries: those that are "
            "left when a fifth is held out must determine it",
            f"{n} queries",
            "pass more queries, or their law, such as Gaussian(mean, cov)",
        )
    outputs = problem.outputs(z)

    def fit(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rule = _Rule(z[rows], np.full(len(rows), 1 / len(rows)), False)
        return problem.fitted(rule, outputs[rows])

    every = np.arange(n)
    predicted = cross_validated(fit, z, outputs)
    squares = np.sum((outputs - predicted) ** 2, axis=1)
    deviations = np.sum((outputs - outputs.mean(axis=0)) ** 2, axis=1)
    residual = _ratio(np.full(n, 1 / n), outputs, predicted)
    # delta method for the ratio of two means
    spread = squares - (residual if np.isfinite(residual) else 0.0) * deviations
    mean = deviations.mean()
    error = np.std(spread, ddof=1) / np.sqrt(n) / mean if mean > 0 else 0.0
    return *fit(every), Estimate(np.asarray(residual), np.asarray(error), MonteCarlo())


def cross_validated(
    fit: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], z: np.ndarray, outputs: np.ndarray
) -> np.ndarray:
    """Outputs predicted by maps that were fitted without them; every fifth query is held out."""
    predicted = np.empty_like(outputs)
    every = np.arange(len(z))
    for fold in range(_FOLDS):
        out = every % _FOLDS == fold
        slope, intercept = fit(every[~out])
        predicted[out] = z[out] @ slope.T + intercept
    return predicted


def check_dimension(name: str, law: AbstractMeasure, dim: int) -> None:
    """Raise unless `law` is a measure of this dimension."""
    if not isinstance(law, AbstractMeasure) or law.dim != dim:
        got = getattr(law, "dim", None)
        fix = "wrap tokens as Empirical(points) or KeyValues(keys, values)"
        if isinstance(law, Scaled):
            got, fix = law.measure.dim, f"pass {name}.measure: a mass changes no attention"
        raise _checks.error(
            f"{name} must be a measure of dimension {dim}, that of the head",
            f"a {type(law).__name__}" + ("" if got is None else f" of dimension {got}"),
            fix,
        )
