"""The best head in block form, found by a real optimiser and certified by its gradient."""

import math
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optimistix
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .. import _checks
from ._exact_risk import label_size
from .params import BlockParams
from .risks import Attention, RiskFunction

if TYPE_CHECKING:
    from .linear_regression import LinearRegression

_STEPS = 512
_NEWTON = 24
_CERTIFIED = 1e-9  # largest gradient norm accepted


def minimise_block(
    task: "LinearRegression", L: float, attention: Attention
) -> tuple[BlockParams, Float[Array, ""], Float[Array, ""]]:
    """(params, risk, gradient norm)."""
    start = best_linear(task, L)
    function = task.risk_function(L, attention)
    if attention == "softmax" and L == 1:
        # one token has all the weight, whatever the query: it is best to predict nothing
        params = BlockParams(jnp.zeros_like(start.A), 0.0)
    elif attention == "linear" or math.isinf(L):
        params = start
    else:
        params = _descend(function, start)
    risk, gradient = jax.value_and_grad(function)(params)
    norm = jnp.linalg.norm(ravel_pytree(gradient)[0])
    if not bool(norm <= _CERTIFIED):
        raise ValueError(
            _checks.message(
                f"a minimiser must have a gradient norm of at most {_CERTIFIED:g}",
                f"{float(norm):.2e} at L = {L:g}",
                "choose a larger L: the best head of a very short prompt has scores that are too "
                "large for the exact average",
            )
        )
    return params, risk, norm


def best_linear(task: "LinearRegression", L: float) -> BlockParams:
    """The balanced minimiser for linear attention: the risk is a quadratic of N = bA.

    ((1 + 1/L) Sig S Sig + (c/L) Sig) N = Sig S, c = tr(S Sig) + tau^2; at infinity N = Sig^-1. The
    queries' covariance multiplies both sides from the right: it changes the risk, not its
    minimiser.
    """
    problem = task.problem()
    Sig, S = problem.cov, problem.task_cov
    left = (1 + 1 / L) * Sig @ S @ Sig + label_size(problem) / L * Sig
    N = jnp.linalg.lstsq(left, Sig @ S)[0]
    b = jnp.sqrt(jnp.linalg.norm(N))
    return BlockParams(N / b, b)


@eqx.filter_jit
def _descend(function: RiskFunction, start: BlockParams) -> BlockParams:
    """BFGS, then Newton, in the coordinates (N, ln b), N = bA.

    At large L the risk is a valley along N = const whose bottom falls by O(1/L) only. It is
    straight in these coordinates, so Newton's step along it is right however flat it is.
    """
    flat, restore = ravel_pytree((start.A * start.b, jnp.log(start.b)))

    def params(y: Float[Array, " n"]) -> BlockParams:
        # not by the constructor, whose checks call back to Python inside loops; the solver rejects
        # steps into NaN, and the result is certified by its gradient
        N, log_b = restore(y)
        values = (N * jnp.exp(-log_b), jnp.exp(log_b))
        return eqx.tree_at(lambda block: (block.A, block.b), start, values)

    def risk(y: Float[Array, " n"], _: None = None) -> Float[Array, ""]:
        return function(params(y))

    # the best ln b on a grid first: the start is far off in that coordinate only
    shifts = jnp.linspace(-2.0, 2.0, 33)
    starts = flat + shifts[:, None] * ravel_pytree((jnp.zeros_like(start.A), jnp.ones(())))[0]
    risks = jax.lax.map(risk, starts)
    best = starts[jnp.nanargmin(risks)]
    solver = optimistix.BFGS(rtol=1e-6, atol=1e-9)
    near = optimistix.minimise(risk, solver, best, max_steps=_STEPS, throw=False).value
    gradient = jax.grad(risk)
    newton = optimistix.Newton(rtol=1e-14, atol=1e-16, linear_solver=lineax.AutoLinearSolver(None))
    found = optimistix.root_find(
        lambda y, _: gradient(y), newton, near, max_steps=_NEWTON, throw=False
    ).value
    better = (risk(found) <= risk(near) * (1 + 1e-9)) & jnp.all(jnp.isfinite(found))
    return params(jnp.where(better, found, near))
