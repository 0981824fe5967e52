"""The report: one HTML file that needs nothing else, beside the figures as files; made from stored records alone."""

import base64
import json
from pathlib import Path
from typing import Any

import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined
from latex2mathml.converter import convert
from markupsafe import Markup

from ..._files import whole
from ..studies import STUDIES
from ..studies.record import from_dataset
from . import interactive, static
from .folder import Stored
from .study_panels import panels_of
from .style import as_svg, save_figure

_VERSIONS = ("code_version", "python", "jax", "numpy", "backend")
_ABOUT_PAPER = (
    "The captions and numbers of the figures of Section 6, the content of the Theorem 5.1 that the second version of the paper "
    "inserts, and the exact displays of Assumptions 3.3 and 4.2 were not at hand. Where a statement rests on one of them, its "
    "section says so."
)


def write_report(folder: Path, stored: Stored) -> Path:
    """Figures as PDF and PNG, then the page; returns the path of the page."""
    (folder / "figures").mkdir(exist_ok=True)
    records = stored.records
    sections = [_section(folder, name, record) for name, record in records.items()]
    environment = Environment(
        loader=PackageLoader("largeprompt.reproduce.report"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    text = environment.get_template("page.html").render(
        sections=sections,
        lost=[_lost(name, why) for name, why in stored.lost.items()],
        left_out=[study for name, study in STUDIES.items() if name not in stored.manifest.studies],
        scale=stored.manifest.scale,
        seed=stored.manifest.seed,
        minutes=sum(float(r.attrs["seconds"]) for r in records.values()) / 60,
        about_paper=_ABOUT_PAPER,
        shown=_shown,
        plotly=Markup(interactive.library()),  # the library's own script
    )
    target = folder / "index.html"
    with whole(target) as name:
        Path(name).write_text(text, encoding="utf-8")
    return target


def _lost(name: str, why: str) -> dict[str, str]:
    """What the page says of a study that was asked for and has no result."""
    study = STUDIES.get(name)
    source, title = (study.source, study.title) if study else ("", "")
    return {"name": name, "source": source, "title": title, "why": why}


def _section(folder: Path, name: str, record: xr.Dataset) -> dict[str, Any]:
    """Everything the template shows of one study; figure files are written on the way."""
    findings, study = from_dataset(record), STUDIES[name]
    panels = panels_of(name, findings.data)
    figure = None
    if panels:
        drawn = static.draw(panels)
        for suffix in ("pdf", "png"):
            save_figure(drawn, folder / "figures" / f"{name}.{suffix}")
        picture = base64.b64encode(as_svg(drawn).encode()).decode()
        figure = {"svg": picture, "plots": [Markup(interactive.plot(panel)) for panel in panels]}
    attrs = record.attrs
    return {
        "study": study,
        "anchor": name.replace(".", "-"),
        "formula": Markup(convert(study.formula, display="block")),  # our own source
        "findings": findings,
        "figure": figure,
        "configuration": json.loads(attrs["configuration"]),
        "versions": {key: attrs[key] for key in _VERSIONS},
        "key": attrs["key"],
        "seconds": float(attrs["seconds"]),
        "compile_seconds": attrs.get("compile_seconds"),
        "data": f"data/{name}.nc",
    }


def _shown(value: Any) -> str:
    """A value of a configuration in a few characters; long lists by their ends."""
    if isinstance(value, list) and len(value) > 12:
        return f"{len(value)} values, {value[0]:.6g} to {value[-1]:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
