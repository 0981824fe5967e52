"""Gauss points on intervals, for the quadrature rules of laws in few dimensions."""

import numpy as np

POINTS_PER_AXIS = {1: 32, 2: 16, 3: 8}  # at level 0, by dimension
LOG_CUTOFF = 42.0  # densities are cut off where they fall to e^-42 of their peak


def gauss_legendre(low: np.ndarray, high: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [low, high], shape (..., count)."""
    x, w = np.polynomial.legendre.leggauss(count)
    middle, half = (low + high) / 2, (high - low) / 2
    return middle[..., None] + half[..., None] * x, half[..., None] * w
