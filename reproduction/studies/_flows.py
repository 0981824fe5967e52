"""Flows of linear regression, for Theorems 4.3 and 5.1: the valley of minimisers, broken flows."""

from typing import Any

import equinox as eqx
import numpy as np

import largeprompt as lp
from reproduction.study import Patch


def sharp_constant(cov: np.ndarray) -> float:
    """Limit of L times the limiting risk at length L.

    On the valley b cov A = I the scores have variance |g|^2/b^2 with g ~ N(0, I), and b is free.
    With t = 1/b^2 the delta method gives tr(cov)/2 (1 - 2t)^{-d/2} (1/t + 1/(1 - 2t)), which is
    minimised over t < 1/2.
    """
    from scipy.optimize import minimize_scalar  # imported only where it is used

    d = len(cov)

    def constant(t: float) -> float:
        return np.trace(cov) / 2 * (1 - 2 * t) ** (-d / 2) * (1 / t + 1 / (1 - 2 * t))

    found: Any = minimize_scalar(constant, bounds=(1e-3, 0.499), method="bounded")
    return float(found.fun)


class _HalfScores(eqx.Module):
    """A risk with scores divided by two."""

    risk: Any

    def __call__(self, params: lp.BlockParams) -> Any:
        return self.risk(eqx.tree_at(lambda p: p.A, params, params.A / 2))

    def by_numpy(self, like: lp.BlockParams) -> Any:
        known = self.risk.by_numpy(like)

        def halved(A: np.ndarray, b: np.ndarray) -> Any:
            value, (by_A, by_b) = known(A / 2, b)
            return value, [by_A / 2, by_b]

        return halved


def half_scores_at_infinity(patch: Patch) -> None:
    """Flows of the infinite prompt that descend the risk of scores divided by two."""
    exact = lp.LinearRegression.risk_by

    def wrong(self, L, *arguments, **options):
        risk: Any = exact(self, L, *arguments, **options)
        if not np.isfinite(L):
            objective = _HalfScores(risk.objective())
            risk.objective = lambda: objective
        return risk

    patch(lp.LinearRegression, "risk_by", wrong)
