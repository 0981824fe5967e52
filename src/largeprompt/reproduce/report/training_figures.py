"""Figures of flows, best heads and trained heads.

A `*_panel` function says what is drawn from a dataset. The report uses it with the data of a
study; the public `plot_*` function draws it for a user.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from .panels import LENGTH, Panel, Series, Style, length_label
from .static import draw
from .style import BLACK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RISKS: dict[str, tuple[str, Style]] = {
    "softmax": ("best softmax head", "line"),
    "linear_weights_in_softmax": ("best linear head's weights in softmax", "dotted"),
    "linear": ("best linear head", "dashed"),
    "ridge": ("ridge regression (Bayes)", "points"),
}


def readout_panel(data: xr.Dataset) -> Panel:
    """Read-out b along gradient flows; dots mark where they enter the valley.

    After a flow stopped without being stationary, nothing is known of it, and nothing is drawn.
    """
    times, series = data["time"].values, []
    for i, L in enumerate(data["length"].values):
        flow = data.isel(length=i)
        known = np.full(times.shape, True)
        if "phase" in data and flow["phase"].values != "stationary":
            known = times <= flow["stopped"].values
        series.append(Series(length_label(L), times[known], flow["b"].values[known], i))
        series += _valley_entrance(times, flow, flow["b"].values, i)
    title = "descent, then the drift along the valley"
    return Panel(series, "time $t$", "read-out $b(t)$", log_y=False, title=title)


def _valley_entrance(times: np.ndarray, flow: xr.Dataset, y: np.ndarray, i: int) -> list[Series]:
    """A dot where a flow enters the valley, if it does."""
    entered = flow["valley_entered"].values
    if not np.isfinite(entered):
        return []
    at = [np.searchsorted(times, entered)]
    return [Series("", times[at], y[at], i, "points", in_legend=False)]


def plot_flow(data: xr.Dataset) -> "Figure":
    """Plot the risk above the Bayes risk and the read-out b along gradient flows.

    `data` is a dataset of `flow_curves`. Dots mark where a flow enters the valley.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> figure = lp.plot_flow(lp.flow_curves(task, lp.balanced_init(task, 0.5), [100, jnp.inf]))
    >>> len(figure.axes)
    2
    """
    times, series = data["time"].values, []
    for i, L in enumerate(data["length"].values):
        flow = data.isel(length=i)
        excess = flow["risk"].values - data.attrs["bayes_risk"]
        known = times <= max(flow["stopped"].values, times[1])
        series.append(Series(length_label(L), times[known], excess[known], i))
        series += _valley_entrance(times, flow, excess, i)
    risks = Panel(series, "time $t$", "risk above the Bayes risk", title="risk along its own flow")
    return draw([risks, readout_panel(data)])


def risk_panels(data: xr.Dataset, floor: float) -> tuple[Panel, Panel]:
    """Risks of best heads and of ridge regression against length, and what is above the floor."""
    L, risks, excess = data["length"].values, [], []
    for i, (name, (text, style)) in enumerate(_RISKS.items()):
        if name in data:
            error = data[f"{name}_error"].values if f"{name}_error" in data else None
            risks.append(Series(text, L, data[name].values, i, style, error))
            excess.append(Series(text, L, data[name].values - floor, i, style, error))
    risks.append(Series("noise floor", L, np.full(L.shape, floor), BLACK, "dotted"))
    return (
        Panel(risks, LENGTH, "risk", title="risk"),
        Panel(excess, LENGTH, "risk above the noise floor", title="above the floor"),
    )


def plot_risks(data: xr.Dataset) -> "Figure":
    """Plot risks above the noise floor: best softmax head, best linear head, ridge regression.

    `data` is a dataset of `risk_curves`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1), noise_variance=0.1)
    >>> curves = lp.risk_curves(task, [10, 100], lp.MonteCarlo(jax.random.key(0)))
    >>> figure = lp.plot_risks(curves)
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['best softmax head', 'best linear head', 'ridge regression (Bayes)']
    """
    excess = risk_panels(data, data.attrs["bayes_risk"])[1]
    return draw([replace(excess, title="")])


class Trained(NamedTuple):
    """Final risks of trained heads at each length, those of the best head, and standard errors."""

    risk: np.ndarray
    best: np.ndarray | None = None
    error: np.ndarray | None = None


def final_risk_panel(
    L: np.ndarray,
    heads: Mapping[str, Trained],
    ridge: np.ndarray | None,
    y: str = "final test risk",
    title: str = "",
) -> Panel:
    """Final risks against length, beside the best heads and ridge regression."""
    series = []
    for i, (attention, found) in enumerate(heads.items()):
        series.append(Series(f"{attention}, trained", L, found.risk, i, error=found.error))
        if found.best is not None:
            series.append(Series(f"{attention}, best head", L, found.best, i, "dotted"))
    if ridge is not None:
        series.append(Series("ridge regression (Bayes)", L, ridge, BLACK, "dashed"))
    return Panel(series, LENGTH, y, title=title)


def plot_experiment(data: xr.Dataset) -> "Figure":
    """Plot the published experiment: risk during training, and final risk against prompt length.

    `data` is a dataset of `published_experiment`.

    >>> import largeprompt as lp
    >>> data = lp.published_experiment(steps=20, lengths=[10, 20], method=lp.Exact())
    >>> [axes.get_xlabel() for axes in lp.plot_experiment(data).axes]
    ['step', 'prompt length $L$']
    """
    clock = "time" if "time" in data.dims else "step"
    risk, final = data["risk"], data["final_risk"]
    risk, final = (x.mean("seed") if "seed" in x.dims else x for x in (risk, final))
    lengths = data["length"].values
    chosen = lengths[np.unique(np.linspace(0, len(lengths) - 1, 3).round().astype(int))]
    styles: dict[str, Style] = {"softmax": "line", "linear": "dashed"}
    series = [
        Series(
            f"{attention}, {length_label(L)}",
            data[clock].values,
            risk.sel(attention=attention, length=L).values,
            i + 2,  # colours that the other panel does not use
            style,
        )
        for i, L in enumerate(chosen)
        for attention, style in styles.items()
    ]
    title = f"variant: {data.attrs['variant']}"
    training = Panel(series, clock, "test risk", log_x=clock == "time", title=title)
    heads = {}
    for attention in styles:
        here = data.sel(attention=attention)
        heads[attention] = Trained(
            final.sel(attention=attention).values,
            here["minimiser_risk"].values if "minimiser_risk" in data else None,
            here["final_half_interval"].values / 2 if "final_half_interval" in data else None,
        )
    ridge = data["bayes_risk"].values if "bayes_risk" in data else None
    return draw([training, final_risk_panel(lengths, heads, ridge)])
