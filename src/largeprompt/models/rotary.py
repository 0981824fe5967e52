"""Rotary positions: queries of one position as they would be at another."""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._typing import ArrayInput

Pairs = Literal["halves", "neighbours"]


def rotate(
    queries: ArrayInput, by: ArrayInput, *, base: float = 10_000.0, pairs: Pairs = "halves"
) -> Float[np.ndarray, "*batch q k"]:
    """Queries (or keys) moved `by` positions, in a model with rotary positions.

    Coordinates i and i + k/2 turn by the angle `by` / base^(2i/k). A decoder's next queries have
    later positions than those at hand; `compress` serves them better if it is told:

        later = lp.models.rotate(queries, 64, base=model.config.rope_parameters["rope_theta"])

    **Arguments:** `queries` of shape (..., q, k) with even k, after their own rotation; `by`, one
    number or one for each query. `pairs="neighbours"` turns coordinates 2i and 2i + 1.

    >>> import numpy as np
    >>> import largeprompt as lp
    >>> print(lp.models.rotate(np.array([[1.0, 2.0]]), np.pi / 2).round(3))
    [[-2.  1.]]
    """
    z = np.asarray(_checks.finite("queries", queries))
    by = np.asarray(_checks.finite("by", by), np.float64)  # angles in double precision
    if z.ndim < 2 or z.shape[-1] % 2:
        raise ValueError(
            _checks.message(
                "queries must have shape (..., q, k) with even k", f"{z.shape}", "pass whole heads"
            )
        )
    if by.shape not in ((), (z.shape[-2],)):
        raise ValueError(
            _checks.message(
                f"by must be one number or {z.shape[-2]}, one for each query",
                f"shape {by.shape}",
                "pass new positions minus old ones",
            )
        )
    if pairs not in get_args(Pairs):
        raise ValueError(
            _checks.message(f"pairs must be one of {get_args(Pairs)}", repr(pairs), "see help")
        )
    if not (np.isfinite(base) and base > 0):
        raise ValueError(
            _checks.message("base must be a positive number", repr(base), "see the model's config")
        )
    half = z.shape[-1] // 2
    angles = by[..., None] * float(base) ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    if pairs == "halves":
        first, second = z[..., :half], z[..., half:]
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    else:
        first, second = z[..., ::2], z[..., 1::2]
        turned = np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
        turned = turned.reshape(z.shape)
    return turned.astype(z.dtype)
