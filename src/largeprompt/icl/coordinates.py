"""Coordinates of flat parameters in which the solver of a gradient flow works (NumPy)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Flat = Float[np.ndarray, " n"]


class Coordinates(NamedTuple):
    """Other coordinates of flattened parameters, for the solver of a gradient flow."""

    to: Callable[[Flat], Flat]
    back: Callable[[Flat], Flat]
    push: Callable[[Flat, Flat], Flat]  # (point, its change) -> change of the coordinates


def _multiplied(y: Flat) -> Flat:
    """(A, b) -> (bA, b)."""
    return np.append(y[:-1] * y[-1], y[-1])


def _divided(x: Flat) -> Flat:
    """(N, b) -> (N/b, b)."""
    return np.append(x[:-1] / x[-1], x[-1])


def _pushed(y: Flat, dy: Flat) -> Flat:
    """The change of (bA, b) that goes with a change of (A, b)."""
    return np.append(y[-1] * dy[:-1] + y[:-1] * dy[-1], dy[-1])


PRODUCT = Coordinates(_multiplied, _divided, _pushed)
