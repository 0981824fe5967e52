"""The best set of heads in block form on linear regression: several starts, then Newton's method.

The risk is not convex: heads may merge, split or oppose each other. Heads (A, b) and (-A, -b) are
different, and the sign of b_h cannot change along a descent in ln |b_h|. So there is one descent
for each number of negative b_h, up to half of the heads (changing all signs changes nothing).
"""

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from .._typing import Array
from .many_head_risk import ManyHeadRisk, SummedRisk
from .minimise import at_unit_scale, best_linear, dense_step, newton
from .params import BlockParams, MultiHeadParams
from .risks import Attention

if TYPE_CHECKING:
    from .linear_regression import LinearRegression

# of ln b, from that of linear attention times sqrt(L/10): a descent from each. The longer the
# prompt, the smaller the scores of the best heads.
_SHIFTS, _MORE_SHIFTS = (1.0,), (0.0, 1.0, 2.0)  # for two heads, for more
_SPREAD = 0.3  # heads start at different sizes: equal ones would stay equal
_STEPS = 200
# Steps of a descent, and how many times the best risk so far its own may be at their start: a
# descent that is further above is given up. Large scores need large tables.
_STAGES = ((5, 2.0), (_STEPS, 1.05))
_ROUNDING = 1e-12  # of a risk
_FURTHER, _FLAT = 1.25, 1e-6  # factor of A_h, and gradient, that tell if a descent was stopped


class _Valley(NamedTuple):
    """Risk and gradient in the coordinates (N_h, ln |b_h|), N_h = b_h A_h, for given signs of b_h.

    `basis` spans the matrices N_h: multiples of the identity for isotropic tasks, those with the
    eigenvectors of all covariances if they share them, all matrices otherwise.
    """

    risk: ManyHeadRisk
    basis: Float[np.ndarray, "n d d"]
    signs: Float[np.ndarray, " heads"]

    def params(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = y.reshape(len(self.signs), -1)
        b = self.signs * np.exp(rows[:, -1])
        return np.tensordot(rows[:, :-1], self.basis, 1) / b[:, None, None], b

    def __call__(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        if np.max(np.abs(y)) > 200:
            return math.inf, np.zeros_like(y)
        A, b = self.params(y)
        risk, by_A, by_b = self.risk.value_and_gradient(A, b)
        if not math.isfinite(risk):  # a line search turns back
            return math.inf, np.zeros_like(y)
        by_N = np.tensordot(by_A, self.basis, ((1, 2), (1, 2))) / b[:, None]
        by_log = by_b * b - np.sum(by_A * A, axis=(1, 2))
        return risk, np.concatenate([by_N, by_log[:, None]], axis=1).ravel()


def minimise_heads(
    task: "LinearRegression", L: float, attention: Attention, heads: int
) -> tuple[MultiHeadParams, Float[Array, ""], Float[Array, ""], bool]:
    """(params, risk, gradient norm, whether scores ended at the limit of the exact risk)."""
    unit, scale = at_unit_scale(task)
    start, at_limit = best_linear(unit, L), False
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
        at_limit = _is_at_limit(objective, *found, gradient)
        found = scale.undo(*found)
        if unit is not task:
            risk, *gradient = ManyHeadRisk(task.problem(), L).value_and_gradient(*found)
    if at_limit:
        warnings.warn(
            f"The best {heads} heads at L = {L:g} have larger scores than the exact risk allows: "
            "the heads returned are the best within its range, and at_limit is True.",
            UserWarning,
            stacklevel=4,
        )
    norm = float(np.linalg.norm([np.linalg.norm(part) for part in gradient]))
    return _params(*found), np.asarray(risk), np.asarray(norm), at_limit


def _is_at_limit(risk: ManyHeadRisk, A: np.ndarray, b: np.ndarray, gradient: list) -> bool:
    """Whether the gradient does not vanish and the risk is not known at somewhat larger A_h."""
    flat = all(np.linalg.norm(part) <= _FLAT for part in gradient)
    further = A * (1 + (_FURTHER - 1) * np.eye(len(A))[..., None, None])
    return not flat and not all(math.isfinite(risk.value_and_gradient(a, b)[0]) for a in further)


def _params(A: np.ndarray, b: np.ndarray) -> MultiHeadParams:
    return MultiHeadParams([BlockParams(*head) for head in zip(A, b, strict=True)])


def _best(
    risk: ManyHeadRisk, basis: np.ndarray, N: np.ndarray, b: float, heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best of one descent for each number of negative b_h, polished by Newton's method."""
    sizes = np.sum(basis**2, axis=(1, 2))
    whole = np.tensordot(basis, N, ((1, 2), (0, 1))) / sizes
    shares = np.linspace(1 - _SPREAD, 1 + _SPREAD, heads) / heads
    ends = []
    for negative in range(heads // 2, -1, -1):
        signs = np.where(np.arange(heads) % 2 == 1, -1.0, 1.0)
        signs[2 * negative :] = 1.0
        valley = _Valley(risk, basis, signs)
        for shift in _SHIFTS if heads == 2 else _MORE_SHIFTS:
            log_b = math.log(b) + shift + 0.5 * math.log(max(1.0, risk.length / 10))
            rows = [np.append(share * whole, log_b) for share in shares]
            end, best = np.concatenate(rows), min((e[0] for e in ends), default=math.inf)
            for steps, hopeless in _STAGES:
                if valley(end)[0] > hopeless * best:
                    break
                end = _descended(valley, end, steps)
            else:
                ends.append((valley(end)[0], valley, end))
    _, valley, near = min(ends, key=lambda end: end[0])
    near = _descended(valley, near, _STEPS)  # again, with a fresh estimate of the Hessian
    polished = newton(valley, near, dense_step)
    better = valley(polished)[0] <= valley(near)[0] + _ROUNDING
    return valley.params(polished if better else near)


def _descended(valley: _Valley, start: np.ndarray, steps: int) -> np.ndarray:
    from scipy.optimize import minimize  # a fifth of a second of import, only where it is used

    options = {"maxiter": steps, "gtol": 1e-10}
    return minimize(valley, start, jac=True, method="BFGS", options=options).x
