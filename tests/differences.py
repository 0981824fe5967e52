"""Derivatives against central differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def assert_slopes(
    f: Callable, at: Sequence[Any], slopes: Sequence[Any], step: float = 1e-5, rtol: float = 1e-6
) -> None:
    """Compare the derivatives of `f` in each argument, along a random direction."""
    rng = np.random.default_rng(0)
    for which, slope in enumerate(slopes):
        move = step * rng.normal(size=np.shape(at[which]))
        ahead, behind = (
            f(*(a + sign * move if i == which else a for i, a in enumerate(at))) for sign in (1, -1)
        )
        along = np.sum(slope * move) / step
        np.testing.assert_allclose(along, (ahead - behind) / (2 * step), rtol=rtol)
