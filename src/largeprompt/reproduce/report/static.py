"""Panels as a `matplotlib` figure: for papers, and for the printed page."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from .panels import Panel, Series
from .style import COLOURS, MARKERS, label

_FEW = 8  # points so few that they are shown
_IN_A_ROW = 3
_LINES = {"line": "-", "dashed": "--", "dotted": ":"}


def draw(panels: Sequence[Panel]) -> Figure:
    """One column wide for one panel, the width of the page for two; at most three in a row."""
    columns = min(len(panels), _IN_A_ROW)
    rows = math.ceil(len(panels) / _IN_A_ROW)
    figure = Figure(figsize=(3.5 * columns, 3.2 * rows), layout="constrained")
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.tick_params(which="both", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        for series in panel.series:
            _draw(axes, panel, series)
        if panel.log_x:
            axes.set_xscale("log")
            _label_logarithms(axes.xaxis)
        if panel.log_y:
            axes.set_yscale("log")
            _label_logarithms(axes.yaxis)
        label(axes, panel.x, panel.y, panel.title)
    _legend(figure, 2 * columns)
    # laid out once for all the formats it is saved in
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _label_logarithms(axis: Axis) -> None:
    """Powers of ten; on less than two decades 1, 2 and 5 times them as well, as plain numbers. Labels of other ticks would collide."""
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(NullFormatter())
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _legend(figure: Figure, columns: int) -> None:
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


def _draw(axes: Axes, panel: Panel, series: Series) -> None:
    kept = panel.shown(series)
    colour = COLOURS[series.colour % len(COLOURS)]
    name = series.name if series.in_legend else "_"
    x, y = series.x[kept], series.y[kept]
    if series.style != "points":
        width = 0.8 if _is_one_of_many(panel, series) else 1.5
        marker = "o" if len(x) <= _FEW else ""
        style = _LINES[series.style]
        axes.plot(x, y, style, color=colour, lw=width, label=name, marker=marker, ms=3)
        return
    bars = None if series.error is None else 2 * series.error[kept]
    marker = MARKERS[series.colour % len(MARKERS)]
    axes.errorbar(x, y, bars, fmt=marker, color=colour, ms=3.5, capsize=2, lw=1, label=name)


def _is_one_of_many(panel: Panel, series: Series) -> bool:
    return sum(other.name == series.name for other in panel.series) > 3
