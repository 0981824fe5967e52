"""What a figure shows, independent of the library that draws it: panels of series.

`report/static.py` draws panels with matplotlib, `report/inline_svg.py` for the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

LENGTH = "prompt length $L$"
# Okabe & Ito, ordered by contrast on white; readers with colour blindness can tell them apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLACK = 6  # for bounds, limits and other references
NO_DIFFERENCE = 1e-17  # where numbers that agree to the last bit are drawn on a log axis
Style = Literal["line", "dashed", "dotted", "points"]


@dataclass(frozen=True)
class Series:
    """One curve.

    **Arguments:**

    - `name`: text of the legend; curves of one name share an entry.
    - `x`, `y`: one value a point.
    - `colour`: a number; curves with the same number have the same colour.
    - `style`: "line", "dashed", "dotted", or "points".
    - `error`: standard errors. Points get bars of two, lines a band of two.
    - `in_legend`: False leaves the curve out of the legend.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: int
    style: Style = "line"
    error: np.ndarray | None = None
    in_legend: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Labels may hold TeX between dollar signs.

    `floor` is the place of zero on a logarithmic y axis: what is smaller is drawn there.
    """

    series: Sequence[Series]
    x: str
    y: str
    log_x: bool = True
    log_y: bool = True
    title: str = ""
    floor: float | None = None

    def shown(self, series: Series) -> np.ndarray:
        """Mask of the points that these axes can show: finite, and positive on a log axis."""
        kept = np.isfinite(series.x) & np.isfinite(series.y)
        if self.log_x:
            kept &= series.x > 0
        if self.log_y:
            kept &= series.y >= 0 if self.floor else series.y > 0
        return kept

    def heights(self, y: np.ndarray) -> np.ndarray:
        """Where values are drawn: at the floor if they are below it."""
        return np.maximum(y, self.floor) if self.log_y and self.floor else y


def length_label(L: float) -> str:
    """A prompt length as the name of a curve."""
    if not np.isfinite(L):
        return r"$L=\infty$"
    power = np.log10(L)
    return f"$L=10^{{{power:.0f}}}$" if power == round(power) and power > 2 else f"$L={L:g}$"


def default_panels(data: xr.Dataset) -> list[Panel]:
    """Every variable over "length" as a curve; none if there is no such variable.

    A further dimension gives one curve for each of its values. A variable `x_error` becomes the
    error bars of `x`.
    """
    names = [
        name
        for name, values in data.data_vars.items()
        if "length" in values.dims and values.ndim <= 2 and not str(name).endswith("_error")
    ]
    series: list[Series] = []
    for name in map(str, names):
        rows = data[name].transpose(..., "length")
        bars = data.get(f"{name}_error")
        bars = None if bars is None else bars.transpose(..., "length")
        others = [str(dim) for dim in rows.dims if dim != "length"]
        values = rows[others[0]].values if others else [None]
        for i, value in enumerate(values):
            words = name.replace("_", " ")
            series.append(
                Series(
                    words if value is None else f"{words}, {others[0]} = {value}",
                    data["length"].values,
                    rows.values[i] if others else rows.values,
                    len(series),
                    "line" if bars is None else "points",
                    None if bars is None else (bars.values[i] if others else bars.values),
                )
            )
    if not series:
        return []
    positive = all(np.all(s.y[np.isfinite(s.y)] >= 0) for s in series)
    return [Panel(series, LENGTH, "value", log_y=positive)]
