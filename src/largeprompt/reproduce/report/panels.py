"""What a figure shows, said once: panels of series. `static.py` prints them, `interactive.py` puts them on the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

Style = Literal["line", "dashed", "dotted", "points"]


@dataclass(frozen=True)
class Series:
    """One curve: "line", "dashed", "dotted", or "points" with bars of two standard errors; equal `colour` numbers share a colour."""

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: int
    style: Style = "line"
    error: np.ndarray | None = None
    in_legend: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Labels may hold TeX between dollars; a log axis shows positive values only."""

    series: Sequence[Series]
    x: str
    y: str
    log_x: bool = True
    log_y: bool = True
    title: str = ""

    def shown(self, series: Series) -> np.ndarray:
        """Which points these axes can show."""
        kept = np.isfinite(series.x) & np.isfinite(series.y)
        if self.log_x:
            kept &= series.x > 0
        if self.log_y:
            kept &= series.y > 0
        return kept


def default_panels(data: xr.Dataset) -> list[Panel]:
    """Every variable over "length" as a curve, one for each value of a further dimension; none without such variables."""
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
    return [Panel(series, "prompt length $L$", "value", log_y=positive)]
