"""The risk of linear regression in context, exactly, at every prompt length: no prompt is sampled.

Given w the tokens are N(0, G_w). With u = U (x_q, 0), sigma^2 = u'G_w u, the
prediction m = v'G_w u of the infinite prompt, its target t = w'x_q, and H = P_2 + 6 P_3 - 6 P_22,

    R_L = 1/2 E[ (m - t)^2 + tau^2 + m^2 (2 P_2 - H) - 2 m (m - t) P_2 + (v'G_w v) P_2 ].

Every term but the first two is proportional to a participation moment, and the first is a square:
at large L, near m = t and without noise, the risk of order 1/L is not a difference of terms of
order one.

For the query x_q = B xi, xi standard normal, sigma^2 is a quadratic form of xi and every other
factor another: `ExponentialTable` averages over the query in closed form. In block form (U = [[A,
0], [0, 0]], v = (0, b)) sigma^2 does not depend on w and the average over w is a trace; otherwise
it is a weighted sum over given values of w.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from .._typing import Array
from ..participation import ExponentialTable
from .params import BlockParams, HeadParams


class Problem(NamedTuple):
    """Covariances Sig of inputs and S of w, a root B of the queries' B B', and the noise."""

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


def block_softmax(
    problem: Problem, params: BlockParams, table: ExponentialTable
) -> Float[Array, ""]:
    """The risk of a head in block form; the table holds the prompt length."""
    forms = _block_forms(problem, params)
    moments, averages = table.averages(forms.scores, jnp.stack([forms.square, forms.cross]))
    drift = 2 * averages[0, 0] - averages[1, 0] - 2 * averages[0, 1]
    variance = params.b**2 * label_size(problem) * moments[0]
    return 0.5 * (forms.limit + drift + variance + problem.noise)


def block_linear(
    problem: Problem, params: BlockParams, inverse_length: Float[Array, ""]
) -> Float[Array, ""]:
    """Linear attention in block form [Zhang, Frei & Bartlett 2024]: a polynomial."""
    forms = _block_forms(problem, params)
    variance = params.b**2 * label_size(problem) * jnp.trace(forms.scores)
    finite = inverse_length * (jnp.trace(forms.square) + variance)
    return 0.5 * (forms.limit + finite + problem.noise)


class _BlockForms(NamedTuple):
    """Quadratic forms of xi, averaged over w: sigma^2, m^2 and m (m - t); and E (m - t)^2."""

    scores: Float[Array, "d d"]
    square: Float[Array, "d d"]
    cross: Float[Array, "d d"]
    limit: Float[Array, ""]


def _block_forms(problem: Problem, params: BlockParams) -> _BlockForms:
    Sig, B, S = problem.cov, problem.root, problem.task_cov
    through = _product(Sig, params.A, B)
    scores = _symmetric(_product((params.A @ B).T, through))
    prediction = params.b * through  # m = w' prediction xi, t = w' B xi
    error = prediction - B
    square = _symmetric(_product(prediction.T, S, prediction))
    cross = _symmetric(_product(prediction.T, S, error))
    return _BlockForms(scores, square, cross, jnp.sum(error * _product(S, error)))


def _given_w(problem: Problem, params: HeadParams, w: Float[Array, " d"]) -> tuple:
    """(form of sigma^2, m = v'G_w u as a covector of xi, v'G_w v, t = w'x as a covector of xi)."""
    Sig, B, d = problem.cov, problem.root, len(problem.cov)
    pull = Sig @ w
    G = jnp.block([[Sig, pull[:, None]], [pull[None], (w @ pull + problem.noise)[None, None]]])
    u = params.U[:, :d] @ B
    return _symmetric(_product(u.T, G, u)), params.v @ G @ u, params.v @ G @ params.v, B.T @ w


class WeightedDraws(NamedTuple):
    """Values of w with weights that sum to one: a quadrature rule for its law, or a sample."""

    points: Float[Array, "n d"]
    weights: Float[Array, " n"]


def general_softmax(
    problem: Problem, params: HeadParams, table: ExponentialTable, draws: WeightedDraws
) -> Float[Array, ""]:
    """The risk of a general head, averaged over the given values of w."""

    def one(w: Float[Array, " d"]) -> Float[Array, ""]:
        scores, output, read_out, target = _given_w(problem, params, w)
        error = output - target
        forms = jnp.stack([jnp.outer(output, output), _symmetric(jnp.outer(output, error))])
        moments, averages = table.averages(scores, forms)
        drift = 2 * averages[0, 0] - averages[1, 0] - 2 * averages[0, 1]
        return error @ error + drift + read_out * moments[0]

    losses = jax.lax.map(one, draws.points, batch_size=64)
    return 0.5 * (draws.weights @ losses + problem.noise)
