"""The best set of heads in block form on linear regression, grown pair by pair.

The risk is not convex: heads may merge, split or oppose each other. It is a quadratic of the b_h,
though, and an opposite pair (A, b), (-A, -b) keeps only what is odd in the prompt, as the target
is. So the best pair comes first; each further pair starts where it gains most at the best b_h, and
is descended with the others, tied as pairs. The ties are then cut.
"""

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._arrays import Values, to_numpy
from ._exact_risk import label_size
from .many_head_risk import ManyHeadRisk, SummedRisk
from .minimise import CONVERGED, at_unit_scale, best_linear, dense_step, newton, scaled_hessian
from .params import BlockParams, MultiHeadParams
from .risks import Attention

if TYPE_CHECKING:
    from .linear_regression import LinearRegression

_SHIFT = 1.0  # of ln b, from that of linear attention times sqrt(L/10): start of the first pair
_SPREAD = 0.3  # untied heads start at different sizes: equal ones would stay equal
_DEVIATIONS = np.geomspace(0.25, 4.0, 9)  # root mean square of the scores of a head that is added
_TOWARDS_ZERO = 3.0  # added to ln b at fixed b A
_TRIED = 2  # starts of an added head that are descended from
_FLATTEST = 1e-8  # curvature that a first step assumes, where diagonal entries are 1
_STEPS = 200
# Steps of a descent, and how many times the best risk so far its own may be at their start: a
# descent that is further above is given up. Large scores need large tables.
_STAGES = ((5, 2.0), (_STEPS, 1.05))
# descents from their ends, and relative gain below which one is the last
_AGAIN, _ENOUGH = 10, 1e-9
# Heads may do best in the limit A_h -> 0, b_h -> infinity, where terms of size b^2 l / L cancel:
# this part of them is added to the risk, so that the descent ends before rounding decides.
_CANCELLED = 1e-11
_ROUNDING = 1e-12  # of a risk
_FURTHER, _FLAT = 1.25, 1e-6  # factor of A_h, and gradient, that tell if a descent was stopped
_SMALL = 0.02  # root mean square of scores below which heads are on the way to the limit A_h = 0

AT_LIMIT = (
    "stopped at the range of the exact risk: larger scores may do better, and these heads are the "
    "best found within it"
)
TOWARDS_ZERO = (
    "close to an infimum: the risk falls on, by little, as some A_h -> 0 with b_h A_h fixed"
)
NOT_CONVERGED = "not converged: the gradient is not small, and these heads are the best found"


class _Valley(NamedTuple):
    """Risk and gradient in the coordinates (N_r, ln |b_r|), N = b A, of the rows.

    Each head takes its coordinates from a row, with a sign of its own for b: opposite pairs share
    one. `basis` spans the matrices N_r: multiples of the identity for isotropic tasks, those with
    the eigenvectors of all covariances if they share them, all matrices otherwise.
    """

    risk: ManyHeadRisk
    basis: Float[np.ndarray, "n d d"]
    signs: Float[np.ndarray, " heads"]
    rows: Int[np.ndarray, " heads"]
    cancelled: float  # what is added to the risk is this times |b|^2

    def params(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        heads = y.reshape(-1, len(self.basis) + 1)[self.rows]
        b = self.signs * np.exp(heads[:, -1])
        return np.tensordot(heads[:, :-1], self.basis, 1) / b[:, None, None], b

    def __call__(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        if np.max(np.abs(y)) > 200:
            return math.inf, np.zeros_like(y)
        A, b = self.params(y)
        risk, by_A, by_b = self.risk.value_and_gradient(A, b)
        if not math.isfinite(risk):  # a line search turns back
            return math.inf, np.zeros_like(y)
        by_b = by_b + 2 * self.cancelled * b
        by_N = np.tensordot(by_A, self.basis, ((1, 2), (1, 2))) / b[:, None]
        by_log = by_b * b - np.sum(by_A * A, axis=(1, 2))
        slope = np.zeros((len(y) // (len(self.basis) + 1), len(self.basis) + 1))
        np.add.at(slope, self.rows, np.concatenate([by_N, by_log[:, None]], axis=1))
        return risk + self.cancelled * float(b @ b), slope.ravel()

    def with_row(self, y: np.ndarray, pair: bool) -> list["_Start"]:
        """Starts with one head or opposite pair more, all b at their best; the best first."""
        width = len(self.basis) + 1
        A, b = self.params(y)
        more = 2 if pair else 1
        mirror = np.array([1.0, -1.0][:more])
        signs = np.append(self.signs, mirror)
        rows = np.append(self.rows, np.full(more, len(y) // width))
        found = []
        for added in _directions(self.risk, self.basis, np.tensordot(b, A, 1)):
            every = np.concatenate([A, mirror[:, None, None] * added])
            tied = np.equal.outer(rows, np.arange(rows[-1] + 1)) * signs[:, None]
            t = _best_weights(self.risk, every, tied)
            if t is None:
                continue
            t = np.where(t == 0, 1e-6, t)  # its sign and logarithm are needed
            # by row: N = b A of its first head, whose sign is that of its b
            first = [int(np.argmax(rows == row)) for row in range(len(t))]
            N = (t * signs[first])[:, None] * _coefficients(every[first], self.basis)
            start = np.column_stack([N, np.log(np.abs(t))]).ravel()
            grown = self._replace(signs=signs * np.sign(t)[rows], rows=rows)
            found.append(_Start(grown(start)[0], grown, start))
        return sorted(found, key=lambda start: start.risk)


class _Start(NamedTuple):
    risk: float
    valley: _Valley
    y: np.ndarray


def _directions(risk: ManyHeadRisk, basis: np.ndarray, N: np.ndarray) -> list[np.ndarray]:
    """Matrices to try for a head: along N = sum b_h A_h and along every axis, in several sizes."""
    along = [N] if len(basis) > len(N) or len(basis) == 1 else [N, *basis]
    sizes = [_deviation(risk, A) for A in along]
    return [s * A / size for A, size in zip(along, sizes, strict=True) if size for s in _DEVIATIONS]


def _deviation(risk: ManyHeadRisk, A: np.ndarray) -> float:
    """The root mean square of the scores of a head."""
    Sig, B, _, _ = to_numpy(risk.problem)
    Z = A @ B
    return math.sqrt(max(0.0, float(np.sum(Z * (Sig @ Z)))))


def _coefficients(matrices: np.ndarray, basis: np.ndarray) -> np.ndarray:
    sizes = np.sum(basis**2, axis=(1, 2))
    return np.tensordot(matrices, basis, ((1, 2), (1, 2))) / sizes


def _best_weights(risk: ManyHeadRisk, A: np.ndarray, tied: np.ndarray) -> np.ndarray | None:
    """The t with the smallest risk at b = tied @ t, None where the risk is not known."""
    at_zero = risk.value_and_gradient(A, np.zeros(len(A)))[2] @ tied
    if not np.all(np.isfinite(at_zero)):
        return None
    curvature = np.array([risk.value_and_gradient(A, b)[2] @ tied - at_zero for b in tied.T])
    scale = np.sqrt(np.maximum(np.diag(curvature), 1e-300))
    scaled = curvature / scale / scale[:, None]
    return np.linalg.lstsq(scaled, -at_zero / scale, rcond=1e-10)[0] / scale


def minimise_heads(
    task: "LinearRegression", L: float, attention: Attention, heads: int
) -> tuple[MultiHeadParams, Float[Values, ""], Float[Values, ""], bool, str]:
    """The fields of a `Minimiser`."""
    unit, scale = at_unit_scale(task)
    start, at_limit, status = best_linear(unit, L), False, CONVERGED
    A, b = np.asarray(start.A), float(start.b)
    if attention == "linear" or math.isinf(L):  # only sum_h b_h A_h counts
        found = scale.undo(np.stack([A] * heads), np.full(heads, b / heads))
        known = SummedRisk(task.risk_function(L, attention)).by_numpy(_params(*found))
        assert known is not None  # heads in block form
        risk, gradient = known(*(leaf for pair in zip(*found, strict=True) for leaf in pair))
    elif L == 1:  # one token has all the weight, whatever the query: predict nothing
        found = np.zeros((heads, *A.shape)), np.zeros(heads)
        risk, *gradient = ManyHeadRisk(task.problem(), L).value_and_gradient(*found)
    else:
        objective = ManyHeadRisk(unit.problem(), L)
        found = _best(objective, objective.basis(), b * A, b, heads)
        risk, *gradient = objective.value_and_gradient(*found)
        at_limit, status = _ended(objective, *found, gradient[0])
        found = scale.undo(*found)
        if unit is not task:
            risk, *gradient = ManyHeadRisk(task.problem(), L).value_and_gradient(*found)
    if at_limit or status == NOT_CONVERGED:
        about = f"{heads} heads at L = {L:g}: {status}"
        warnings.warn(about, UserWarning, stacklevel=4)
    norm = float(np.linalg.norm([np.linalg.norm(part) for part in gradient]))
    return _params(*found), np.asarray(risk), np.asarray(norm), at_limit, status


def _ended(risk: ManyHeadRisk, A: np.ndarray, b: np.ndarray, by_A: np.ndarray) -> tuple[bool, str]:
    """Whether the range of the exact risk stops the descent, and how it ended."""
    steep = [h for h in range(len(A)) if np.linalg.norm(by_A[h]) > _FLAT]
    if not steep:
        return False, CONVERGED
    for h in range(len(A)):  # a line search ends there for all heads, also for steep ones inside
        further = A * np.where(np.arange(len(A)) == h, _FURTHER, 1.0)[:, None, None]
        if not math.isfinite(risk.value_and_gradient(further, b)[0]):
            return True, AT_LIMIT
    if all(_deviation(risk, A[h]) < _SMALL for h in steep):
        return False, TOWARDS_ZERO
    return False, NOT_CONVERGED


def _params(A: np.ndarray, b: np.ndarray) -> MultiHeadParams:
    return MultiHeadParams([BlockParams(*head) for head in zip(A, b, strict=True)])


def _best(
    risk: ManyHeadRisk, basis: np.ndarray, N: np.ndarray, b: float, heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best heads found, polished by Newton's method."""
    whole = _coefficients(N[None], basis)[0]
    log_b = math.log(b) + _SHIFT + 0.5 * math.log(max(1.0, risk.length / 10))
    cancelled = _CANCELLED * float(label_size(risk.problem)) / risk.length
    pair = _Valley(risk, basis, np.array([1.0, -1.0]), np.zeros(2, int), cancelled)
    two = pair._replace(signs=np.ones(2), rows=np.arange(2))
    shares = np.array([1 - _SPREAD, 1 + _SPREAD]) / 2
    best = _descended(pair, np.append(whole / 2, log_b))
    start = np.concatenate([np.append(share * whole, log_b) for share in shares])
    best = _better(best, [_Start(two(start)[0], two, start)])
    while len(best.valley.signs) < heads:
        left = heads - len(best.valley.signs)
        # only untied heads can take away what is even in the prediction of a single head
        grown = best if left > 1 else _untied(best)
        rows = grown.y.reshape(-1, len(basis) + 1)
        # near the limit A = 0 of the heads there are too: a descent that starts further away may
        # end at the largest scores known
        small = (rows + np.append(np.zeros(len(basis)), _TOWARDS_ZERO)).ravel()
        ends = [
            _descended(start.valley, start.y)
            for y in (small, grown.y)
            for start in grown.valley.with_row(y, pair=left > 1)[:_TRIED]
        ]
        best = min(ends, key=lambda end: end.risk)
    tied = _polished(best)  # first, as pairs near A = 0 make other changes stiff
    free = _polished(_untied(tied))
    best = free if free.risk <= tied.risk + _ROUNDING else tied
    return best.valley.params(best.y)


def _better(best: _Start, starts: list[_Start]) -> _Start:
    """The best end of descents from all starts, and `best`."""
    for end in starts:
        for steps, hopeless in _STAGES:
            if not end.risk <= hopeless * best.risk:
                break
            end = _descended(end.valley, end.y, steps)
        else:
            best = min(best, end, key=lambda end: end.risk)
    return best


def _polished(end: _Start) -> _Start:
    """Descended on, with fresh estimates of the Hessian, and by Newton's method.

    Again while that helps: a line search also ends where its first step leaves the known range.
    """
    for _ in range(_AGAIN):
        near = _descended(end.valley, end.y)
        y = newton(near.valley, near.y, dense_step)
        polished = _Start(near.valley(y)[0], near.valley, y)
        better = polished if polished.risk <= near.risk + _ROUNDING else near
        gain, end = end.risk - better.risk, better
        if gain <= _ENOUGH * end.risk:
            break
    return end


def _untied(end: _Start) -> _Start:
    """The same heads, each in a row of its own."""
    rows = end.y.reshape(-1, len(end.valley.basis) + 1)[end.valley.rows]
    return end._replace(valley=end.valley._replace(rows=np.arange(len(rows))), y=rows.ravel())


def _descended(valley: _Valley, start: np.ndarray, steps: int = _STEPS) -> _Start:
    from scipy.optimize import minimize  # a fifth of a second of import, only where it is used

    # without the scales of the coordinates, the first step may end at the largest scores known
    options = {"maxiter": steps, "gtol": 1e-10, "hess_inv0": _inverse_size(valley, start)}
    found = minimize(valley, start, jac=True, method="BFGS", options=options)
    return _Start(float(found.fun), valley, found.x)


def _inverse_size(valley: _Valley, y: np.ndarray) -> np.ndarray:
    """The inverse of |H|, the Hessian with the absolute values of its eigenvalues."""
    scaled, scale = scaled_hessian(valley, y)
    values, axes = np.linalg.eigh(scaled)
    half = axes / np.sqrt(np.maximum(np.abs(values), _FLATTEST)) / scale[:, None]
    return half @ half.T
