"""The best head in block form, found by a real optimiser and certified by its gradient."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values, to_numpy
from .many_head_risk import shared_axes
from .params import BlockParams
from .risks import Attention

if TYPE_CHECKING:
    from .linear_regression import LinearRegression

_SHIFTS = np.linspace(-2.0, 2.0, 33)  # of ln b, tried first
_STEPS = 512  # of quasi-Newton descent
_NEWTON = 24
_KRYLOV = 500  # products with the Hessian in a step, where it is not stored
_DENSE = 300  # unknowns up to which Newton's method stores their Hessian
_DIFFERENCE = 1e-4  # relative step of the difference quotients in the Hessian
CERTIFIED = 1e-9  # largest gradient norm accepted
CONVERGED = "converged"
_UNSEEN = 1e-13  # relative variance of directions in which inputs and queries do not vary


Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]  # value and gradient


def minimise_block(
    task: "LinearRegression", L: float, attention: Attention
) -> tuple[BlockParams, Float[Values, ""], Float[Values, ""]]:
    """(params, risk, gradient norm)."""
    unit, scale = at_unit_scale(task)
    start = best_linear(unit, L)
    evaluate = _by_numpy(unit, L, attention, start)
    A, b = np.asarray(start.A), np.asarray(start.b)
    if attention == "softmax" and L == 1:
        # one token has all the weight, whatever the query: it is best to predict nothing
        A, b = np.zeros_like(A), np.zeros(())
    elif attention == "softmax" and math.isfinite(L):
        A, b = _descend(_Valley(evaluate, _shared_axes(unit), len(A)), A, b)
    risk, gradient = evaluate(A, b)
    norm = _norm(gradient)
    if not norm <= CERTIFIED:
        raise _checks.error(
            f"a minimiser must have a gradient norm of at most {CERTIFIED:g} where covariances "
            "are scaled to 1",
            f"{norm:.2e} at L = {L:g}",
            "choose a larger L: the best head of a very short prompt has scores that are too "
            "large for the exact average",
        )
    A, b = scale.undo(A, b)
    if unit is not task:
        risk, gradient = _by_numpy(task, L, attention, start)(A, b)
    return BlockParams(A, b), np.asarray(risk), np.asarray(_norm(gradient))


def _by_numpy(
    task: "LinearRegression", L: float, attention: Attention, like: BlockParams
) -> Callable[..., tuple[float, list[np.ndarray]]]:
    evaluate = task.risk_function(L, attention).by_numpy(like)
    assert evaluate is not None  # it knows heads in block form
    return evaluate


def _norm(gradient: list[np.ndarray]) -> float:
    return float(np.linalg.norm([np.linalg.norm(part) for part in gradient]))


class Scale(NamedTuple):
    """Powers of four by which the covariances of tokens and queries were divided, and the axes."""

    tokens: float
    queries: float
    axes: np.ndarray  # (d, r), orthonormal: the directions in which inputs or queries vary

    def undo(self, A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters for the given task; several heads too."""
        scores = math.sqrt(self.tokens) * math.sqrt(self.queries)
        whole = self.axes @ (A / scores) @ self.axes.T
        return whole, np.asarray(b * (math.sqrt(self.queries) / math.sqrt(self.tokens)))


def at_unit_scale(task: "LinearRegression") -> tuple["LinearRegression", Scale]:
    """The same task with covariances of order 1, as tolerances of descent are absolute.

    Powers of four and their roots are exact in floating point. Directions in which neither inputs
    nor queries vary are left out: nothing depends on A there.
    """
    from .linear_regression import LinearRegression

    Sig, query, S = (np.asarray(part) for part in (task.cov, task.query_cov, task.task_cov))
    tokens, queries, tasks = map(_power_of_four, (Sig, query, S))
    variances, axes = np.linalg.eigh(Sig / tokens + query / queries)
    seen = variances > _UNSEEN * variances[-1]
    if np.all(seen) or not np.any(seen):
        axes = np.eye(len(Sig))
        if tokens == queries == tasks == 1:
            return task, Scale(1.0, 1.0, axes)
    else:
        axes = axes[:, seen]
        Sig, query, S = (axes.T @ part @ axes for part in (Sig, query, S))
    noise = np.asarray(task.noise_variance) / tokens / tasks
    unit = LinearRegression(Sig / tokens, S / tasks, noise, query / queries)
    return unit, Scale(tokens, queries, axes)


def _power_of_four(covariance: np.ndarray) -> float:
    """The one next to the largest variance, or 1 if there is none."""
    largest = float(np.max(np.diagonal(covariance)))
    return 4.0 ** round(math.log(largest, 4)) if largest > 0 else 1.0


def best_linear(task: "LinearRegression", L: float) -> BlockParams:
    """The balanced minimiser for linear attention: the risk is a quadratic of N = bA.

    ((1 + 1/L) Sig S Sig + (c/L) Sig) N = Sig S, c = tr(S Sig) + tau^2; at infinity N = Sig^-1. The
    queries' covariance multiplies both sides from the right: it changes the risk, not its
    minimiser.
    """
    Sig, _, S, noise = to_numpy(task.problem())
    label = np.sum(S * Sig) + noise
    left = (1 + 1 / L) * Sig @ S @ Sig + label / L * Sig
    N = np.linalg.lstsq(left, Sig @ S)[0]
    b = np.sqrt(np.linalg.norm(N))
    if not b > 0:
        raise _checks.error(
            "the best head is not unique where tokens tell nothing about the labels",
            "a task with task_cov = 0 or cov = 0",
            "every head that predicts 0 is best: its risk is task.risk(params, L) with b = 0",
        )
    return BlockParams(N / b, b)


class _Valley(NamedTuple):
    """Risk and gradient in the coordinates (N, ln b), N = bA.

    At large L the risk is a valley along N = const whose bottom falls by O(1/L) only. It is
    straight in these coordinates, so Newton's step along it is right however flat it is. If all
    covariances share eigenvectors, the minimiser has them too (no gradient leads away from them),
    and N is given by its eigenvalues.
    """

    evaluate: Callable[..., tuple[float, list[np.ndarray]]]
    axes: np.ndarray | None
    d: int

    def coordinates(self, A: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.append(self._entries(A * b), np.log(b))

    def params(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        b = np.asarray(np.exp(y[-1]))
        if self.axes is None:
            return y[:-1].reshape(self.d, self.d) / b, b
        return (self.axes * (y[:-1] / b)) @ self.axes.T, b

    def __call__(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        A, b = self.params(y)
        risk, (by_A, by_b) = self.evaluate(A, b)
        slope = np.append(self._entries(by_A) / b, by_b * b - np.sum(by_A * A))
        if not np.isfinite(risk):  # a line search turns back
            return np.inf, np.zeros_like(slope)
        return risk, slope

    def _entries(self, matrix: np.ndarray) -> np.ndarray:
        if self.axes is None:
            return matrix.ravel()
        return np.einsum("ji,jk,ki->i", self.axes, matrix, self.axes)


def _shared_axes(task: "LinearRegression") -> np.ndarray | None:
    """Eigenvectors of all three covariances of a task, None if there are none."""
    Sig, root, S, _ = to_numpy(task.problem())
    return shared_axes(Sig, root, S)


def _descend(valley: _Valley, A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quasi-Newton descent, then Newton's method."""
    from scipy.optimize import minimize  # a fifth of a second of import, only where it is used

    start = valley.coordinates(A, b)
    # the best ln b on a grid first: the start is far off in that coordinate only
    starts = start + _SHIFTS[:, None] * np.append(np.zeros(len(start) - 1), 1.0)
    start = starts[np.argmin([valley(y)[0] for y in starts])]
    dense = len(start) <= _DENSE
    near = minimize(
        valley,
        start,
        jac=True,
        method="BFGS" if dense else "L-BFGS-B",
        options={"maxiter": _STEPS, "gtol": 1e-9},
    ).x
    return valley.params(newton(valley, near, dense_step if dense else _streamed_step))


_StepRule = Callable[[Objective, np.ndarray, np.ndarray], np.ndarray]  # (valley, y, g) -> H^-1 g


def newton(valley: Objective, y: np.ndarray, step_of: _StepRule) -> np.ndarray:
    """Newton steps while they promise less and less: the decrease g'H^-1 g of the risk.

    The risk itself cannot tell the last steps apart: near the minimum it is constant to rounding.
    """
    best, promised = y, math.inf
    for _ in range(_NEWTON):
        risk, gradient = valley(y)
        step = step_of(valley, y, gradient)
        decrease = abs(gradient @ step)
        if not (np.isfinite(risk) and decrease < promised):
            break
        best, promised, y = y, decrease, y - step
    return best


def dense_step(valley: Objective, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    scaled, scale = scaled_hessian(valley, y)
    return np.linalg.lstsq(scaled, gradient / scale)[0] / scale


def scaled_hessian(valley: Objective, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Hessian with diagonal entries of size 1, and the scales that its axes were divided by.

    So the flat direction of the valley does not pass for a null space.
    """
    hessian = np.stack([_along(valley, y, e) for e in np.eye(len(y))])
    diagonal = np.abs(np.diag(hessian))
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    return (hessian + hessian.T) / 2 / scale / scale[:, None], scale


def _streamed_step(valley: Objective, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """From products of the Hessian with vectors, which need no more memory than a gradient."""
    from scipy.sparse.linalg import LinearOperator, minres

    def product(v: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(v)
        return size * _along(valley, y, v.ravel() / size) if size > 0 else 0.0 * v.ravel()

    hessian = LinearOperator((len(y), len(y)), matvec=product, dtype=float)  # pyright: ignore
    return minres(hessian, gradient, rtol=1e-10, maxiter=_KRYLOV)[0]


def _along(valley: Objective, y: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Derivative of the gradient along a direction, by a central difference.

    The step is long: along the valley the gradient is of order 1/L, and rounding must stay below
    it.
    """
    step = _DIFFERENCE * max(1.0, float(np.max(np.abs(y * direction))))
    ahead, behind = (valley(y + sign * step * direction)[1] for sign in (1, -1))
    return (ahead - behind) / (2 * step)
