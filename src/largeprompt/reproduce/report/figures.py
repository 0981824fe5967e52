"""Figures of error curves, regimes, limits and growing prompts: each takes datasets and returns a `matplotlib` figure."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from ... import _checks
from ...concentration import BoundReport, SlopeFit, proposition_3_1, proposition_3_4
from .style import COLOURS, MARKERS, label, legend, new_figure

_SAMPLED = "montecarlo"
_AXIS = {
    "output": r"$E\,|T_L-T|^2$",
    "gradient_U": r"$E\,|\partial_U T_L-\partial_U T|^2$",
    "gradient_V": r"$E\,|\partial_V T_L-\partial_V T|^2$",
}


def plot_curve(
    curves: xr.Dataset | Sequence[xr.Dataset],
    labels: Sequence[str] | None = None,
    *,
    bound: BoundReport | None = None,
    fit: SlopeFit | None = None,
    title: str | None = None,
) -> Figure:
    """Error against prompt length on log-log axes, for one or several datasets of `concentration_curve`.

    Exact curves are lines; sampled ones are points with two standard errors. A `bound` of `bound_report` and a `fit` of
    `fit_slope` belong to the first curve.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> curve = lp.concentration_curve(lp.Head(U=jnp.eye(1), V=jnp.eye(1)), mu, mu, [2.0, 100.0, 1e6])
    >>> figure = lp.plot_curve(curve, bound=lp.bound_report(curve))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['output', 'Proposition 3.1 ($c_1=2.5$, $c_2=0.618$)']
    """
    curves = [curves] if isinstance(curves, xr.Dataset) else list(curves)
    if not curves:
        raise ValueError(
            _checks.message("plot_curve needs at least one dataset", "none", "pass a curve")
        )
    names = list(labels) if labels is not None else [c.attrs["quantity"] for c in curves]
    if len(names) != len(curves):
        raise ValueError(
            _checks.message(
                "labels must name every curve",
                f"{len(names)} labels for {len(curves)} curves",
                "pass one label for each",
            )
        )
    figure, axes = new_figure()
    for i, (curve, name) in enumerate(zip(curves, names, strict=True)):
        _draw(axes, curve, name, i)
    first = curves[0]
    if bound is not None:
        _draw_bound(axes, first, bound)
    if fit is not None:
        L = _finite(first)["length"].values
        text = f"slope {fit.slope:.3f} $\\pm$ {fit.standard_error:.3f}"
        axes.plot(L, np.exp(fit.intercept) * L**fit.slope, ":", color="0.3", lw=1.2, label=text)
    axes.set_xscale("log")
    axes.set_yscale("log")
    quantities = {curve.attrs["quantity"] for curve in curves}
    y = _AXIS[quantities.pop()] if len(quantities) == 1 else "squared error"
    label(axes, "prompt length $L$", y, title)
    legend(axes)
    return figure


def _finite(curve: xr.Dataset) -> xr.Dataset:
    """The part a log-log plot can show."""
    shown = np.isfinite(curve["length"].values) & (curve["value"].values > 0)
    return curve.isel(length=np.flatnonzero(shown))


def _draw(axes: Axes, curve: xr.Dataset, name: str, i: int) -> None:
    shown = _finite(curve)
    L, value = shown["length"].values, shown["value"].values
    colour = COLOURS[i % len(COLOURS)]
    if curve.attrs["method"] == _SAMPLED:
        axes.errorbar(
            L,
            value,
            2 * shown["error"].values,
            fmt=MARKERS[i % len(MARKERS)],
            color=colour,
            ms=3.5,
            capsize=2,
            lw=1,
            label=name,
        )
        return
    axes.plot(L, value, color=colour, lw=1.5, label=name)
    band = shown["error"].values
    if np.any(band > 1e-3 * value):
        low, high = np.maximum(value - 2 * band, 1e-3 * value), value + 2 * band
        axes.fill_between(L, low, high, color=colour, alpha=0.2, lw=0)


def _draw_bound(axes: Axes, curve: xr.Dataset, bound: BoundReport) -> None:
    lengths = _finite(curve)["length"].values
    L = np.geomspace(max(lengths.min(), 2.0), lengths.max(), 200)
    if curve.attrs["quantity"] == "output":
        values = proposition_3_1(bound.c1, bound.c2, bound.sigma, L)
    else:
        parameter = curve.attrs["quantity"].removeprefix("gradient_")
        values = proposition_3_4(bound.c1, bound.c2, bound.sigma, L, parameter)
    text = f"{bound.statement} ($c_1={bound.c1:.2g}$, $c_2={bound.c2:.3g}$)"
    axes.plot(L, values, "--", color="0.3", lw=1.2, label=text)


def plot_limits(comparison: xr.Dataset, title: str | None = None) -> Figure:
    """The distance of a prompt to its own limit and to linear attention, from `limit_comparison`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, nu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Dirac(jnp.ones(2))
    >>> figure = lp.plot_limits(lp.limit_comparison(head, lp.Rademacher(2), nu, [10.0, 1e6]))
    >>> len(figure.axes[0].lines)
    3
    """
    figure, axes = new_figure()
    L = comparison["length"].values
    shown = np.isfinite(L)
    for name, text, colour, style in (
        ("own_limit", "to its own limit", COLOURS[0], "-"),
        ("linear", "to linear attention", COLOURS[1], "-"),
        ("between_limits", "between the limits", "0.4", ":"),
    ):
        values = comparison[name].values
        kept = shown & (values > 0)
        axes.plot(L[kept], values[kept], style, color=colour, lw=1.5, label=text)
    axes.set_xscale("log")
    axes.set_yscale("log")
    label(axes, "prompt length $L$", "squared distance", title)
    legend(axes)
    return figure


def plot_growing_prompt(path: xr.Dataset, title: str | None = None) -> Figure:
    """|T_L - T| along growing prompts with the envelope of the iterated logarithm, from `growing_prompt`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(1), V=jnp.eye(1)), lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> path = lp.growing_prompt(jax.random.key(0), head, mu, jnp.ones(1), [10, 100], prompts=2)
    >>> len(lp.plot_growing_prompt(path).axes[0].lines)
    3
    """
    figure, axes = new_figure()
    L = path["length"].values
    for i, distance in enumerate(path["distance"].values):
        name = "prompts" if i == 0 else None
        axes.plot(L, distance, color=COLOURS[0], lw=0.8, alpha=0.6, label=name)
    axes.plot(
        L, path["envelope"].values, "--", color=COLOURS[1], lw=1.5, label="iterated logarithm"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    label(axes, "prompt length $L$", r"$|T_L-T|$", title)
    legend(axes)
    return figure


def plot_regimes(
    regimes: xr.Dataset, marks: Sequence[tuple[float, float, str]] = (), title: str | None = None
) -> Figure:
    """The map of `regime_map`: the exponent of P_2 over (sigma, ln L) and the two transitions; `marks` are (sigma, L, name).

    >>> import largeprompt as lp
    >>> figure = lp.plot_regimes(lp.regime_map(sigma_max=6.0, longest=1e8), marks=[(2.0, 1e3, "here")])
    >>> len(figure.axes[0].lines)  # two transitions and a mark
    3
    """
    figure, axes = new_figure(height=2.9)
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
    for x, length, text in marks:
        axes.plot([x], [np.log(length)], "o", color=COLOURS[1], mec="white", ms=5)
        axes.annotate(
            text,
            (x, np.log(length)),
            xytext=(4, 4),
            textcoords="offset points",
            color="white",
            fontsize=8,
            path_effects=[withStroke(linewidth=2, foreground="black")],
        )
    outline = [withStroke(linewidth=2, foreground="black")]  # legible on every colour of the map
    for text, x, y in _names_of_regimes(sigma, L):
        axes.text(
            x, y, text, color="white", fontsize=7, ha="center", va="center", path_effects=outline
        )
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("exponent $f$: $P_2 \\approx L^{-f}$", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    label(axes, r"score deviation $\sigma$", r"$\ln L$", title)
    return figure


def _names_of_regimes(sigma: np.ndarray, L: np.ndarray) -> list[tuple[str, float, float]]:
    """A name in the middle of each regime, where the map shows it."""
    top, right = np.log(L[-1]), sigma[-1]
    heights = {"self-averaging": 0.92 * top, "rare tokens": 0.6 * top, "frozen": 0.25 * top}
    middles = {
        "self-averaging": lambda y: np.sqrt(y / 1.5) / 2,
        "rare tokens": lambda y: (np.sqrt(y / 1.5) + np.sqrt(2 * y)) / 2,
        "frozen": lambda y: (np.sqrt(2 * y) + right) / 2,
    }
    places = [(name, float(middles[name](y)), y) for name, y in heights.items()]
    return [place for place in places if place[1] < 0.9 * right]
