"""Averages over prompts whose tokens are drawn from points that represent their law.

The points have a limit of their own, but the limit T of their law is known, and so is the average
over prompts of one token. A prompt of L tokens has one that n points lack with a probability of at
most r = min(4 L / n, 1). So short prompts keep the mean output of the points, and long ones are
moved to the known limit:

    E T_L  ~  E T_L[points] + r (T - T[points]).

The average of the quantity changes with the mean. The squared error of dT/dU, which is no function
of the output, is multiplied by (known / points)^(1 - r), the two averages being those of one token.
The error has r times the distance to the average of long prompts, or for dT/dU all of the change.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..attention import AbstractHead, attend
from ..attention.softmax import inside_domain
from ..measures import AbstractMeasure, Empirical
from . import mixture_tokens
from .quantities import AbstractQuantity, MeanOutput, at_each_query
from .quasi import tail_of

_ROUNDING = 4e-16


class Represented(NamedTuple):
    """Averages of shape (q, lengths, ...), their numerical error, what the points may miss of them
    (signed), and an error from the gap between the limits.
    """

    value: np.ndarray
    error: np.ndarray
    missed: np.ndarray
    from_gap: np.ndarray


def represented_average(
    quantity: AbstractQuantity,
    head: AbstractHead,
    mu: AbstractMeasure,
    points: list[Empirical],
    z: np.ndarray,
    longest: float,
) -> Callable[[np.ndarray], Represented]:
    """The average at queries z of shape (q, d), each with its own points for the law mu, as a
    function of lengths up to `longest`.
    """
    average = quantity.along_length(head, mu, points, z, longest)
    reader, tilts = quantity.reader(head), z @ np.asarray(head.U).T
    tails = [tail_of(mu, law, tilt) for law, tilt in zip(points, tilts, strict=True)]
    means = [np.asarray(law.tilted_mean(u)) for law, u in zip(points, tilts, strict=True)]
    own_limit = (np.stack(means) @ np.asarray(reader.V).T)[:, None]
    inside = np.array([bool(mu.in_domain(u)) for u in tilts])
    limit = own_limit.copy()  # where there is none, averages at finite L exist all the same
    if inside.any():
        limit[inside, 0] = np.asarray(attend(reader, mu, z[inside]))
    one_token = quantity.of_one_token(head, mu, z)

    def represented(lengths: np.ndarray) -> Represented:
        if np.any(np.isinf(lengths)):
            inside_domain(head, mu, jnp.asarray(z))  # raises where there is no limit
        ends = np.concatenate([lengths, [1.0, np.inf]])
        value, error = (np.array(part) for part in average(ends))
        axes, single = (1,) * (value.ndim - 2), ends == 1
        rare = np.stack([tail.rare(ends) for tail in tails])
        share = rare.reshape(*rare.shape, *axes)
        # the mean does not matter to long prompts whose error is measured from their own limit
        moved = (ends > 1) & ((rare < 1).any(0) | (not quantity.refers_to_limit))
        shift = np.zeros((len(z), len(ends), reader.out_dim))
        if moved.any():
            each = at_each_query(mixture_tokens.mean_shift, reader, points, z, ends[moved])
            shift[:, moved] = each.value
        before = MeanOutput(own_limit, shift)
        after = MeanOutput(limit, shift + (1 - rare[..., None]) * (own_limit - limit))
        new = quantity.with_mean(head, mu, z, value, before, after)
        if_long = quantity.with_mean(head, mu, z, value, before, MeanOutput(limit, shift))
        from_gap = share * np.abs(new - if_long)
        if one_token is not None:
            if not quantity.from_output:
                own = value[:, -2:-1]
                ratio = np.where(own > 0, one_token[:, None] / np.where(own > 0, own, 1.0), 1.0)
                new = value * ratio ** (1 - share)
                from_gap = np.abs(new - value)
            new[:, single] = one_token[:, None]
            error[:, single] = _ROUNDING * np.abs(one_token[:, None])
            from_gap[:, single] = 0.0
        of_one, at_infinity = new[:, -2], new[:, -1]
        missed = np.stack(
            [
                tail.missed(v - end, np.asarray(one - end), ends, quantity.tail_order)
                for tail, v, one, end in zip(tails, new, of_one, at_infinity, strict=True)
            ]
        )
        if one_token is not None:
            missed[:, single] = 0.0
        return Represented(*(part[:, :-2] for part in (new, error, missed, from_gap)))

    return represented
