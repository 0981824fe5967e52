"""Two queries on one prompt: the covariance of their outputs, exactly, for Gaussian tokens.

Tokens x_i iid N(m, G), u = U z and u' = U z', p and q the softmaxes of the scores at the two
queries, A_2 = sum p_i^2, B_2 = sum q_i^2, C_kl = sum p_i^k q_i^l. Gaussian integration by parts,
twice, gives for every L >= 1, every d, singular G and any m

    Cov(T_L(z), T_L(z')) = V { E[C_11] G + 2 E[A_2 C_11 - C_21] a a' + 2 E[B_2 C_11 - C_12] b b'
                + Cov(A_2, B_2) a b' + E[C_11 - C_21 - C_12 + C_11^2] b a' } V',  a = G u, b = G u'.

The moments are those of `pair_moments`: no prompt is sampled, and the cost does not depend on L.
"""

import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from .._arrays import Values, library
from .._typing import ArrayInput
from ..attention import Head
from ..measures import AbstractMeasure, Gaussian
from ..participation import pair_moments, participation
from .gaussian_tokens import Scores, by_library, gaussian_law, like, scores_of
from .pairs import pairs


def output_covariance(
    head: Head, mu: AbstractMeasure, z: ArrayInput, z2: ArrayInput, L: ArrayInput
) -> Float[Array | np.ndarray, "*shape m m"]:
    """Cov(T_L(z), T_L(z2)): how much of the error of a prompt of L iid tokens two queries share.

    Exact for Gaussian tokens (singular or non-centred too), with scores of deviation at most 12.
    Queries of shape (..., d) and `L` broadcast. Entry (i, j) is the covariance of coordinate i of
    the output at z and coordinate j of the output at z2. Differentiable where neither query has
    constant scores.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.ones((1, 2)))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> z, z2 = jnp.array([1.0, 0.0]), jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> print(lp.output_covariance(head, mu, z, z2, 100)[:, 0, 0].round(4))
    [0.0715 0.0296 0.0041]
    """
    (queries, tilts, lengths), (queries2, tilts2, _) = (pairs(head, mu, q, L) for q in (z, z2))
    fix = "draw prompts with mu.sample(key, L) and attend to both queries"
    normal = gaussian_law(mu, "the covariance of two outputs", fix)
    try:
        np.broadcast_shapes(queries.shape, queries2.shape)
    except ValueError as error:
        raise ValueError(
            _checks.message(
                "the batches of z and z2 must broadcast",
                f"shapes {np.shape(z)} and {np.shape(z2)}",
                "add axes, for example z[:, None] against z2[None, :] for all pairs",
            )
        ) from error
    return by_library(_covariance, head, normal, tilts, tilts2, lengths)


def _covariance(head: Head, mu: Gaussian, tilts: Values, tilts2: Values, L: Values) -> Values:
    first, second = scores_of(mu, tilts), scores_of(mu, tilts2)
    moments = pair_moments(first.sigma, second.sigma, _correlation(tilts, first, second), L)
    moments = like(tilts, moments)
    ones = like(tilts, [participation(scores.sigma, L) for scores in (first, second)])
    a, b = first.pull @ head.V.T, second.pull @ head.V.T

    def term(weight: Values, left: Values, right: Values) -> Values:
        return weight[..., None, None] * left[..., :, None] * right[..., None, :]

    return (
        moments.c11[..., None, None] * (head.V @ mu.covariance @ head.V.T)
        + term(2 * (moments.a2c11 - moments.c21), a, a)
        + term(2 * (moments.b2c11 - moments.c12), b, b)
        + term(moments.a2b2 - ones[0].p2 * ones[1].p2, a, b)
        + term(moments.c11 - moments.c21 - moments.c12 + moments.c11_squared, b, a)
    )


def _correlation(tilts: Values, first: Scores, second: Scores) -> Values:
    """Correlation of the two scores of a token; 0 where one of them is constant."""
    xp = library(tilts, first, second)
    product = first.sigma * second.sigma
    positive = product > 0
    shared = (tilts * second.pull).sum(-1)
    ratio = xp.where(positive, shared / xp.where(positive, product, 1.0), 0.0)
    return xp.clip(ratio, -1.0, 1.0)
