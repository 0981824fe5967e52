"""Linear attention, which equals softmax attention for centred Gaussian tokens."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from .. import _checks
from .._typing import Array, ArrayInput
from ..measures import AbstractMeasure
from .head import AbstractHead, Head
from .softmax import of_known_numbers, queries_of, read_out, tilts_of


@_checks.accepts(head=AbstractHead, measure=AbstractMeasure)
def attend_linear(
    head: AbstractHead, measure: AbstractMeasure, z: ArrayInput
) -> Float[Array, "*batch m"]:
    """$T_lin[mu](z) = V E[x x'] U z$; for a prompt, the average $(1/L) sum_i V x_i <x_i, U z>$.

    Equal to `attend` for centred Gaussian tokens. For N(m, G) it is V (G + m m') U z, while softmax
    attention is V m + V G U z. Outputs of a `MultiHead` are added.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> print(lp.attend_linear(head, lp.Rademacher(2), jnp.array([1.0, -1.0])))
    [ 1. -1.]
    """
    queries, batch = queries_of(head, measure, z)
    first, *others = (_attend_linear(one, measure, queries) for one in head.heads)
    return sum(others, start=first).reshape(*batch, head.out_dim)


@of_known_numbers
@eqx.filter_jit
def _attend_linear(
    head: Head, measure: AbstractMeasure, queries: Float[Array, "q k"]
) -> Float[Array, "q m"]:
    tilts = tilts_of(head, measure, queries)
    prompt = measure.as_prompt()
    if prompt is not None:
        scores = jnp.matmul(tilts, prompt.points.T, precision="highest")
        read = jnp.matmul(scores * prompt.weights, prompt.points, precision="highest")
    else:
        mean = measure.mean()
        second_moment = measure.cov() + jnp.outer(mean, mean)
        read = jnp.matmul(tilts, second_moment, precision="highest")
    return read_out(head, read)
