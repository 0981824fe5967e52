"""One look for all figures: column width, colours every reader can tell apart, no global state."""

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._files import FIGURES, check_target, whole

# Okabe & Ito, ordered by contrast on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH = 3.35  # inches: one column of a two-column page


def new_figure(width: float = _WIDTH, height: float = 2.6) -> tuple[Figure, Axes]:
    """A figure of its own, known to no global list, so nothing has to be closed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def label(axes: Axes, x: str, y: str, title: str | None = None) -> None:
    """Axis labels and title in the sizes of a paper."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    if title:
        axes.set_title(title, fontsize=9)


def legend(axes: Axes, **options) -> None:
    """A legend without a box."""
    axes.legend(fontsize=7.5, frameon=False, **options)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as pdf, png or svg; an existing file is replaced only when the new one is complete."""
    target = Path(path)
    check_target(target, "figure", FIGURES)
    # no date in the file: the same data give the same bytes
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(target.suffix.lower())
    with whole(target) as name:
        figure.savefig(name, dpi=300, metadata=metadata)
    return target


def as_svg(figure: Figure) -> str:
    """A figure as SVG text; the same data give the same text."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "largeprompt"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
