"""Figures of errors: curves, limits, growing prompts and regimes.

A `*_panel` function says what is drawn from a dataset. The report uses it with the data of a
study; the public `plot_*` function draws it for a user.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ... import _checks
from ..._extras import require
from ..._message import error
from ...concentration import BoundReport, SlopeFit, proposition_3_1, proposition_3_4
from .panels import LENGTH, Panel, Series
from .static import draw, new_figure
from .style import BLACK, COLOURS, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAMPLED = "Monte Carlo"
ERROR_LABELS = {
    "output": "mean squared error",
    "gradient_U": "mean squared error of $\\partial_U T$",
    "gradient_V": "mean squared error of $\\partial_V T$",
}


def plot_curve(
    curves: xr.Dataset | Sequence[xr.Dataset],
    labels: Sequence[str] | None = None,
    *,
    bound: BoundReport | None = None,
    fit: SlopeFit | None = None,
    title: str | None = None,
) -> "Figure":
    """Plot error against prompt length on log-log axes, for datasets of `concentration_curve`.

    Exact curves are lines, with a band where their numerical error is visible. Sampled ones are
    points with bars of two standard errors. `bound` (of `bound_report`) and `fit` (of `fit_slope`)
    belong to the first curve. Without `labels` a curve is called by its method, several by their
    quantities.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> curve = lp.concentration_curve(head, mu, mu, [2.0, 100.0, 1e6])
    >>> figure = lp.plot_curve(curve, bound=lp.bound_report(curve))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['exact', 'bound of the paper']
    """
    if isinstance(curves, xr.Dataset) or not isinstance(curves, Iterable):
        curves = [curves]
    curves = [_checks.kind("a curve", curve, xr.Dataset) for curve in curves]
    if not curves:
        raise error("plot_curve needs at least one dataset", "none", "pass a curve")
    names = list(labels) if labels is not None else _names(curves)
    if len(names) != len(curves):
        raise error(
            "labels must name every curve",
            f"{len(names)} labels for {len(curves)} curves",
            "pass one label for each",
        )
    series = [
        _error_curve(curve, name, i)
        for i, (curve, name) in enumerate(zip(curves, names, strict=True))
    ]
    lengths = curves[0]["length"].values
    lengths = lengths[np.isfinite(lengths)]
    if bound is not None:
        series.append(_bound_curve(curves[0].attrs["quantity"], bound, lengths))
    if fit is not None:
        text = f"slope {fit.slope:.3f} $\\pm$ {fit.standard_error:.3f}"
        fitted = np.exp(fit.intercept) * lengths**fit.slope
        series.append(Series(text, lengths, fitted, BLACK, "dotted"))
    quantities = {curve.attrs["quantity"] for curve in curves}
    y = ERROR_LABELS[quantities.pop()] if len(quantities) == 1 else "squared error"
    return draw([Panel(series, LENGTH, y, title=title or "")])


def _names(curves: Sequence[xr.Dataset]) -> list[str]:
    if len(curves) == 1:
        return ["sampled" if curves[0].attrs["method"] == _SAMPLED else "exact"]
    return [curve.attrs["quantity"] for curve in curves]


def _error_curve(curve: xr.Dataset, name: str, i: int) -> Series:
    style = "points" if curve.attrs["method"] == _SAMPLED else "line"
    L, value, error = (curve[n].values for n in ("length", "value", "error"))
    return Series(name, L, value, i, style, error)


def _bound_curve(quantity: str, bound: BoundReport, lengths: np.ndarray) -> Series:
    L = np.geomspace(max(lengths.min(), 2.0), lengths.max(), 200)
    if quantity == "output":
        values = proposition_3_1(bound.c1, bound.c2, bound.sigma, L)
    else:
        parameter = "U" if quantity == "gradient_U" else "V"
        values = proposition_3_4(bound.c1, bound.c2, bound.sigma, L, parameter)
    return Series("bound of the paper", L, np.asarray(values), BLACK, "dashed")


def limits_panel(comparison: xr.Dataset, title: str = "") -> Panel:
    """Distance of a prompt to its own limit and to linear attention."""
    L = comparison["length"].values
    series = [
        Series("to its own limit", L, comparison["own_limit"].values, 0),
        Series("to linear attention", L, comparison["linear"].values, 1, "dashed"),
        Series("between the limits", L, comparison["between_limits"].values, BLACK, "dotted"),
    ]
    return Panel(series, LENGTH, "squared distance", title=title)


def plot_limits(comparison: xr.Dataset, title: str | None = None) -> "Figure":
    """Plot the distance of a prompt to its own limit and to linear attention.

    `comparison` is a dataset of `limit_comparison`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, nu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Dirac(jnp.ones(2))
    >>> figure = lp.plot_limits(lp.limit_comparison(head, lp.Rademacher(2), nu, [10.0, 1e6]))
    >>> len(figure.axes[0].lines)
    3
    """
    return draw([limits_panel(comparison, title or "")])


def growing_prompt_panel(path: xr.Dataset, title: str = "") -> Panel:
    """Distance to the limit along growing prompts, with the envelope of the iterated logarithm."""
    L = path["length"].values
    paths = [
        Series("prompts", L, distance, 0, in_legend=i == 0)
        for i, distance in enumerate(path["distance"].values)
    ]
    envelope = Series("iterated logarithm", L, path["envelope"].values, 1, "dashed")
    return Panel([*paths, envelope], LENGTH, "$|T_L-T|$", title=title)


def plot_growing_prompt(path: xr.Dataset, title: str | None = None) -> "Figure":
    """Plot |T_L - T| along growing prompts, with the envelope of the iterated logarithm.

    `path` is a dataset of `growing_prompt`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(1), V=jnp.eye(1)), lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> path = lp.growing_prompt(jax.random.key(0), head, mu, jnp.ones(1), [10, 100], prompts=2)
    >>> len(lp.plot_growing_prompt(path).axes[0].lines)
    3
    """
    return draw([growing_prompt_panel(path, title or "")])


def plot_regimes(
    regimes: xr.Dataset, marks: Sequence[tuple[float, float, str]] = (), title: str | None = None
) -> "Figure":
    """Draw the map of `regime_map`: exponent of P_2 over (sigma, ln L), with the two transitions.

    `marks` are points (sigma, L, name) to show on it.

    >>> import largeprompt as lp
    >>> regimes = lp.regime_map(sigma_max=6.0, longest=1e8)
    >>> figure = lp.plot_regimes(regimes, marks=[(2.0, 1e3, "here")])
    >>> len(figure.axes[0].lines)  # two transitions and a mark
    3
    """
    patheffects = require("matplotlib.patheffects", extra="report")
    outline = [patheffects.withStroke(linewidth=2, foreground="black")]  # legible on every colour
    figure = new_figure()
    axes = figure.add_subplot()
    sigma, L = regimes["sigma"].values, regimes["length"].values
    image = axes.pcolormesh(
        sigma,
        np.log(L),
        regimes["exponent"].values.T,
        cmap="cividis",
        vmin=0,
        vmax=1,
        rasterized=True,
    )
    for name, style in (("averaging_from", "-"), ("frozen_until", "--")):
        axes.plot(sigma, np.log(regimes[name].values), style, color="white", lw=1.2)
    axes.set_ylim(np.log(L[0]), np.log(L[-1]))
    text_style = {"color": "white", "path_effects": outline}
    for x, length, text in marks:
        place = (x, np.log(length))
        axes.plot(*place, "o", color=COLOURS[1], mec="white", ms=5)
        offset = {"xytext": (4, 4), "textcoords": "offset points"}
        axes.annotate(text, place, fontsize=8, **offset, **text_style)
    for text, x, y in _places_of_names(sigma, L):
        axes.text(x, y, text, fontsize=7, ha="center", va="center", **text_style)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("exponent $f$: $P_2 \\approx L^{-f}$", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    style_axes(axes, r"score deviation $\sigma$", r"$\ln L$", title)
    return figure


def _places_of_names(sigma: np.ndarray, L: np.ndarray) -> list[tuple[str, float, float]]:
    """Names of the regimes with the middle of each, if the map shows it."""
    top, right = np.log(L[-1]), sigma[-1]
    heights = {"self-averaging": 0.92 * top, "rare tokens": 0.6 * top, "frozen": 0.25 * top}
    middles = {
        "self-averaging": lambda y: np.sqrt(y / 1.5) / 2,
        "rare tokens": lambda y: (np.sqrt(y / 1.5) + np.sqrt(2 * y)) / 2,
        "frozen": lambda y: (np.sqrt(2 * y) + right) / 2,
    }
    places = [(name, float(middles[name](y)), y) for name, y in heights.items()]
    return [place for place in places if place[1] < 0.9 * right]
