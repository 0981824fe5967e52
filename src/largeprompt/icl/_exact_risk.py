"""The risk of linear regression in context, exactly, at every prompt length: no prompt is sampled.

Given the task w the tokens are N(0, G_w); with u = U (x_q, 0) and sigma^2 = u'G_w u,

    R_L = 1/2 E[ (v'G_w u)^2 (1 - P_2 - 6 P_3 + 6 P_22) + (v'G_w v) P_2 - 2 (1 - P_2)(v'G_w u)(w'x_q) + (w'x_q)^2 + tau^2 ].

For the query x_q = B xi, xi standard normal, sigma^2 is a quadratic form of xi and every other factor another: `ExponentialTable`
averages over the query in closed form. In block form (U = [[A, 0], [0, 0]], v = (0, b)) sigma^2 does not depend on w and the average
over w is a trace; otherwise it is a sum over given tasks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..prompts.exponential import ExponentialTable
from .params import BlockParams, HeadParams


class Problem(NamedTuple):
    """Covariance Sig of the prompts' inputs and of tasks, a root B of the queries' covariance B B', and the variance of the noise."""

    cov: Float[Array, "d d"]
    root: Float[Array, "d d"]
    task_cov: Float[Array, "d d"]
    noise: Float[Array, ""]


def _product(*matrices: Array) -> Array:
    """A matrix product in full precision."""
    return jnp.linalg.multi_dot(matrices, precision="highest")


def _symmetric(A: Array) -> Array:
    return (A + A.T) / 2


def label_size(problem: Problem) -> Float[Array, ""]:
    """E y^2 = E (w'x)^2 + tau^2 of a label in the prompt."""
    return jnp.trace(_product(problem.task_cov, problem.cov)) + problem.noise


def _target_size(problem: Problem) -> Float[Array, ""]:
    """E (w'x_q)^2 + tau^2 of the target of a query."""
    return jnp.trace(_product(problem.root.T, problem.task_cov, problem.root)) + problem.noise


def block_softmax(
    problem: Problem, params: BlockParams, table: ExponentialTable
) -> Float[Array, ""]:
    """The risk of a head in block form; the table holds the prompt length."""
    Sig, B, S = problem.cov, problem.root, problem.task_cov
    A, b = params.A, params.b
    through = _product(Sig, A, B)
    square = _symmetric(_product(through.T, S, through))
    cross = _symmetric(_product(B.T, S, through))
    scores = _symmetric(_product((A @ B).T, through))
    ones, forms = table.averages(scores, jnp.stack([square, cross]))
    second = jnp.trace(square) - forms[1, 0] + label_size(problem) * ones[0]
    first = jnp.trace(cross) - forms[0, 1]
    return 0.5 * (b**2 * second - 2 * b * first + _target_size(problem))


def block_linear(
    problem: Problem, params: BlockParams, inverse_length: Float[Array, ""]
) -> Float[Array, ""]:
    """Linear attention in block form [Zhang, Frei & Bartlett 2024]: a polynomial."""
    Sig, B, S = problem.cov, problem.root, problem.task_cov
    A, b = params.A, params.b
    through = _product(Sig, A, B)
    square = jnp.trace(_product(through.T, S, through))
    cross = jnp.trace(_product(B.T, S, through))
    scores = jnp.trace(_product((A @ B).T, through))
    second = (1 + inverse_length) * square + label_size(problem) * scores * inverse_length
    return 0.5 * (b**2 * second - 2 * b * cross + _target_size(problem))


def _given_task(problem: Problem, params: HeadParams, w: Float[Array, " d"]) -> tuple:
    """(form of sigma^2, v'G_w u as a covector of xi, v'G_w v, w'x as a covector of xi)."""
    Sig, B, d = problem.cov, problem.root, len(problem.cov)
    pull = Sig @ w
    G = jnp.block([[Sig, pull[:, None]], [pull[None], (w @ pull + problem.noise)[None, None]]])
    u = params.U[:, :d] @ B
    return _symmetric(_product(u.T, G, u)), params.v @ G @ u, params.v @ G @ params.v, B.T @ w


def general_softmax(
    problem: Problem, params: HeadParams, table: ExponentialTable, tasks: Float[Array, "n d"]
) -> Float[Array, ""]:
    """The risk of a general head, averaged over the tasks given."""

    def one(w: Float[Array, " d"]) -> Float[Array, ""]:
        scores, output, spread, target = _given_task(problem, params, w)
        square, cross = jnp.outer(output, output), _symmetric(jnp.outer(output, target))
        ones, forms = table.averages(scores, jnp.stack([square, cross]))
        second = output @ output - forms[1, 0] + spread * ones[0]
        return second - 2 * (output @ target - forms[0, 1]) + target @ target

    return 0.5 * (jnp.mean(jax.lax.map(one, tasks, batch_size=64)) + problem.noise)
