"""The page: one HTML file without external resources, made from stored results alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import xarray as xr
from markupsafe import Markup

from .. import table
from ..catalogue import catalogue, load
from ..folder import Stored, atomic, data_name
from ..panels import Panel
from ..study import Check, Findings, Study
from . import inline_svg, static
from .formulas import typeset
from .labels import mathml

_VERSIONS = ("code", "largeprompt", "python", "jax", "numpy", "backend", "date")
_LEADS = ("proposition-3.1", "section-6", "finite-length-risk")  # candidates for the first figure
_ABOUT_PAPER = (
    "We could not access the captions and numbers of the figures of Section 6, the new Theorem 5.1 "
    "of the second version, and the published statements of Assumptions 3.3 and 4.2. A section "
    "that depends on one of them says so."
)
Found = Mapping[str, tuple[Study, Findings]]


def write(folder: Path, stored: Stored, found: Found, redraw: bool = False) -> Path:
    """Write the page, and the figures that are missing, or all of them."""
    panels = {name: study.panels(findings.data) for name, (study, findings) in found.items()}
    for name, shown in panels.items():
        files = [folder / file for file in static.figure_names(name)]
        if shown and (redraw or not all(file.is_file() for file in files)):
            static.save(folder, name, shown)
    for name in stored.lost:  # figures of earlier results
        for file in static.figure_names(name) if name in stored.files else ():
            (folder / file).unlink(missing_ok=True)
    others = [load(file) for name, file in catalogue().items() if name not in found]
    others = [study for study in others if study.name not in stored.lost]
    text = (
        _environment()
        .get_template("page.html")
        .render(
            answer=table.conclusion(found, stored.lost),
            lead=_lead(found, panels),
            groups=_groups(
                [
                    _section(record, *found[name], panels[name])
                    for name, record in stored.records.items()
                ]
            ),
            lost=[_lost(name, why, stored) for name, why in stored.lost.items()],
            left_out=[study for study in others if not study.weights],
            optional=[study for study in others if study.weights],
            scale=stored.of("scale"),
            seed=stored.of("seed"),
            minutes=sum(float(r.attrs["seconds"]) for r in stored.records.values()) / 60,
            about_paper=_ABOUT_PAPER,
        )
    )
    target = folder / "index.html"
    with atomic(target) as name:
        Path(name).write_text(text, encoding="utf-8")
    return target


def draw_figure(folder: Path, study: Study, findings: Findings) -> None:
    """Draw the figure of one study, if it has one."""
    panels = study.panels(findings.data)
    if panels:
        static.save(folder, study.name, panels)


def command(study: Study, full: bool = False) -> str:
    """The command that makes one study."""
    file = catalogue().get(study.name)
    name = study.name if file is not None and load(file) is study else "FILE"
    return f"python -m reproduction --study {name}{' --full' if full else ''}"


def fetching(study: Study) -> str:
    """The command that fetches what a study needs."""
    return f"largeprompt models fetch {' '.join(study.weights)}"


def _environment() -> Any:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = lambda text: Markup(typeset(text))
    environment.filters["shown"] = _shown
    environment.filters["fetching"] = fetching
    environment.filters["command"] = command
    environment.filters["anchor"] = anchor
    return environment


def _lead(found: Found, panels: Mapping[str, Sequence[Panel]]) -> dict[str, Any] | None:
    """The figure at the top: the first panel of one study."""
    names = [name for name in (*_LEADS, *panels) if panels.get(name)]
    if not names:
        return None
    study = found[names[0]][0]
    return {"study": study, "figure": _figure(study, panels[study.name][:1])}


def _groups(sections: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Sections by where their statements come from; groups without sections are left out."""
    groups = [
        ("Statements of the paper", [s for s in sections if s["study"].of_paper]),
        ("Statements of this project", [s for s in sections if not s["study"].of_paper]),
    ]
    return [group for group in groups if group[1]]


def _lost(name: str, why: str, stored: Stored) -> dict[str, str]:
    """Entry of a study that was asked for and has no result."""
    study = load(stored.files[name]) if name in stored.files else None
    source, title = (study.source, study.title) if study else ("", "")
    return {"name": name, "source": source, "title": title, "why": why}


def _section(
    record: xr.Dataset, study: Study, findings: Findings, panels: Sequence[Panel]
) -> dict[str, Any]:
    """Entry of a study with a result."""
    attrs = record.attrs
    return {
        "study": study,
        "formula": Markup(mathml(study.formula, "block")),
        "findings": findings,
        "broken": [check for check in findings.checks if not check.holds],
        "parts": _by_part(findings.checks),
        "figure": _figure(study, panels) if panels else None,
        "configuration": json.loads(attrs["configuration"]),
        "versions": {key: attrs[key] for key in _VERSIONS},
        "key": attrs["key"],
        "seconds": float(attrs["seconds"]),
        "data": data_name(study.name),
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


def _figure(study: Study, panels: Sequence[Panel]) -> dict[str, Any]:
    """Panels with their legends: one for all of them if it is the same."""
    legends = [inline_svg.legend([panel]) for panel in panels]
    shared = len(panels) > 1 and all(entries == legends[0] for entries in legends)
    drawn = [inline_svg.draw(panel) for panel in panels]
    entries = [[] if shared else _safe_entries(one) for one in legends]
    return {
        "panels": [
            {**{key: Markup(text) for key, text in panel._asdict().items()}, "legend": one}
            for panel, one in zip(drawn, entries, strict=True)
        ],
        "legend": _safe_entries(legends[0]) if shared else [],
        "caption": study.caption,
        "bars": any(series.error is not None for panel in panels for series in panel.series),
        "zero": any(
            np.any(series.y[panel.shown(series)] < panel.floor)
            for panel in panels
            if panel.floor
            for series in panel.series
        ),
    }


def _safe_entries(entries: Sequence[inline_svg.Entry]) -> list[dict[str, Any]]:
    return [{key: Markup(text) for key, text in entry._asdict().items()} for entry in entries]


def _shown(value: Any) -> str:
    """A value of a configuration in a few characters; long lists by their first and last value."""
    if isinstance(value, list) and len(value) > 12:
        return f"{len(value)} values, {value[0]:.6g} to {value[-1]:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
