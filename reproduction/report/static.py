"""Panels as a matplotlib figure, for papers: PDF and PNG."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from ..folder import atomic
from ..panels import COLOURS, Panel, Series
from .ticks import log_label

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_FEW = 8  # up to so many points of a line get a marker
_VISIBLE = 1e-3  # relative error from which a line gets a band
_IN_A_ROW = 3
_LINES = {"line": "-", "dashed": "--", "dotted": ":"}


def figure_names(study: str) -> list[str]:
    """Files of the figure of a study, in the folder of a reproduction."""
    return [f"figures/{study}.{suffix}" for suffix in ("pdf", "png")]


def save(folder: Path, study: str, panels: Sequence[Panel]) -> None:
    """Draw the figure of a study. The same panels give the same bytes."""
    (folder / "figures").mkdir(exist_ok=True)
    figure = draw(panels)
    engine = figure.get_layout_engine()
    if engine is not None:  # the layout is computed once for both formats
        engine.execute(figure)
        figure.set_layout_engine("none")
    for name in figure_names(study):
        metadata = {"CreationDate": None} if name.endswith(".pdf") else None
        with atomic(folder / name) as target:
            figure.savefig(target, dpi=200, metadata=metadata)


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw panels, at most three in a row, with one legend below them."""
    columns = min(len(panels), _IN_A_ROW)
    rows = math.ceil(len(panels) / _IN_A_ROW)
    figure = Figure(figsize=(3.5 * columns, 3.2 * rows), layout="constrained")
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
        axes.tick_params(which="both", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(panel.x, fontsize=9)
        axes.set_ylabel(panel.y, fontsize=9)
        axes.set_title(panel.title, fontsize=9)
    _add_legend(figure, 2 * columns)
    return figure


def _label_log_axis(axis: Axis, floor: float | None = None) -> None:
    """Label powers of ten; on less than two decades also 1, 2 and 5 times them.

    The labels are text: typesetting each as a formula would take most of the time of a figure.
    """
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(ticker.NullFormatter())
    if high < 100 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    label = log_label(low, high)
    axis.set_major_formatter(
        lambda value, _: "0" if floor and math.isclose(value, floor) else label(value)
    )


def _add_legend(figure: Figure, columns: int) -> None:
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


def _draw_series(axes: Axes, panel: Panel, series: Series) -> None:
    kept = panel.shown(series)
    colour = COLOURS[series.colour % len(COLOURS)]
    name = series.name if series.in_legend else "_"
    x, y = series.x[kept], panel.heights(series.y[kept])
    bars = None if series.error is None else 2 * series.error[kept]
    if series.style == "points":
        marker = MARKERS[series.colour % len(MARKERS)]
        axes.errorbar(x, y, bars, fmt=marker, color=colour, ms=3.5, capsize=2, lw=1, label=name)
        return
    many = sum(other.name == series.name for other in panel.series) > 3
    marker = "o" if len(x) <= _FEW else ""
    style = _LINES[series.style]
    axes.plot(x, y, style, color=colour, lw=0.8 if many else 1.5, label=name, marker=marker, ms=3)
    if bars is not None and np.any(bars > 2 * _VISIBLE * np.abs(y)):
        low = np.maximum(y - bars, _VISIBLE * y) if panel.log_y else y - bars
        axes.fill_between(x, low, y + bars, color=colour, alpha=0.2, lw=0)
