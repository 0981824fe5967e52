"""A prompt and its first tokens: the squared difference of their outputs, exactly.

For atoms and mixtures of Gaussians by `mixture_tokens`. For Gaussian tokens, with p the softmax of
head a on the first tokens and q that of head b on all, integration by parts goes as in
`many_heads`. With a = G u_a, b = G u_b and the moments of `nested_moments`,

    E <T_a,first - T_a, T_b,L - T_b> = tr V_b' V_a { E[C_11] G + 2 E[A_2 C_11 - C_21] a a'
        + 2 E[B_2 C_11 - C_12] b b' + E[A_2 B_2] a b' + E[C_11 - C_21 - C_12 + C_11^2] b a' },

summed over all pairs of heads.
"""

import itertools

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values
from .._float64 import in_float64, is_traced
from .._typing import Array, ArrayInput
from ..attention import AbstractHead, Head
from ..measures import AbstractMeasure, Gaussian
from ..participation import checked_lengths, nested_pair_moments_at
from . import gaussian_tokens, many_heads, mixture_tokens
from .gaussian_tokens import Bounded, by_library, like, scores_of
from .mixture_tokens import require_law
from .pairs import pairs

_ACCURACY = 1e-7  # relative error beyond which terms cancel too much


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@in_float64
def prefix_difference(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, first: ArrayInput, L: ArrayInput
) -> Float[Array | np.ndarray, "*shape"]:
    """$E |T_L - T_first|^2$, where T_first reads only the first tokens of a prompt of L iid tokens.

    Exact for Gaussian tokens (singular or non-centred too), with scores of deviation at most 12,
    and for atoms and mixtures of Gaussians. At first = L/2 it is an error bar of T_L that can be
    observed without knowing T: their ratio is close to 1 where the prompt is long enough. At
    L = infinity it is the output error at `first`.
    Queries of shape (..., d), `first` and `L` broadcast. A `MultiHead` costs one call of
    `pair_moments` for every ordered pair of heads.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> seen = lp.prefix_difference(head, mu, jnp.ones(1), first=100, L=200)
    >>> print(f"{seen / lp.output_error(head, mu, jnp.ones(1), 200):.3f}")
    0.945
    """
    each = [pairs(one, mu, z, L) for one in head.heads]
    firsts = pairs(head.heads[0], mu, z, first)[2]
    firsts, lengths = checked_lengths("prefix_difference", firsts, each[0][2])
    normal = mu.as_gaussian()
    if normal is None:
        fix = "draw prompts with mu.sample(key, L) and attend to them and to their first tokens"
        require_law(mu, "the difference to the first tokens", fix)
        return mixture_tokens.prefix_difference(head, mu, z, firsts, lengths).value
    found = by_library(_of_moments, head, normal, firsts, lengths, *(at for _, at, _ in each))
    own = gaussian_tokens if len(each) == 1 else many_heads
    short, long = (own.output_error(head, normal, z, length) for length in (first, L))
    value = short.value + long.value - 2 * found.value
    error = short.error + long.error + 2 * found.error
    lost = error > _ACCURACY * abs(value)
    if is_traced(lost):
        return _checks.require(
            value,
            lost & (firsts < lengths),
            rule=f"prefix_difference must have a relative error of at most {_ACCURACY:g}",
            received="a larger one: `first` is close to L, or the scores are too large",
            fix="call it with known numbers, outside of jit, vmap and grad",
        )
    if not np.any(lost):
        return value
    # few more tokens: no difference of large terms
    return mixture_tokens.prefix_difference(head, normal, z, firsts, lengths).value


def _of_moments(
    head: AbstractHead, mu: Gaussian, first: Values, L: Values, *tilts: Values
) -> Bounded:
    """E <T_first - T, T_L - T>, the sum over all pairs of heads."""
    every = list(zip(head.heads, tilts, strict=True))
    found = [_of_two(mu, a, b, first, L) for a, b in itertools.product(every, every)]
    return Bounded(*(sum(part[1:], start=part[0]) for part in zip(*found, strict=True)))


def _of_two(
    mu: Gaussian, a: tuple[Head, Values], b: tuple[Head, Values], first: Values, L: Values
) -> Bounded:
    """The same of head a on the first tokens and head b on all, each at its tilts."""
    one, two = scores_of(mu, a[1]), scores_of(mu, b[1])
    if a is b:
        joint = one.variance, one.variance, one.variance
    else:
        joint = many_heads.covariances(a[1], one, two)
    m = like(a[1], nested_pair_moments_at(*joint, first, L))

    def read(left: Values, right: Values) -> Values:
        """<V_a left, V_b right>."""
        return ((left @ a[0].V.T) * (right @ b[0].V.T)).sum(-1)

    forms = (
        (a[0].V @ mu.covariance @ b[0].V.T).trace(),
        read(one.pull, one.pull),
        read(two.pull, two.pull),
        read(two.pull, one.pull),
        read(one.pull, two.pull),
    )
    values, sizes = m.functions()
    value = sum(f * form for f, form in zip(values, forms, strict=True))
    error = sum(size * abs(form) for size, form in zip(sizes, forms, strict=True))
    return Bounded(value, m.error * error)
