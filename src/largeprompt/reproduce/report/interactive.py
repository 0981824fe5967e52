"""Panels for the browser, drawn by plotly."""

import json
import re

import numpy as np

from ..._extras import require
from .panels import Panel, Series
from .style import COLOURS

_DASH = {"line": "solid", "dashed": "dash", "dotted": "dot"}
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_LEGEND = {  # below the axes, in two columns
    "orientation": "h",
    "yref": "container",
    "y": 0.0,
    "yanchor": "bottom",
    "entrywidth": 0.49,
    "entrywidthmode": "fraction",
    "font": {"size": 12},
}
_SYMBOLS_OF_TEX = {
    r"\sigma": "σ",
    r"\mu": "μ",
    r"\epsilon": "ε",
    r"\partial": "∂",
    r"\infty": "∞",
    r"\ln": "ln",
    r"\log": "log",
    r"\pm": "±",
    r"\,": " ",
}


def library() -> str:
    """Source of plotly's script, to be embedded once."""
    return require("plotly.offline", extra="report").get_plotlyjs()


def plain(text: str) -> str:
    r"""TeX of a label as HTML, since plotly cannot typeset TeX without a network.

    >>> plain("prompt length $L$"), plain(r"$L=10^{6}$"), plain(r"$x=\sigma^2/\ln L$")
    ('prompt length L', 'L=10<sup>6</sup>', 'x=σ<sup>2</sup>/ln L')
    """
    for name, letter in _SYMBOLS_OF_TEX.items():
        text = text.replace(name, letter)
    text = re.sub(r"\^\{([^}]*)\}|\^(.)", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)
    text = re.sub(r"_\{([^}]*)\}|_(.)", lambda m: f"<sub>{m[1] or m[2]}</sub>", text)
    return text.replace("$", "")


def plot(panel: Panel) -> str:
    """One panel as JSON for the script of the page."""
    plotly = require("plotly.graph_objects", extra="report")
    figure = plotly.Figure([_trace(panel, series) for series in panel.series])
    figure.update_layout(
        template="simple_white",
        margin={"l": 70, "r": 12, "t": 44, "b": 50},
        title={"text": plain(panel.title), "font": {"size": 14}, "x": 0.02},
        legend=_LEGEND,
        hovermode="closest",
        xaxis=_axis(plain(panel.x), panel.log_x),
        yaxis=_axis(plain(panel.y), panel.log_y),
    )
    shown = json.loads(figure.to_json())
    text = json.dumps({"data": shown["data"], "layout": shown["layout"]})
    return text.replace("<", "\\u003c")  # inside <script> a "<" could end the element


def _axis(title: str, log: bool) -> dict:
    return {
        "title": {"text": title, "font": {"size": 13}},
        "tickfont": {"size": 12},
        "type": "log" if log else "linear",
        "exponentformat": "power",
        "showgrid": True,
        "gridcolor": "#eee",
    }


def _trace(panel: Panel, series: Series) -> dict:
    kept = panel.shown(series)
    colour = COLOURS[series.colour % len(COLOURS)]
    points = series.style == "points"
    bars = None
    if series.error is not None:
        bars = {"type": "data", "array": _rounded(2 * series.error[kept]), "thickness": 1}
    return dict(
        type="scatter",
        x=_rounded(series.x[kept]),
        y=_rounded(series.y[kept]),
        name=plain(series.name),
        mode="markers" if points else "lines",
        line=None if points else {"color": colour, "width": 2, "dash": _DASH[series.style]},
        marker={"color": colour, "size": 7, "symbol": _SYMBOLS[series.colour % len(_SYMBOLS)]},
        error_y=bars,
        showlegend=series.in_legend,
        hovertemplate="%{y:.4g} at %{x:.4g}",
    )


def _rounded(values: np.ndarray) -> list[float]:
    """Round to seven digits, which takes a third of the space."""
    return [float(f"{value:.7g}") for value in values]
