"""Two queries on one prompt: the covariance of their outputs, exactly.

For Gaussian tokens the formula and its moments are those of `many_heads`, for atoms and mixtures of
Gaussians those of `mixture_tokens`: no prompt is sampled, and the cost does not depend on L.
"""

import itertools

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values
from .._typing import Array, ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure, Gaussian
from . import mixture_tokens
from .gaussian_tokens import by_library
from .many_heads import covariance_of_two
from .mixture_tokens import require_law
from .pairs import pairs


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
def output_covariance(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, z2: ArrayInput, L: ArrayInput
) -> Float[Array | np.ndarray, "*shape m m"]:
    """$Cov(T_L(z), T_L(z2))$: how much of the error of a prompt of L iid tokens two queries share.

    Exact for Gaussian tokens (singular or non-centred too), with scores of deviation at most 12,
    and for atoms and mixtures of Gaussians. Queries of shape (..., d) and `L` broadcast. Entry
    (i, j) is the covariance of coordinate i of the output at z and coordinate j of the output at
    z2. Differentiable for Gaussian tokens.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.ones((1, 2)))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> z, z2 = jnp.array([1.0, 0.0]), jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> print(lp.output_covariance(head, mu, z, z2, 100)[:, 0, 0].round(4))
    [0.0715 0.0296 0.0041]
    """
    one = head.heads[0]
    (queries, _, lengths), (queries2, *_) = (pairs(one, mu, q, L) for q in (z, z2))
    try:
        np.broadcast_shapes(queries.shape, queries2.shape)
    except ValueError as error:
        raise _checks.error(
            "the batches of z and z2 must broadcast",
            f"shapes {np.shape(z)} and {np.shape(z2)}",
            "add axes, for example z[:, None] against z2[None, :] for all pairs",
        ) from error
    normal = mu.as_gaussian()
    if normal is None:
        fix = "draw prompts with mu.sample(key, L) and attend to both queries"
        require_law(mu, "the covariance of two outputs", fix)
        return mixture_tokens.covariance_of_queries(head, mu, z, z2, L).value
    each = [(pairs(one, mu, z, L)[1], pairs(one, mu, z2, L)[1]) for one in head.heads]
    return by_library(_covariance, head, normal, lengths, *itertools.chain(*each))


def _covariance(head: AbstractHead, mu: Gaussian, L: Values, *tilts: Values) -> Values:
    """The sum over all pairs of heads; `tilts` has those of z and of z2 for every head."""
    first, second = (list(zip(head.heads, tilts[i::2], strict=True)) for i in (0, 1))
    total = 0.0
    for (a, at), (b, at2) in itertools.product(first, second):
        total = total + covariance_of_two((a, b), mu, at, at2, L).value
    return total
