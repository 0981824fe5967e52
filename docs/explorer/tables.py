"""Numbers that the page of the explorer interpolates: running this file writes them again.

The page evaluates the participation integral itself for one score deviation. Three things come
from tables, each made by the library:

- `weights`: ln P_2 and ln E_1 at fixed score variances S_j, as Chebyshev series in ln L on panels,
  where E_1 = (P_2 + S (P_2 - 6 P_3 + 6 P_22)) / (1 + S). The nodes S_j = exp(x_j - exp(-x_j - c)),
  x_j equidistant, make averages over S = kappa chi^2_d a trapezoidal sum, for every kappa and d.
- `pair`: for heads (a, b) and (-a, -b) the functions of `pair_functions` that their risk needs,
  each divided by its value at S = 0, as Chebyshev series in ln(1 + S) and ln L.
- `ridge`: ln E sum_i 1 / (1 + l_i / (d tau^2)) over eigenvalues l_i of Wishart matrices, for every
  dimension: at whole L up to `SHORT`, then as a Chebyshev series in ln(L - d), on whose scale the
  singularities near L = d are far away; a series in ln tau^2.

Every array is stored as base64 of little-endian float64.
"""

import base64
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import roots_genlaguerre

from largeprompt.icl.wishart import wishart_spectrum
from largeprompt.participation import moment_functions
from largeprompt.participation.pair_table import pair_functions

FILE = Path(__file__).with_name("tables.json")

STEP, SHIFT, FIRST, LAST = 0.125, 8.5, -12.25, 10.0  # of x_j
LONGEST, PANELS, DEGREE = 1e15, 6, 17  # of `weights`
PAIR_LONGEST, PAIR_DEVIATION = 1000.0, 8.0
PAIR_PANELS, PAIR_DEGREE, PAIR_LENGTH_DEGREE = 2, 31, 11
RADII = 20  # points of the rule for |x_q|^2 of pairs
DIMENSIONS, SHORT, RIDGE_LONGEST, RIDGE_DEGREE = 32, 48, 1e6, 31
NOISE, NOISE_DEGREE = (0.01, 2.0), 15


def build() -> dict[str, Any]:
    """All tables, arrays by name, and the constants that say what they mean."""
    variance, step = variance_nodes()
    radii, radial = _radial_rules()
    return {
        "variance": variance,
        "step": step,
        "weights": _weights(variance),
        "weights_end": math.log(LONGEST),
        "pair": _pair(),
        "pair_start": math.log(2.0),
        "pair_end": math.log(PAIR_LONGEST),
        "pair_top": math.log1p(PAIR_DEVIATION**2),
        "radii": radii,
        "radial": radial,
        "ridge_short": np.stack([_ridge(d, range(1, SHORT + 1)) for d in _dimensions()]),
        "ridge": _ridge_series(),
        "ridge_end": RIDGE_LONGEST,
        "noise": list(NOISE),
    }


def variance_nodes() -> tuple[np.ndarray, np.ndarray]:
    """S_j, and the steps of the trapezoidal rule in ln S there."""
    x = np.arange(FIRST, LAST + STEP / 2, STEP)
    tail = np.exp(-(x + SHIFT))
    return np.exp(x - tail), STEP * (1 + tail)


def _series(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Chebyshev points, and the matrix from values there to coefficients."""
    points = chebyshev.chebpts1(degree + 1)
    return points, np.linalg.inv(chebyshev.chebvander(points, degree))


def _on_panels(low: float, high: float, panels: int, points: np.ndarray) -> np.ndarray:
    return low + (high - low) / panels * (np.arange(panels)[:, None] + (points + 1) / 2)


def _weights(S: np.ndarray) -> np.ndarray:
    """Coefficients (panel, power, function, node)."""
    points, modes = _series(DEGREE)
    values = np.empty((PANELS, DEGREE + 1, 2, len(S)))
    for place, log_L in np.ndenumerate(_on_panels(0.0, math.log(LONGEST), PANELS, points)):
        p2, h = moment_functions(np.sqrt(S), math.exp(log_L))
        values[place] = np.log(p2), np.log((p2 + S * (2 * p2 - h)) / (1 + S))
    return np.einsum("mk,pkfs->pmfs", modes, values)


def _pair() -> np.ndarray:
    """Coefficients (panel, power of ln L, function, power of ln(1 + S))."""
    points, modes = _series(PAIR_LENGTH_DEGREE)
    r_points, r_modes = _series(PAIR_DEGREE)
    S = np.expm1(math.log1p(PAIR_DEVIATION**2) * (r_points + 1) / 2)
    lengths = np.exp(_on_panels(math.log(2.0), math.log(PAIR_LONGEST), PAIR_PANELS, points))
    values = np.empty((*lengths.shape, 3, len(S)))
    for place, L in np.ndenumerate(lengths):
        values[place] = pair_ratios(S, float(L))
    return np.einsum("mk,rs,pkfs->pmfr", modes, r_modes, values)


def pair_ratios(S: np.ndarray, L: float) -> np.ndarray:
    """L P_2, (P_2 - c) L^2 / (2 (L - 1) S) and -K L / 2: the functions of an opposite pair.

    With c, alpha, beta, delta and both at correlation -1 (`pair_table`), H = P_2 + 6 P_3 - 6 P_22,
    and 2 P_2 - H = alpha + beta + delta + both at correlation 1,
    K = 2 P_2 - H - (alpha + beta - both - delta) - 4 P_2. All three are 1 at S = 0.
    """
    p2, h = moment_functions(np.sqrt(S), L)
    found = np.empty((5, len(S)))
    for i, s in enumerate(S):
        found[:, i] = pair_functions(np.sqrt([s]), np.array([-1.0]), L)[:, 0, 0, 0]
    c, alpha, beta, delta, both = found
    K = 2 * p2 - h - (alpha + beta - both - delta) - 4 * p2
    return np.stack([L * p2, (p2 - c) * L**2 / (2 * (L - 1) * S), -K * L / 2])


def _radial_rules() -> tuple[np.ndarray, np.ndarray]:
    """Gauss rules (dimension, point) for chi^2_d: E f(chi^2_d) = sum_i w_i f(x_i)."""
    rules = [roots_genlaguerre(RADII, d / 2 - 1) for d in _dimensions()]
    return (
        np.stack([2 * x for x, _ in rules]),
        np.stack([w / np.sum(w) for _, w in rules]),
    )


def _dimensions() -> range:
    return range(1, DIMENSIONS + 1)


def _ridge(d: int, lengths: Iterable[float]) -> np.ndarray:
    """Coefficients (length, power of ln tau^2)."""
    points, modes = _series(NOISE_DEGREE)
    low, high = np.log(NOISE)
    noise = np.exp(low + (high - low) * (points + 1) / 2)
    values = []
    for L in lengths:
        eigenvalues, weights = wishart_spectrum(d, L)
        values.append(np.log(1 / (1 + eigenvalues / (d * noise[:, None])) @ weights))
    return np.stack(values) @ modes.T


def _ridge_series() -> np.ndarray:
    """The same as a series in ln(L - d) on [SHORT, RIDGE_LONGEST]: (dimension, power, power)."""
    points, modes = _series(RIDGE_DEGREE)
    found = []
    for d in _dimensions():
        log = _on_panels(math.log(SHORT - d), math.log(RIDGE_LONGEST - d), 1, points)[0]
        found.append(modes @ _ridge(d, map(float, d + np.exp(log))))
    return np.stack(found)


def encoded(tables: dict[str, Any]) -> str:
    """JSON of the tables."""
    return json.dumps(
        {name: _encoded(value) for name, value in tables.items()}, separators=(",", ":")
    )


def _encoded(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    data = base64.b64encode(value.astype("<f8").tobytes()).decode()
    return {"shape": value.shape, "data": data}


if __name__ == "__main__":
    FILE.write_text(encoded(build()) + "\n", encoding="utf-8")
