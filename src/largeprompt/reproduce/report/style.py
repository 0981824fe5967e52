"""Colours, markers and text sizes of all figures, and how figures are saved."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..._files import FIGURES, atomic_write, check_target
from ..._message import error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito, ordered by contrast on white; readers with colour blindness can tell them apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLACK = 6  # for bounds, limits and other references
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def style_axes(axes: "Axes", x: str, y: str, title: str | None = None) -> None:
    """Set labels, title and tick sizes; remove the frame at the top and on the right."""
    axes.tick_params(which="both", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    if title:
        axes.set_title(title, fontsize=9)


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write a figure as pdf, png or svg.

    An existing file is replaced only when the new one is complete. The same data give the same
    bytes, except for svg.
    """
    if not hasattr(figure, "savefig"):
        rule = "figure must be a figure of matplotlib"
        raise error(rule, type(figure).__name__, "pass what plot_curve returned")
    target = Path(path)
    check_target(target, "figure", FIGURES)
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(target.suffix.lower())
    with atomic_write(target) as name:
        figure.savefig(name, dpi=300, metadata=metadata)
    return target
