"""Random arrays for studies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

_DRAW = 2**15


def normals(key: Key[Array, ""], *shapes: tuple[int, ...]) -> list[Float[Array, "..."]]:
    """Independent standard normal arrays, cut from one draw of fixed size.

    JAX compiles that draw once for all shapes.
    """
    draw = np.asarray(jax.random.normal(key, (_DRAW,)))
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    if ends[-1] > _DRAW:
        raise ValueError(f"at most {_DRAW} numbers can be drawn at once; received shapes {shapes}")
    pieces = np.split(draw[: ends[-1]], ends[:-1])
    return [jnp.asarray(piece.reshape(shape)) for piece, shape in zip(pieces, shapes, strict=True)]
