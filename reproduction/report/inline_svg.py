"""Panels as SVG inside the page, with the numbers that its script needs to answer the pointer.

Colours are classes `c0` to `c6`, so that the page can choose them for a light or dark background.
The picture is complete without the script. `page.js` shows values, hides curves and switches axes
between logarithmic and linear; for that it draws the same shapes in another projection.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from ..panels import COLOURS, Panel, Series
from .alternative_text import describe
from .labels import label_html
from .ticks import Axis, choose_axis

WIDTH, HEIGHT = 400, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 24
_FEW = 8  # up to so many points of a line get a marker
_VISIBLE = 1e-3  # relative error from which a line gets a band
_MANY = 3  # more curves of one name are drawn thin
# around a point at the origin: o s ^ D v P X
_MARKERS = (
    "m-3.2,0a3.2,3.2 0 1 0 6.4,0a3.2,3.2 0 1 0 -6.4,0z",
    "m-2.9,-2.9h5.8v5.8h-5.8z",
    "m0,-3.8l3.6,6.4h-7.2z",
    "m0,-4l4,4l-4,4l-4,-4z",
    "m0,3.8l3.6,-6.4h-7.2z",
    "m-1.2,-3.8h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z",
    "m-3.6,-2l1.6,-1.6l2,2l2,-2l1.6,1.6l-2,2l2,2l-1.6,1.6l-2,-2l-2,2l-1.6,-1.6l2,-2z",
)
_DOT = "m-2,0a2,2 0 1 0 4,0a2,2 0 1 0 -4,0z"


class Entry(NamedTuple):
    """One entry of a legend."""

    name: str
    html: str
    colour: str
    swatch: str


class Drawn(NamedTuple):
    """One panel on the page; `numbers` is JSON for the script."""

    title: str
    x: str
    y: str
    svg: str
    numbers: str
    switches: str


def legend(panels: Sequence[Panel]) -> list[Entry]:
    """Entries of the curves of these panels, one for each name."""
    found: dict[str, Entry] = {}
    for panel in panels:
        for series in panel.series:
            if series.in_legend and series.name and series.name not in found:
                found[series.name] = Entry(
                    series.name, label_html(series.name), _colour(series), _swatch(series)
                )
    return list(found.values())


def draw(panel: Panel) -> Drawn:
    """Draw a panel for the page."""
    shown = [_Shown.of(panel, series) for series in panel.series]
    x_axes = _axes(np.concatenate([s.x for s in shown] or [np.zeros(0)]), panel.log_x)
    y_axes = _axes(
        np.concatenate([s.extent(panel) for s in shown] or [np.zeros(0)]), panel.log_y, panel.floor
    )
    (log_x, x_axis), (log_y, y_axis) = (next(iter(axes.items())) for axes in (x_axes, y_axes))
    place = _Projection(x_axis, log_x == "log", y_axis, log_y == "log", panel.floor)
    names = [entry.name for entry in legend([panel])]
    groups = [
        _group(panel, series, points, place, names)
        for series, points in zip(panel.series, shown, strict=True)
    ]
    numbers = {
        "axes": {"x": _as_lists(x_axes), "y": _as_lists(y_axes)},
        "floor": panel.floor or 0,
        "series": [{"x": _short(s.x), "y": _short(s.y), "e": _short(s.error)} for s in shown],
    }
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(describe(panel))}">'
        f'<g class="axes" aria-hidden="true">{_frame(place)}</g>{"".join(groups)}</svg>'
    )
    switches = "".join(name for name, log in (("x", panel.log_x), ("y", panel.log_y)) if log)
    title, x, y = (label_html(text) for text in (panel.title, panel.x, panel.y))
    return Drawn(title, x, y, svg, _json(numbers), switches)


class _Shown(NamedTuple):
    """The points of a series that its axes can show; `error` is two standard errors or empty."""

    x: np.ndarray
    y: np.ndarray
    error: np.ndarray

    @classmethod
    def of(cls, panel: Panel, series: Series) -> "_Shown":
        kept = panel.shown(series)
        x, y = series.x[kept].astype(float), series.y[kept].astype(float)
        error = np.zeros(len(y)) if series.error is None else 2.0 * series.error[kept]
        visible = 0.0 if series.style == "points" else 2 * _VISIBLE
        return cls(x, y, error if np.any(error > visible * np.abs(y)) else np.zeros(0))

    def extent(self, panel: Panel) -> np.ndarray:
        """Heights that the axis must show; of bars that reach zero on a log axis, the upper end."""
        y = panel.heights(self.y)
        if not self.error.size:
            return y
        low = y - self.error
        if panel.log_y:
            low = np.where(low > 0.1 * y, low, y)
        return np.concatenate([low, y, y + self.error])


class _Projection(NamedTuple):
    """From numbers to places in the picture."""

    x_axis: Axis
    log_x: bool
    y_axis: Axis
    log_y: bool
    floor: float | None

    def across(self, x: np.ndarray) -> np.ndarray:
        """Horizontal place."""
        part = _part(x, self.x_axis, self.log_x)
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def down(self, y: np.ndarray) -> np.ndarray:
        """Vertical place, measured from the top."""
        if self.log_y:
            y = np.maximum(y, self.floor or 10**self.y_axis.low)
        part = np.clip(_part(y, self.y_axis, self.log_y), 0, 1)
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)


def _part(values: np.ndarray, axis: Axis, log: bool) -> np.ndarray:
    return ((np.log10(values) if log else values) - axis.low) / (axis.high - axis.low)


def _axes(values: np.ndarray, log: bool, floor: float | None = None) -> dict[str, Axis]:
    """The axis that is drawn, and for a log axis the linear one it can be switched to."""
    linear = {"linear": choose_axis(values, False)}
    return {"log": choose_axis(values, True, floor), **linear} if log else linear


def _as_lists(axes: dict[str, Axis]) -> dict[str, list]:
    return {
        kind: [round(axis.low, 6), round(axis.high, 6), axis.ticks] for kind, axis in axes.items()
    }


def _values(axis: Axis) -> np.ndarray:
    return np.array([value for value, _ in axis.ticks])


def _frame(place: _Projection) -> str:
    """Grid lines, tick labels and the two axes."""
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    found = []
    for (_, text), x in zip(place.x_axis.ticks, place.across(_values(place.x_axis)), strict=True):
        found.append(
            f'<path d="M{x:.1f} {_TOP}V{bottom}"/><text x="{x:.1f}" y="{bottom + 16}">{text}</text>'
        )
    for (_, text), y in zip(place.y_axis.ticks, place.down(_values(place.y_axis)), strict=True):
        found.append(
            f'<path d="M{_LEFT} {y:.1f}H{right}"/>'
            f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{text}</text>'
        )
    return "".join(found) + f'<path class="frame" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'


def _group(
    panel: Panel, series: Series, points: _Shown, place: _Projection, names: list[str]
) -> str:
    """The shapes of one series, with the entry of the legend that hides it."""
    x, y = place.across(points.x), place.down(points.y)
    shapes = []
    if points.error.size:
        low, high = (place.down(points.y + sign * points.error) for sign in (-1, 1))
        shapes.append(_bars(x, low, high) if series.style == "points" else _band(x, low, high))
    if series.style != "points" and len(x):
        shapes.append(f'<path class="l" d="M{"L".join(_pairs(x, y))}"/>')
    marker = _marker(series, len(x))
    if marker:
        places = "".join(f"M{pair}{marker}" for pair in _pairs(x, y))
        shapes.append(f'<path class="m" data-marker="{marker}" d="{places}"/>')
    thin = sum(other.name == series.name for other in panel.series) > _MANY
    kind = f"{_colour(series)} {series.style}{' thin' if thin else ''}"
    return f'<g class="{kind}" data-entry="{_entry(panel, series, names)}">{"".join(shapes)}</g>'


def _entry(panel: Panel, series: Series, names: list[str]) -> int:
    """Number of the entry that hides a curve; unnamed ones go with the curve of their colour."""
    if series.name in names:
        return names.index(series.name)
    kin = [s.name for s in panel.series if s.in_legend and s.colour == series.colour]
    return names.index(kin[0]) if kin and kin[0] in names else -1


def _bars(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    parts = zip(x, low, high, strict=True)
    path = "".join(f"M{a:.1f} {b:.1f}V{c:.1f}M{a - 3:.1f} {c:.1f}h6" for a, b, c in parts)
    return f'<path class="b" d="{path}"/>'


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    around = [*_pairs(x, high), *reversed(_pairs(x, low))]
    return f'<path class="f" d="M{"L".join(around)}Z"/>'


def _pairs(x: np.ndarray, y: np.ndarray) -> list[str]:
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True)]


def _colour(series: Series) -> str:
    return f"c{series.colour % len(COLOURS)}"


def _marker(series: Series, points: int) -> str:
    if series.style == "points":
        return _MARKERS[series.colour % len(_MARKERS)]
    return _DOT if points <= _FEW else ""


def _swatch(series: Series) -> str:
    """A sample of the line or marker, for the legend."""
    if series.style == "points":
        shape = f'<path class="m" d="M12 6{_marker(series, 0)}"/>'
    else:
        shape = '<path class="l" d="M1 6H23"/>'
    return f'<svg class="{series.style}" viewBox="0 0 24 12" aria-hidden="true">{shape}</svg>'


def _short(values: np.ndarray) -> list[float]:
    """Round to five digits: four are shown."""
    return [float(f"{value:.5g}") for value in values]


def _json(numbers: dict) -> str:
    text = json.dumps(numbers, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")  # inside <script> a "<" could end the element
