"""A prompt and its first tokens: the squared difference of their outputs, for Gaussian tokens.

With p the softmax of the first tokens and q that of all, the formula of `two_queries` at equal
queries gives, with g = V G u and the moments of `nested_moments`,

    E <T_first - T, T_L - T> = E[C_11] tr(V G V') + |g|^2 E[2 (A_2 C_11 - C_21)
                    + 2 (B_2 C_11 - C_12) + A_2 B_2 + C_11 - C_21 - C_12 + C_11^2].
"""

import numpy as np
from jaxtyping import Array, Float

from .._arrays import Values
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure, Gaussian
from ..participation import nested_moments, participation
from .gaussian_tokens import by_library, gaussian_law, like, scores_of
from .pairs import pairs


def prefix_difference(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, first: ArrayInput, L: ArrayInput
) -> Float[Array | np.ndarray, "*shape"]:
    """$E |T_L - T_first|^2$, where T_first reads only the first tokens of a prompt of L iid tokens.

    Exact for Gaussian tokens (singular or non-centred too), with scores of deviation at most 12. At
    first = L/2 it is an error bar of T_L that can be observed without knowing T: their ratio is
    close to 1 where the prompt is long enough. At L = infinity it is the output error at `first`.
    Queries of shape (..., d), `first` and `L` broadcast.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> seen = lp.prefix_difference(head, mu, jnp.ones(1), first=100, L=200)
    >>> print(f"{seen / lp.output_error(head, mu, jnp.ones(1), 200):.3f}")
    0.945
    """
    fix = "draw prompts with mu.sample(key, L) and attend to them and to their first tokens"
    normal = gaussian_law(mu, "the difference to the first tokens", fix)
    _, tilts, lengths = pairs(head, mu, z, L)
    firsts = pairs(head, mu, z, first)[2]
    return by_library(_difference, head, normal, tilts, firsts, lengths)


def _difference(
    head: AbstractHead, mu: Gaussian, tilts: Values, first: Values, L: Values
) -> Values:
    scores = scores_of(mu, tilts)
    nested = like(tilts, nested_moments(scores.sigma, first, L))
    ones = like(tilts, [participation(scores.sigma, length) for length in (first, L)])
    square = ((scores.pull @ head.V.T) ** 2).sum(-1)
    trace = (head.V @ mu.covariance @ head.V.T).trace()
    shared = nested.c11 * trace + square * (
        2 * (nested.a2c11 - nested.c21)
        + 2 * (nested.b2c11 - nested.c12)
        + nested.a2b2
        + (nested.c11 - nested.c21 - nested.c12 + nested.c11_squared)
    )
    errors = (trace * p.p2 + square * (p.p2 - 6 * p.p3 + 6 * p.p22) for p in ones)
    return sum(errors) - 2 * shared
