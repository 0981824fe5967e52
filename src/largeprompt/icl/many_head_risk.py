"""The risk of several heads in block form on linear regression, with its gradient (NumPy).

Heads (A_h, b_h), query x_q = B xi, u_h = A_h x_q, S_hk = u_h'Sig u_k the covariances of the scores.
With the functions c, alpha, beta, delta, both of `pair_table`, averaged over w,

    2 R_L = |sum_h b_h Sig A_h B - B|_S^2 + tau^2
          + E { sum_hk b_h b_k [ l c + alpha Y_hh + beta Y_kk + (both + delta) Y_hk ]
                - 2 sum_h b_h P_2^h (sum_k b_k Y_hk - X_h) },

where Y_hk = u_h'Sig S Sig u_k, X_h = u_h'Sig S x_q and l = tr(S Sig) + tau^2 (docs/many_heads.md).
The first term is the limit; the others vanish as L grows, so no digits are lost there. The average
over the query is a rule of `gaussian_rule`: over the radius alone where task and heads are
isotropic, without signs where all matrices share their eigenvectors, and general otherwise.

Derivatives go back from the five functions to S_hk, from there to u_h, and to A_h = sum over points
of (derivative in u_h) xi'.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import to_numpy
from .._float64 import by_host, in_float64, is_traced
from .._typing import Array
from ..participation import correlation, pair_table, range_for, table_error
from ..prompts.gaussian_rule import Form, fitted_rule, isotropic_rule
from ..prompts.methods import Estimate, Exact
from ._exact_risk import Problem, label_size
from .coordinates import Coordinates
from .params import AbstractParams, BlockParams, blocks_of
from .regression_risk import RegressionRisk
from .risks import (
    AbstractRisk,
    NumpyFunction,
    RiskFunction,
    by_numpy,
    require_number,
    risk_of,
)

_SAME = 1e-12  # relative size of entries that count as zero
_RARE = 1e-10  # weight of all points beyond the range of a table
_ROUNDING = 1e-12  # relative, of a risk and of the terms behind it
_PROMISE = 1e-3  # relative error beyond which a risk does not pass for exact
# score deviations beyond which the risk is NaN: larger tables take a minute and more
_LARGEST_ISOTROPIC, _LARGEST = 11.4, 5.7
_RANGE = "the scores of several heads must have deviations of at most 5.6 (11 if isotropic)"


class ManyHeadRisk(eqx.Module):
    """R_L of several heads in block form under softmax attention, 1 <= L < infinity."""

    problem: Problem
    length: float = eqx.field(static=True)
    level: int = eqx.field(static=True, default=2)
    beyond: bool = eqx.field(static=True, default=False)  # clip scores to the largest table

    def __call__(self, params: AbstractParams) -> Float[Array, ""]:
        """For traced parameters: NumPy is called back, for the value and for its gradient."""
        blocks = blocks_of(params)
        assert blocks is not None  # the task offers this risk for heads in block form
        A = jnp.stack([jnp.asarray(block.A, jnp.float64) for block in blocks])
        return _called_back(self, A, jnp.stack([jnp.asarray(block.b, A.dtype) for block in blocks]))

    def by_numpy(self, like: AbstractParams) -> NumpyFunction | None:
        """Risk and gradient of known `BlockParams`; None for other parameters."""
        if any(part.as_block() is not part for part in like.parts()):
            return None

        def evaluate(*leaves: np.ndarray | float) -> tuple[float, list[np.ndarray]]:
            A, b = np.stack(leaves[::2]), np.array([float(leaf) for leaf in leaves[1::2]])
            value, by_A, by_b = self.value_and_gradient(A, b)
            parts = zip(by_A, by_b, strict=True)
            return value, [np.asarray(leaf) for part in parts for leaf in part]

        return evaluate

    def invariant_coordinates(self, A: np.ndarray) -> Coordinates | None:
        """Coordinates of the heads that share what the task has: a gradient flow stays among them.

        Multiples of the identity for an isotropic task, matrices with the eigenvectors of all
        covariances if they share them; None for other tasks or other heads.
        """
        basis = self.basis(*A)
        return None if len(basis) == A[0].size > 1 else _linear(basis, len(A))

    def basis(self, *A: np.ndarray) -> np.ndarray:
        """A basis of the matrices that share what the task and these matrices have.

        The identity if all are multiples of it, projections on the axes if all share their
        eigenvectors, all matrices otherwise.
        """
        Sig, B, S, _ = to_numpy(self.problem)
        d = len(Sig)
        if all(scalar_of(matrix) is not None for matrix in (Sig, B, S, *A)):
            return np.eye(d)[None]
        axes = shared_axes(Sig, B, S, *A)
        if axes is None:
            return np.eye(d * d).reshape(d * d, d, d)
        return np.einsum("ia,ja->aij", axes, axes)

    def value_and_gradient(
        self, A: np.ndarray, b: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """The risk, and its derivatives in A, (heads, d, d), and b, (heads,)."""
        Sig, B, S, noise = to_numpy(self.problem)
        with np.errstate(all="ignore"):  # solvers may try parameters that overflow
            error = np.tensordot(b, Sig @ A @ B, 1) - B
            weighted = S @ error
            limit = float(np.sum(error * weighted))
            back = Sig @ weighted @ B.T
            by_A, by_b = 2 * b[:, None, None] * back, 2 * np.sum(A * back, axis=(1, 2))
            finite = self._finite(A, b) if np.all(np.isfinite(A)) else None
        if finite is None:
            return math.nan, np.full_like(A, np.nan), np.full_like(b, np.nan)
        total = limit + finite[0] + float(noise)
        return total / 2, (by_A + finite[1]) / 2, (by_b + finite[2]) / 2

    def table_error(self, A: np.ndarray, b: np.ndarray) -> float:
        """How much the errors of the tables may change the risk."""
        rule = self._rule(A) if np.all(np.isfinite(A)) else None
        if rule is None:
            return math.nan
        return _table_error(rule.forms, rule.weights, rule.u, b, self.length, rule.isotropic) / 2

    def rule_gap(self, A: np.ndarray) -> float:
        """The relative error of the rule on averages over the query that are known."""
        return self._rule(A).gap if np.all(np.isfinite(A)) else math.nan

    def _finite(self, A: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray] | None:
        """What a finite prompt adds to 2R; None beyond the range of the tables."""
        rule, d = self._rule(A), A.shape[-1]
        found = _averages(
            rule.forms,
            rule.weights,
            rule.u,
            b,
            self.length,
            isotropic=rule.isotropic,
            beyond=self.beyond,
        )
        if found is None:
            return None
        value, by_u, by_b = found
        if rule.isotropic:
            by_a = np.einsum("hnp,np->h", by_u, rule.points)
            return value, by_a[:, None, None] * np.eye(d) / d, by_b
        by_A = by_u.transpose(0, 2, 1) @ rule.points
        if rule.axes is None:
            return value, by_A, by_b
        # by symmetry no derivative leads away from shared eigenvectors
        return value, rule.axes @ (by_A * np.eye(d)) @ rule.axes.T, by_b

    def _rule(self, A: np.ndarray) -> "_Rule":
        """The rule for the average over the query."""
        Sig, B, S, noise = to_numpy(self.problem)
        d, label = len(Sig), float(np.sum(S * Sig) + noise)
        scalars = [c for matrix in (Sig, B, S, *A) if (c := scalar_of(matrix)) is not None]
        if len(scalars) == 3 + len(A):
            s, root, t, *a = scalars
            radii, weights = isotropic_rule(d, self.level)
            points = np.asarray(root) * radii[:, None]
            u = np.array(a)[:, None, None] * points
            forms = _Forms(np.full((1, 1), s), lambda u: s * s * t * u, s * t * points, label)
            return _Rule(forms, weights, points, u, None, isotropic=True)
        axes = shared_axes(Sig, B, S, *A)
        turn = np.eye(d) if axes is None else axes
        Sig, B, S, *A_turned = (turn.T @ matrix @ turn for matrix in (Sig, B, S, *A))
        through = [matrix @ B for matrix in A_turned]
        for one, other in itertools.combinations(tuple(through), 2):
            through += [(one + other) / 2, (one - other) / 2]
        scores = [Form(matrix.T @ Sig @ matrix, np.zeros(d), 0.0) for matrix in through]
        symmetry = "even" if axes is None else "coordinates"
        rule = fitted_rule(scores, self.level, symmetry, math.log(self.length))
        points = rule.points @ B.T
        u = points @ np.stack(A_turned).transpose(0, 2, 1)
        middle = Sig @ S @ Sig
        forms = _Forms(Sig, lambda u: u @ middle, points @ S @ Sig, label)
        return _Rule(forms, rule.weights, points, u, axes, isotropic=False, gap=rule.gap)


class _Forms(NamedTuple):
    """S_hk = u_h'scores u_k, Y_hk = <u_h, square(u_k)>, X_h = <u_h, target>, and l."""

    scores: np.ndarray
    square: Callable[[np.ndarray], np.ndarray]
    target: np.ndarray
    label: Any  # a number, or one for every point


class _Rule(NamedTuple):
    """A quadrature rule over the query: radii if isotropic, otherwise vectors in the given axes."""

    forms: _Forms
    weights: np.ndarray
    points: np.ndarray
    u: np.ndarray  # A_h times the points
    axes: np.ndarray | None
    isotropic: bool
    gap: float = 0.0  # relative error on averages that are known


def _averages(
    forms: _Forms,
    w: np.ndarray,
    u: np.ndarray,
    b: np.ndarray,
    L: float,
    *,
    isotropic: bool,
    beyond: bool = False,
) -> tuple[float, np.ndarray, np.ndarray] | None:
    """The average over points with weights w, and its derivatives in u, (heads, n, p), and b."""
    H = len(b)
    pulled, squared = u @ forms.scores, forms.square(u)
    S = np.einsum("hnp,knp->hkn", u, pulled)
    Y = np.einsum("hnp,knp->hkn", u, squared)
    X = np.sum(u * forms.target, axis=2)
    sigma = np.sqrt(np.maximum(np.einsum("hhn->hn", S), 0.0))
    ranges = _ranges(sigma, w, isotropic, beyond=beyond)
    if ranges is None:
        return None
    by_S, by_Y, by_X, by_b = np.zeros_like(S), np.zeros_like(Y), np.zeros_like(X), np.zeros(H)
    total = 0.0
    drift = np.einsum("k,hkn->hn", b, Y) - X  # sum_k b_k Y_hk - X_h
    for h in range(H):
        for k in range(h, H):
            # small scores, with large b, need the accuracy of a table of small range
            table = pair_table(L, max(ranges[h], ranges[k]), isotropic)
            rho = np.ones_like(w) if h == k else correlation(S[h, h], S[k, k], S[h, k])
            c, alpha, beta, delta, both = table.values(sigma[h], sigma[k], rho)
            slope = table.slopes(sigma[h], sigma[k], rho)
            mixed = both + delta
            inner = forms.label * c + alpha * Y[h, h] + beta * Y[k, k] + mixed * Y[h, k]
            copies = 1.0 if h == k else 2.0
            share = copies * b[h] * b[k] * w
            total += float(share @ inner)
            by_b[h] += copies * b[k] * float(w @ inner)
            by_b[k] += copies * b[h] * float(w @ inner)
            by_Y[h, h] += share * alpha
            by_Y[k, k] += share * beta
            by_Y[h, k] += share * mixed
            # of c exactly, of the others from the table
            extra = [
                part[1] * Y[h, h] + part[2] * Y[k, k] + (part[3] + part[4]) * Y[h, k]
                for part in slope
            ]
            by_S[h, h] += share * (forms.label * alpha / 2 + extra[0])
            by_S[k, k] += share * (forms.label * beta / 2 + extra[1])
            by_S[h, k] += share * (forms.label * delta + extra[2])
            if h == k:  # c is P_2
                less = -2 * b[h] * w * c
                total += float(less @ drift[h])
                by_b[h] += -2 * float((w * c) @ drift[h])
                by_b += Y[h] @ less
                by_Y[h] += less * b[:, None]
                by_X[h] = -less
                by_S[h, h] += -2 * b[h] * w * drift[h] * ((alpha + beta) / 2 + delta)
    by_u = np.einsum("hkn,knp->hnp", by_S + by_S.transpose(1, 0, 2), pulled)
    by_u += np.einsum("hkn,knp->hnp", by_Y + by_Y.transpose(1, 0, 2), squared)
    return total, by_u + by_X[:, :, None] * forms.target, by_b


def _table_error(
    forms: _Forms, w: np.ndarray, u: np.ndarray, b: np.ndarray, L: float, isotropic: bool
) -> float:
    """A bound on the error of `_averages`: those of the tables, and of deviations beyond them.

    The five functions are at most 1 in size, so a deviation that a table clips changes a term by
    at most its factor.
    """
    squared = forms.square(u)
    sigma = np.sqrt(np.maximum(np.sum(u * (u @ forms.scores), axis=2), 0.0))
    ranges = _ranges(sigma, w, isotropic)
    if ranges is None:
        return math.nan
    Y = np.abs(np.einsum("hnp,knp->hkn", u, squared))
    X = np.abs(np.sum(u * forms.target, axis=2))
    drift = np.einsum("k,hkn->hn", np.abs(b), Y) + X
    total = 0.0
    for h in range(len(b)):
        for k in range(len(b)):
            largest = max(ranges[h], ranges[k])
            errors = table_error(L, largest, isotropic)(sigma[h], sigma[k])
            errors = errors + (np.maximum(sigma[h], sigma[k]) > largest)
            c, alpha, beta, delta, both = errors
            inner = forms.label * c + alpha * Y[h, h] + beta * Y[k, k] + (delta + both) * Y[h, k]
            total += abs(b[h] * b[k]) * float(np.abs(w) @ inner)
            if h == k:
                total += 2 * abs(b[h]) * float(np.abs(w) @ (c * drift[h]))
    return total


def _ranges(
    sigma: np.ndarray, w: np.ndarray, isotropic: bool, *, beyond: bool = False
) -> list[float] | None:
    """The range of the table that each head needs, None if it is beyond all tables.

    With `beyond` the largest range in place of None.
    """
    limit = _LARGEST_ISOTROPIC if isotropic else _LARGEST
    if beyond:
        sigma = np.minimum(sigma, limit / 1.01)
    found = [range_for(_needed(deviations, w)) for deviations in sigma]
    within = [largest for largest in found if largest is not None and largest <= limit]
    return within if len(within) == len(found) else None


def _needed(sigma: np.ndarray, w: np.ndarray) -> float:
    """The deviation beyond which points are too rare to matter; the tables clip them."""
    order = np.argsort(-sigma)
    rare = np.cumsum(np.abs(w)[order]) < _RARE
    return float(sigma[order][min(int(np.sum(rare)), len(w) - 1)])


def _linear(basis: np.ndarray, heads: int) -> Coordinates:
    """Coefficients of every A_h in an orthogonal basis, and b_h, of flat parameters."""
    d = basis.shape[1]
    inverse = basis.reshape(len(basis), -1)
    forward = inverse / np.sum(inverse**2, axis=1, keepdims=True)

    def to(y: np.ndarray) -> np.ndarray:
        rows = y.reshape(heads, d * d + 1)
        return np.concatenate([rows[:, :-1] @ forward.T, rows[:, -1:]], axis=1).ravel()

    def back(x: np.ndarray) -> np.ndarray:
        rows = x.reshape(heads, len(basis) + 1)
        return np.concatenate([rows[:, :-1] @ inverse, rows[:, -1:]], axis=1).ravel()

    return Coordinates(to, back, lambda y, change: to(change))


def scalar_of(matrix: np.ndarray) -> float | None:
    """The number c of a matrix c I, None of others."""
    c = float(np.mean(np.diag(matrix)))
    gap = np.max(np.abs(matrix - c * np.eye(len(matrix))))
    return c if gap <= _SAME * np.max(np.abs(matrix)) else None


def shared_axes(*matrices: np.ndarray) -> np.ndarray | None:
    """Eigenvectors of all matrices, None if there are none."""
    mix = np.zeros_like(matrices[0])
    # distinct coefficients, so that eigenvalues that agree in one matrix are told apart by another
    for i, matrix in enumerate(matrices):
        size = np.linalg.norm(matrix)
        mix += (matrix + matrix.T) / max(size, 1e-300) / (i + 1) ** 1.3
    axes = np.linalg.eigh(mix)[1]
    for matrix in matrices:
        turned = axes.T @ matrix @ axes
        if np.max(np.abs(turned - np.diag(np.diag(turned)))) > _SAME * np.max(np.abs(turned)):
            return None
    return axes


@jax.custom_jvp
def _called_back(
    risk: ManyHeadRisk, A: Float[Array, "heads d d"], b: Float[Array, " heads"]
) -> Float[Array, ""]:
    return _call(risk, A, b)[0]


@_called_back.defjvp
def _called_back_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    value, by_A, by_b = _call(*primals)
    return value, jnp.sum(by_A * tangents[1]) + jnp.sum(by_b * tangents[2])


def _call(risk: ManyHeadRisk, A: Array, b: Array) -> tuple[Array, Array, Array]:
    def evaluated(A: np.ndarray, b: np.ndarray, *problem: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(part) for part in _known(risk, problem).value_and_gradient(A, b)]

    value, by_A, by_b = by_host(evaluated, [(), A.shape, b.shape], A, b, *risk.problem)
    return value, by_A, by_b


def _known(risk: ManyHeadRisk, problem: tuple[np.ndarray, ...]) -> ManyHeadRisk:
    """The risk of a problem that was traced, inside a callback."""
    return ManyHeadRisk(Problem(*problem), risk.length, risk.level, risk.beyond)  # pyright: ignore


@jax.custom_jvp
def softmax_excess(
    u: Float[Array, "heads n d"], b: Float[Array, " heads"], given: tuple[Array, ...]
) -> Float[Array, ""]:
    """What prompts of L tokens add to the mean over n queries of twice the conditional risk, given
    w and query: the last two lines of 2 R_L with w w' for S. 0 for L = infinity.

    `given` holds L, the covariance Sig of the inputs, Sig w, the targets and E[y^2 | w]. NumPy is
    called back; NaN beyond the range of the tables.
    """
    return _excess(u, b, given)[0]


@softmax_excess.defjvp
def _softmax_excess_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    value, by_u, by_b = _excess(*primals)
    return value, jnp.sum(by_u * tangents[0]) + jnp.sum(by_b * tangents[1])


def _excess(u: Array, b: Array, given: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    def evaluated(u: np.ndarray, b: np.ndarray, *given: np.ndarray) -> list[np.ndarray]:
        L, cov, pull, target, label = given
        if np.isinf(L):
            return [np.zeros(()), np.zeros_like(u), np.zeros_like(b)]
        forms = _Forms(
            cov,
            lambda u: np.einsum("hnp,np->hn", u, pull)[..., None] * pull,
            target[:, None] * pull,
            label,
        )
        weights = np.full(u.shape[1], 1 / u.shape[1])
        found = None
        if np.all(np.isfinite(u)):
            found = _averages(forms, weights, u, b, float(L), isotropic=False)
        if found is None:
            return [np.asarray(np.nan), np.full_like(u, np.nan), np.full_like(b, np.nan)]
        return [np.asarray(found[0]), found[1], found[2]]

    value, by_u, by_b = by_host(evaluated, [(), u.shape, b.shape], u, b, *given)
    return value, by_u, by_b


class SummedRisk(eqx.Module):
    """The risk of several heads in block form where only sum_h b_h A_h counts.

    Linear attention, and the infinite prompt: the sum of the heads is the head (sum_h b_h A_h, 1).
    """

    risk: RegressionRisk

    def __call__(self, params: AbstractParams) -> Float[Array, ""]:
        blocks = blocks_of(params)
        assert blocks is not None  # the task offers this risk for heads in block form
        A = sum((jnp.asarray(block.b) * jnp.asarray(block.A) for block in blocks), start=0.0)
        return self.risk(BlockParams(A, jnp.ones(())))

    def by_numpy(self, like: AbstractParams) -> NumpyFunction | None:
        """Risk and gradient of known `BlockParams`; None for other parameters."""
        parts = like.parts()
        known = by_numpy(self.risk, parts[0])
        if known is None or any(part.as_block() is not part for part in parts):
            return None

        def evaluate(*leaves: np.ndarray | float) -> tuple[float, list[np.ndarray]]:
            A, b = np.stack(leaves[::2]), np.array([float(leaf) for leaf in leaves[1::2]])
            value, (by_A, _) = known(np.tensordot(b, A, 1), np.ones(()))
            pairs = zip(b, A, strict=True)
            each = [(share * by_A, np.asarray(np.sum(by_A * own))) for share, own in pairs]
            return value, [leaf for part in each for leaf in part]

        return evaluate


class ManyHeadExact(AbstractRisk):
    """The risk of several heads in block form.

    Its error is the distance to a coarser rule, plus the measured errors of the tables.
    """

    def __init__(self, problem: Problem, length: float):
        self.fine = ManyHeadRisk(problem, length)
        # its points may need larger scores than those of the finer rule, which decides the range
        self.coarse = ManyHeadRisk(problem, length, level=1, beyond=True)

    @in_float64
    def of(self, params: AbstractParams) -> Estimate:
        value = require_number(risk_of(self.fine, params), _RANGE)
        coarse = risk_of(self.coarse, params)
        # heads that oppose each other are differences of terms of this size
        b = sum(abs(part.matrices()[1]).sum() for part in params.parts())
        terms = b**2 * label_size(self.fine.problem) / self.fine.length
        rounding = _ROUNDING * (abs(value) + terms)
        tables, gap = self._errors(params)
        error = abs(value - coarse) + tables + gap * abs(value) + rounding
        value = _checks.require(
            value,
            ~(error <= _PROMISE * abs(value)),
            rule=f"the risk of several heads must be known to a relative error of {_PROMISE:g}",
            received="a larger error of the average over the query",
            fix="pass method=lp.MonteCarlo(key)",
        )
        return Estimate(value, error, Exact())

    def _errors(self, params: AbstractParams) -> tuple[Any, Any]:
        """What the tables may change, and the relative error of the rule on known averages."""
        blocks = blocks_of(params)
        assert blocks is not None  # the task offers this risk for heads in block form
        parts = [(block.A, block.b) for block in blocks]
        if not is_traced(parts, self.fine.problem):
            A, b = (
                np.stack([np.asarray(part, float) for part in each])
                for each in zip(*parts, strict=True)
            )
            return self.fine.table_error(A, b), self.fine.rule_gap(A)
        A, b = (
            jnp.stack([jnp.asarray(part, jnp.float64) for part in each])
            for each in zip(*parts, strict=True)
        )

        def evaluated(A: np.ndarray, b: np.ndarray, *problem: np.ndarray) -> list[np.ndarray]:
            risk = _known(self.fine, problem)
            return [np.asarray(risk.table_error(A, b)), np.asarray(risk.rule_gap(A))]

        tables, gap = by_host(evaluated, [(), ()], A, b, *self.fine.problem)
        return tables, gap

    def objective(self) -> RiskFunction:
        return self.fine

    def fresh(self) -> None:
        return None
