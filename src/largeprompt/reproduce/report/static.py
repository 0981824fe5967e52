"""Panels as a matplotlib figure, for papers and for the printed report."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..._extras import require
from .panels import Panel, Series
from .style import COLOURS, MARKERS, style_axes
from .ticks import log_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_FEW = 8  # up to so many points of a line get a marker
_VISIBLE = 1e-3  # relative error from which a line gets a band
_IN_A_ROW = 3
_NO_LAYOUT = {"figure.autolayout": False, "figure.constrained_layout.use": False}
_LINES = {"line": "-", "dashed": "--", "dotted": ":"}


def new_figure(columns: int = 1, rows: int = 1) -> "Figure":
    """An empty figure with room for that many panels, unknown to pyplot."""
    figure = require("matplotlib.figure", extra="report")
    return figure.Figure(figsize=(3.5 * columns, 3.2 * rows), layout="constrained")


def draw(panels: Sequence[Panel]) -> "Figure":
    """Draw panels, at most three in a row, with one legend below them."""
    columns = min(len(panels), _IN_A_ROW)
    rows = math.ceil(len(panels) / _IN_A_ROW)
    figure = new_figure(columns, rows)
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        for series in panel.series:
            _draw_series(axes, panel, series)
        if panel.log_x:
            axes.set_xscale("log")
            _label_log_axis(axes.xaxis)
        if panel.log_y:
            axes.set_yscale("log")
            _label_log_axis(axes.yaxis, panel.floor)
        style_axes(axes, panel.x, panel.y, panel.title)
    _add_legend(figure, 2 * columns)
    return figure


def fix_layout(figure: "Figure") -> None:
    """Compute the layout now, once for all formats the figure is saved in."""
    engine = figure.get_layout_engine()
    if engine is None:
        return
    engine.execute(figure)
    with require("matplotlib", extra="report").rc_context(_NO_LAYOUT):
        figure.set_layout_engine(None)  # "none" would draw the figure twice in each format


def _label_log_axis(axis: "Axis", floor: float | None = None) -> None:
    """Label powers of ten; on less than two decades also 1, 2 and 5 times them.

    The labels are text: typesetting each as a formula would take most of the time of a figure.
    """
    ticker = require("matplotlib.ticker", extra="report")
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(ticker.NullFormatter())
    if high < 100 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    label = log_label(low, high)
    axis.set_major_formatter(
        lambda value, _: "0" if floor and math.isclose(value, floor) else label(value)
    )


def _add_legend(figure: "Figure", columns: int) -> None:
    """One legend for all panels, below them, where it hides no curve."""
    named = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    if named:
        figure.legend(
            named.values(),
            named.keys(),
            loc="outside lower center",
            ncols=columns,
            fontsize=7.5,
            frameon=False,
        )


def _draw_series(axes: "Axes", panel: Panel, series: Series) -> None:
    kept = panel.shown(series)
    colour = COLOURS[series.colour % len(COLOURS)]
    name = series.name if series.in_legend else "_"
    x, y = series.x[kept], panel.heights(series.y[kept])
    bars = None if series.error is None else 2 * series.error[kept]
    if series.style == "points":
        marker = MARKERS[series.colour % len(MARKERS)]
        axes.errorbar(x, y, bars, fmt=marker, color=colour, ms=3.5, capsize=2, lw=1, label=name)
        return
    width = 0.8 if _is_one_of_many(panel, series) else 1.5
    marker = "o" if len(x) <= _FEW else ""
    style = _LINES[series.style]
    axes.plot(x, y, style, color=colour, lw=width, label=name, marker=marker, ms=3)
    if bars is not None and np.any(bars > 2 * _VISIBLE * np.abs(y)):
        low = np.maximum(y - bars, _VISIBLE * y) if panel.log_y else y - bars
        axes.fill_between(x, low, y + bars, color=colour, alpha=0.2, lw=0)


def _is_one_of_many(panel: Panel, series: Series) -> bool:
    return sum(other.name == series.name for other in panel.series) > 3
