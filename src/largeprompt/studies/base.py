"""What a study returns: statements, each with the number computed, the criterion stated beforehand, and the verdict."""

import math
from typing import NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

_DRAW = 2**15


class Check(NamedTuple):
    """One statement and what was found. `holds` is computed from `value` and the bounds, never set by hand."""

    statement: str
    value: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether low <= value <= high; a value that is not finite never holds."""
        return math.isfinite(self.value) and self.low <= self.value <= self.high

    @property
    def criterion(self) -> str:
        """The bounds in words."""
        if self.low == -math.inf:
            return f"at most {self.high:.3g}"
        if self.high == math.inf:
            return f"at least {self.low:.3g}"
        return f"between {self.low:.3g} and {self.high:.3g}"


def at_most(statement: str, value: SupportsFloat, high: float) -> Check:
    """A statement that an error is small."""
    return Check(statement, float(value), -math.inf, high)


def at_least(statement: str, value: SupportsFloat, low: float) -> Check:
    """A statement that an effect is there."""
    return Check(statement, float(value), low, math.inf)


def between(statement: str, value: SupportsFloat, low: float, high: float) -> Check:
    """A statement that a number lies in a band, such as a fitted slope."""
    return Check(statement, float(value), low, high)


def normals(key: Key[Array, ""], *shapes: tuple[int, ...]) -> list[Float[Array, "..."]]:
    """Independent standard normal arrays, cut from one draw of fixed length: its code is compiled once for all shapes."""
    draw = np.asarray(jax.random.normal(key, (_DRAW,)))
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    if ends[-1] > _DRAW:
        raise ValueError(f"at most {_DRAW} numbers can be drawn at once; received shapes {shapes}")
    pieces = np.split(draw[: ends[-1]], ends[:-1])
    return [jnp.asarray(piece.reshape(shape)) for piece, shape in zip(pieces, shapes, strict=True)]
