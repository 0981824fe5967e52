"""The report: one HTML file without external resources, made from stored records alone."""

import base64
import json
from pathlib import Path
from typing import Any

import xarray as xr

from ..._extras import require
from ..._files import atomic_write
from .. import studies
from ..folder import Stored
from ..record import from_dataset
from . import interactive, static
from .study_panels import panels_of
from .style import as_svg, save_figure

_VERSIONS = ("code_version", "python", "jax", "numpy", "backend")
_ABOUT_PAPER = (
    "We could not access the captions and numbers of the figures of Section 6, the new Theorem 5.1 "
    "of the second version, and the published statements of Assumptions 3.3 and 4.2. A section "
    "that depends on one of them says so."
)


def write_report(folder: Path, stored: Stored) -> Path:
    """Write figures as PDF and PNG, then the page; returns the path of the page."""
    (folder / "figures").mkdir(exist_ok=True)
    records = stored.records
    sections = [_section(folder, name, record) for name, record in records.items()]
    jinja2 = require("jinja2", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("largeprompt.reproduce.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    text = environment.get_template("page.html").render(
        sections=sections,
        lost=[_lost(name, why) for name, why in stored.lost.items()],
        left_out=[
            study for name, study in studies.STUDIES.items() if name not in stored.manifest.studies
        ],
        scale=stored.manifest.scale,
        seed=stored.manifest.seed,
        minutes=sum(float(r.attrs["seconds"]) for r in records.values()) / 60,
        about_paper=_ABOUT_PAPER,
        shown=_shown,
        plotly=_markup(interactive.library()),
    )
    target = folder / "index.html"
    with atomic_write(target) as name:
        Path(name).write_text(text, encoding="utf-8")
    return target


def _lost(name: str, why: str) -> dict[str, str]:
    """Entry of a study that was asked for and has no result."""
    study = studies.STUDIES.get(name)
    source, title = (study.source, study.title) if study else ("", "")
    return {"name": name, "source": source, "title": title, "why": why}


def _section(folder: Path, name: str, record: xr.Dataset) -> dict[str, Any]:
    """Entry of a study with a result; writes its figure files."""
    findings, study = from_dataset(record), studies.STUDIES[name]
    panels = panels_of(name, findings.data)
    figure = None
    if panels:
        drawn = static.draw(panels)
        static.fix_layout(drawn)
        for suffix in ("pdf", "png"):
            save_figure(drawn, folder / "figures" / f"{name}.{suffix}")
        picture = base64.b64encode(as_svg(drawn).encode()).decode()
        figure = {"svg": picture, "plots": [_markup(interactive.plot(panel)) for panel in panels]}
    attrs = record.attrs
    return {
        "study": study,
        "anchor": name.replace(".", "-"),
        "formula": _markup(_mathml(study.formula)),
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
    """A value of a configuration in a few characters; long lists by their first and last value."""
    if isinstance(value, list) and len(value) > 12:
        return f"{len(value)} values, {value[0]:.6g} to {value[-1]:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _markup(text: str) -> Any:
    """Text that the template must not escape: HTML or JSON made by this package."""
    return require("markupsafe", extra="report").Markup(text)


def _mathml(tex: str) -> str:
    return require("latex2mathml.converter", extra="report").convert(tex, display="block")
