"""The risk of linear regression at one length, as a function of parameters.

JAX evaluates and differentiates it under `jit` and `grad`. For heads in block form and known
numbers NumPy does both, with derivatives written out: nothing is compiled.

With x_q = B xi, Z = AB, T = Sig Z, M = Z'T (so sigma^2 = xi'M xi), X = T'SB, Y = T'ST and
l = tr(S Sig) + tau^2, the risk of `_exact_risk.block_softmax` is

    2 R = |bT - B|_S^2 + tau^2 + E[P_2 (b^2 l + 2b xi'X xi) - H b^2 xi'Y xi].

In the basis of the eigenvectors of M both expectations are sums over the terms of an
`ExponentialTable`, and so are their derivatives in M: a term m_n prod_i f_i^{1/2}, with
f_i = 1/(1 + 2 p_n lambda_i), changes by -p_n f_i dM_ii, and (I + 2 p_n M)^{-1} by
-2 p_n f_i dM_ij f_j.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import to_numpy
from .._typing import Array
from ..participation import ExponentialTable, NumpyTable
from ._exact_risk import Problem, WeightedDraws, block_linear, block_softmax, general_softmax
from ._linear_risk import linear_risk
from .params import AbstractParams
from .risks import NumpyFunction


class RegressionRisk(eqx.Module):
    """R_L of parameters. `length` is a table for softmax attention, 1/L for linear attention.

    At infinity softmax attention of Gaussian tokens is linear attention (Lemma 2.1), with 1/L = 0.
    """

    problem: Problem
    length: ExponentialTable | Float[Array, ""]
    draws: WeightedDraws | None

    def __call__(self, params: AbstractParams) -> Float[Array, ""]:
        params = jax.tree.map(jnp.asarray, params)  # as ends of flows are not
        block, table = params.as_block(), self.length
        if not isinstance(table, ExponentialTable):
            if block is not None:
                return block_linear(self.problem, block, table)
            return linear_risk(self.problem, *params.matrices(), table)
        if block is not None:
            return block_softmax(self.problem, block, table)
        if self.draws is None:
            raise _checks.error(
                "a head that is not in block form needs values of w to average over",
                "none",
                "pass draws=task.quasi_random_w(key)",
            )
        return general_softmax(self.problem, params.general(), table, self.draws)

    def by_numpy(self, like: AbstractParams) -> NumpyFunction | None:
        """Risk and gradient of known `BlockParams`, by NumPy; None for other parameters."""
        if like.as_block() is not like:
            return None
        cov, root, task_cov, noise = to_numpy(tuple(self.problem))
        label = float(np.sum(task_cov * cov) + noise)
        problem = _NumpyProblem(cov, root, task_cov, float(noise), label)
        if isinstance(self.length, ExponentialTable):
            finite = partial(_softmax, problem, self.length.for_numpy())
        else:
            finite = partial(_linear, problem, float(self.length))

        def evaluate(A: np.ndarray, b: np.ndarray) -> tuple[float, list[np.ndarray]]:
            with np.errstate(all="ignore"):  # solvers may try parameters that overflow
                limit, more = _limit(problem, A, b), finite(A, b)
                value = (limit.value + more.value + problem.noise) / 2
                by_A = (limit.by_Z + more.by_Z) @ problem.root.T / 2
            return value, [by_A, np.asarray((limit.by_b + more.by_b) / 2)]

        return evaluate


class _NumpyProblem(NamedTuple):
    """A `Problem` of NumPy arrays."""

    cov: np.ndarray
    root: np.ndarray
    task_cov: np.ndarray
    noise: float
    label: float  # E[y^2] = tr(S Sig) + tau^2


class _Part(NamedTuple):
    """A part of 2R, and its derivatives in Z and b."""

    value: float
    by_Z: np.ndarray
    by_b: float


def _limit(problem: _NumpyProblem, A: np.ndarray, b: np.ndarray) -> _Part:
    """|bT - B|_S^2, the squared error of the infinite prompt."""
    T = problem.cov @ (A @ problem.root)
    error = b * T - problem.root
    weighted = problem.task_cov @ error
    flat = weighted.ravel()
    by_b = 2 * (T.ravel() @ flat)
    return _Part(float(error.ravel() @ flat), (2 * b * problem.cov) @ weighted, float(by_b))


def _linear(problem: _NumpyProblem, inverse_length: float, A: np.ndarray, b: np.ndarray) -> _Part:
    """b^2 (tr Y + l tr M) / L."""
    Z = A @ problem.root
    T = problem.cov @ Z
    weighted = problem.task_cov @ T + problem.label * Z
    value = inverse_length * (T.ravel() @ weighted.ravel())
    by_Z = (2 * inverse_length * b**2 * problem.cov) @ weighted
    return _Part(float(b**2 * value), by_Z, float(2 * b * value))


def _softmax(
    problem: _NumpyProblem, table: NumpyTable, A: np.ndarray, b: np.ndarray | float
) -> _Part:
    """E[P_2 (b^2 l + 2b xi'X xi) - H b^2 xi'Y xi]."""
    Z, label, b = A @ problem.root, problem.label, float(b)
    T = problem.cov @ Z
    if not np.isfinite(T).all():
        return _Part(np.nan, np.full_like(T, np.nan), np.nan)
    variances, axes = np.linalg.eigh(_symmetric(Z.T @ T))
    T_axes, B_axes = T @ axes, problem.root @ axes
    S_T, S_B = problem.task_cov @ T_axes, problem.task_cov @ B_axes
    X, Y = _symmetric(T_axes.T @ S_B), T_axes.T @ S_T
    x, y = X.diagonal(), Y.diagonal()
    p, mass, factors = table.terms(variances)
    first, second = np.real(mass @ factors)  # E[h xi_i^2]
    tilted = p * mass
    slope = np.real(tilted[0] @ factors)
    moved, moved_shrunk = np.real((tilted[:, None] * factors.T) @ factors)
    linear, square = first @ x, label * np.real(mass[0]).sum() - second @ y
    by_M = (2 * b**2) * moved_shrunk * Y - (4 * b) * moved * X
    by_M.flat[:: len(x) + 1] -= b * (b * label * slope + 2 * moved @ x - b * moved_shrunk @ y)
    inner = problem.cov @ (b * (S_B * first - S_T * (b * second))) + T_axes @ by_M
    return _Part(
        float(b**2 * square + 2 * b * linear),
        (2 * inner) @ axes.T,
        float(2 * b * square + 2 * linear),
    )


def _symmetric(A: np.ndarray) -> np.ndarray:
    return (A + A.T) / 2
