"""Rotary positions: queries of one position as they would be at another."""

import sys
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._typing import ArrayInput

Pairs = Literal["halves", "neighbours"]


@_checks.accepts()
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
        raise _checks.error(
            "queries must have shape (..., q, k) with even k", f"{z.shape}", "pass whole heads"
        )
    if by.shape not in ((), (z.shape[-2],)):
        raise _checks.error(
            f"by must be one number or {z.shape[-2]}, one for each query",
            f"shape {by.shape}",
            "pass new positions minus old ones",
        )
    base = _checks.number("base", base, "see the model's config", above=0.0)
    half = z.shape[-1] // 2
    return _turned(z, by, float(base) ** (-np.arange(half) / half), pairs)


def _turned(z: np.ndarray, by: np.ndarray, frequencies: np.ndarray, pairs: Pairs) -> np.ndarray:
    half = z.shape[-1] // 2
    angles = by[..., None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    if pairs == "halves":
        first, second = z[..., :half], z[..., half:]
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    else:
        first, second = z[..., ::2], z[..., 1::2]
        turned = np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
        turned = turned.reshape(z.shape)
    return turned.astype(z.dtype)


class Rotation(NamedTuple):
    """Rotary positions of one layer of a model: whole heads turn, by the same angles."""

    frequencies: np.ndarray  # (k / 2,)
    pairs: Pairs

    def moved(self, queries: np.ndarray, by: int) -> np.ndarray:
        """Queries (..., q, k) as they would be `by` positions later."""
        return _turned(queries, np.array(float(by)), self.frequencies, self.pairs)


def rotations(model: Any, layers: int, dim: int) -> list[Rotation | None]:
    """The rotary positions of every layer of a causal model of transformers, for heads of `dim`.

    None where a layer has none, or others than those of whole heads, such as of a part of each.
    """
    tables = [module.inv_freq for module in model.modules() if hasattr(module, "inv_freq")]
    attention = [
        module
        for module in model.modules()
        if hasattr(module, "is_causal") and hasattr(module, "layer_idx")
    ]
    if not tables or len(attention) != layers:
        return [None] * layers
    found = [np.asarray(table.detach().double().cpu()) for table in tables]
    if any(2 * len(one) != dim or not np.array_equal(one, found[0]) for one in found):
        return [None] * layers
    attention = sorted(attention, key=lambda module: module.layer_idx)
    return [_rotation(module, found[0]) for module in attention]


def _rotation(module: Any, frequencies: np.ndarray) -> Rotation | None:
    """Which coordinates turn together is asked of the function that the module's file has."""
    function = getattr(sys.modules[type(module).__module__], "rotate_half", None)
    if function is None or not getattr(module, "use_rope", True):
        return None
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    half = len(frequencies)
    unit = torch.zeros(2 * half)
    unit[0] = 1.0  # turns towards its partner
    known: dict[int, Pairs] = {half: "halves", 1: "neighbours"}
    pairs = known.get(int(function(unit).argmax()))
    return None if pairs is None else Rotation(frequencies, pairs)
