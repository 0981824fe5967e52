"""Figures as PDF and PNG, drawn again only if what they show, or the code that draws, has changed.

A missing or altered file is drawn again too.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from ..._extras import require
from ..derived_files import DerivedFiles
from . import static
from .panels import Panel
from .style import save_figure

_DRAWING_CODE = ("panels.py", "static.py", "style.py", "ticks.py")


def figure_names(study: str) -> list[str]:
    """Files of the figure of a study, in the folder of a reproduction."""
    return [f"figures/{study}.{suffix}" for suffix in ("pdf", "png")]


def update_figure(folder: Path, study: str, panels: Sequence[Panel]) -> bool:
    """Draw the figure of a study unless its files show these panels already; returns if drawn."""
    shows, names, files = fingerprint(panels), figure_names(study), DerivedFiles(folder)
    if files.up_to_date(shows, names):
        return False
    (folder / "figures").mkdir(exist_ok=True)
    figure = static.draw(panels)
    static.fix_layout(figure)
    for name in names:
        save_figure(figure, folder / name)
    files.made(shows, names)
    return True


def fingerprint(panels: Sequence[Panel]) -> str:
    """Hash of everything that a figure depends on."""
    found = hashlib.sha256(_drawing_version().encode())
    for panel in panels:
        texts = (panel.x, panel.y, panel.log_x, panel.log_y, panel.title, panel.floor)
        found.update(f"\npanel {texts!r}".encode())
        for series in panel.series:
            found.update(
                f"\n{series.name!r} {series.colour} {series.style} {series.in_legend}".encode()
            )
            for values in (series.x, series.y, series.error):
                found.update(b"\n-" if values is None else _bytes(values))
    return found.hexdigest()


def _bytes(values: np.ndarray) -> bytes:
    numbers = np.ascontiguousarray(values, np.float64)
    return f"\n{numbers.shape} ".encode() + numbers.tobytes()


@cache
def _drawing_version() -> str:
    """Version of the code that draws and of matplotlib."""
    sources = b"".join((Path(__file__).parent / file).read_bytes() for file in _DRAWING_CODE)
    version = require("matplotlib", extra="report").__version__
    return f"{version} {hashlib.sha256(sources).hexdigest()}"
