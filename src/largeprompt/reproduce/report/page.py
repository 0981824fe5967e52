"""The report: one HTML file without external resources, made from stored records alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..._extras import require
from ..._files import atomic_write
from .. import studies
from ..derived_files import DerivedFiles
from ..folder import Stored, data_name
from ..record import from_dataset
from ..studies import Check, Findings
from . import inline_svg
from .figure_files import figure_names, update_figure
from .formulas import typeset
from .labels import mathml
from .panels import Panel
from .study_panels import caption_of, panels_of

_VERSIONS = ("code_version", "python", "jax", "numpy", "backend")
_LEADS = ("proposition-3.1", "section-6", "finite-length-risk")  # candidates for the first figure
_ABOUT_PAPER = (
    "We could not access the captions and numbers of the figures of Section 6, the new Theorem 5.1 "
    "of the second version, and the published statements of Assumptions 3.3 and 4.2. A section "
    "that depends on one of them says so."
)


def write_report(folder: Path, stored: Stored) -> Path:
    """Write the figures that have changed, then the page; returns the path of the page."""
    found = {name: from_dataset(record) for name, record in stored.records.items()}
    panels = {name: panels_of(name, findings.data) for name, findings in found.items()}
    drawn = [name for name, shown in panels.items() if shown]
    for name in drawn:
        update_figure(folder, name, panels[name])
    current = [file for name in drawn for file in figure_names(name)]
    DerivedFiles(folder).remove_others([*current, *map(data_name, found)])
    text = (
        _environment()
        .get_template("page.html")
        .render(
            lead=_lead(panels),
            kept=sum(findings.as_expected for findings in found.values()),
            checks=[check for findings in found.values() for check in findings.checks],
            groups=_groups(
                [
                    _section(name, record, found[name], panels[name])
                    for name, record in stored.records.items()
                ]
            ),
            count=len(found) + len(stored.lost),
            complete=not stored.lost and set(found) >= set(studies.STUDIES),
            lost=[_lost(name, why) for name, why in stored.lost.items()],
            left_out=[
                study
                for name, study in studies.STUDIES.items()
                if name not in stored.manifest.studies
            ],
            optional=[
                {"study": study, "fetching": studies.fetching(study)}
                for name, study in studies.OPTIONAL_STUDIES.items()
                if name not in stored.manifest.studies
            ],
            scale=stored.manifest.scale,
            seed=stored.manifest.seed,
            minutes=sum(float(r.attrs["seconds"]) for r in stored.records.values()) / 60,
            about_paper=_ABOUT_PAPER,
        )
    )
    target = folder / "index.html"
    with atomic_write(target) as name:
        Path(name).write_text(text, encoding="utf-8")
    return target


def draw_figure(folder: Path, record: xr.Dataset) -> None:
    """Draw the figure of one study, if it has one and it has changed."""
    name = record.attrs["study"]
    panels = panels_of(name, from_dataset(record).data)
    if panels:
        update_figure(folder, name, panels)


def _environment() -> Any:
    jinja2 = require("jinja2", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("largeprompt.reproduce.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = lambda text: _markup(typeset(text))
    environment.filters["shown"] = _shown
    return environment


def _lead(panels: Mapping[str, Sequence[Panel]]) -> dict[str, Any] | None:
    """The figure at the top: the first panel of one study."""
    names = [name for name in (*_LEADS, *panels) if panels.get(name)]
    if not names:
        return None
    figure = _figure(names[0], panels[names[0]][:1])
    return {"name": names[0], "study": studies.find_study(names[0]), "figure": figure}


def _groups(sections: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Sections by where their statements come from; groups without sections are left out."""
    groups = [
        ("Statements of the paper", [s for s in sections if s["study"].of_paper]),
        ("Statements of this project", [s for s in sections if not s["study"].of_paper]),
    ]
    return [group for group in groups if group[1]]


def _lost(name: str, why: str) -> dict[str, str]:
    """Entry of a study that was asked for and has no result."""
    study = studies.every_study().get(name)
    source, title = (study.source, study.title) if study else ("", "")
    return {"name": name, "source": source, "title": title, "why": why}


def _section(
    name: str, record: xr.Dataset, findings: Findings, panels: Sequence[Panel]
) -> dict[str, Any]:
    """Entry of a study with a result."""
    study, attrs = studies.find_study(name), record.attrs
    return {
        "study": study,
        "anchor": anchor(name),
        "formula": _markup(mathml(study.formula, "block")),
        "findings": findings,
        "broken": [check for check in findings.checks if not check.holds],
        "parts": _by_part(findings.checks),
        "figure": _figure(name, panels) if panels else None,
        "configuration": json.loads(attrs["configuration"]),
        "versions": {key: attrs[key] for key in _VERSIONS},
        "key": attrs["key"],
        "seconds": float(attrs["seconds"]),
        "compile_seconds": attrs.get("compile_seconds"),
        "data": data_name(name),
    }


def anchor(name: str) -> str:
    """Name of a study as an identifier of HTML."""
    return name.replace(".", "-")


def _by_part(checks: Sequence[Check]) -> list[tuple[str, list[Check]]]:
    """Checks of the statement itself, then those of the numbers behind it."""
    parts = [
        ("the statement", [c for c in checks if c.part in ("claim", "boundary")]),
        ("controls, outside the hypotheses", [c for c in checks if c.part == "control"]),
        ("accuracy of the numbers", [c for c in checks if c.part == "accuracy"]),
    ]
    return [part for part in parts if part[1]]


def _figure(name: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """Panels with their legends: one for all of them if it is the same."""
    legends = [inline_svg.legend([panel]) for panel in panels]
    shared = len(panels) > 1 and all(entries == legends[0] for entries in legends)
    drawn = [inline_svg.draw(panel) for panel in panels]
    entries = [[] if shared else _safe_entries(one) for one in legends]
    return {
        "panels": [
            {**{key: _markup(text) for key, text in panel._asdict().items()}, "legend": one}
            for panel, one in zip(drawn, entries, strict=True)
        ],
        "legend": _safe_entries(legends[0]) if shared else [],
        "caption": caption_of(name),
        "bars": any(series.error is not None for panel in panels for series in panel.series),
        "zero": any(
            np.any(series.y[panel.shown(series)] < panel.floor)
            for panel in panels
            if panel.floor
            for series in panel.series
        ),
    }


def _safe_entries(entries: Sequence[inline_svg.Entry]) -> list[dict[str, Any]]:
    return [{key: _markup(text) for key, text in entry._asdict().items()} for entry in entries]


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
