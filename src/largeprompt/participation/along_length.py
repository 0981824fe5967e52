"""Participation and gradient moments with their derivatives in L, for local slopes of curves."""

from typing import NamedTuple

import numpy as np

from .._typing import ArrayInput
from ._domain import checked
from ._elementwise import Kernel, evaluate_with_slope
from .gradient_moments import gradient_moments_kernel
from .weight_moments import participation_kernel


class Along(NamedTuple):
    """Quantities on the first axis, their derivatives in L, and estimates of relative error."""

    value: np.ndarray
    slope: np.ndarray
    error: np.ndarray

    def combine(self, table: ArrayInput) -> "Along":
        """Linear combinations, one for each row of `table`."""
        table = np.asarray(table, np.float64)
        return Along(
            np.tensordot(table, self.value, axes=1),
            np.tensordot(table, self.slope, axes=1),
            self.error,
        )


def participation_along(sigma: ArrayInput, L: ArrayInput) -> Along:
    """(P_2, P_3, P_22) and their derivatives in L at known numbers; both vanish at L = infinity."""
    return _along("participation_along", participation_kernel, 3, sigma, L)


def gradient_moments_along(sigma: ArrayInput, L: ArrayInput) -> Along:
    """The six moments of `gradient_moments`, in its order, and their derivatives in L."""
    return _along("gradient_moments_along", gradient_moments_kernel, 6, sigma, L)


def _along(name: str, kernel: Kernel, count: int, sigma: ArrayInput, L: ArrayInput) -> Along:
    """The first `count` results of a kernel; the next one is the error."""
    sigma, L = checked(name, sigma, L)
    both = evaluate_with_slope(kernel, 1, np.square(sigma), L)
    half = len(both) // 2
    finite = np.isfinite(np.asarray(L, np.float64))
    slope = np.where(finite, np.stack(both[half : half + count]), 0.0)
    return Along(np.stack(both[:count]), slope, both[count])
