"""Affine images of points and of covariance matrices, and the origin."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values, matmul
from .._typing import Array


def moved(
    points: Float[Array, "*n d"], A: Float[Array, "k d"], b: Float[Array, " k"]
) -> Float[Array, "*n k"]:
    """A x + b for every point x."""
    return matmul(points, A.T) + b


def sandwich(A: Float[Array, "k d"], cov: Float[Array, "d d"]) -> Float[Array, "k k"]:
    """A cov A', symmetric to the last bit."""
    image = matmul(matmul(A, cov), A.T)
    return (image + image.T) / 2


def zeros(d: Any, dtype: Any) -> Float[Values, " d"]:
    """The origin of R^d, in the memory of one number."""
    return np.broadcast_to(np.zeros((), dtype), (_checks.count("d", d),))
