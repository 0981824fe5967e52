"""Figures of flows, best heads and trained heads: each takes a dataset and returns a `matplotlib` figure."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLOURS, MARKERS, label, legend, new_figure

_PAGE = 6.8  # inches: both columns
_NAMES = {"softmax": "softmax", "linear": "linear", "ridge": "ridge (Bayes)"}


def _two(height: float = 2.6) -> tuple[Figure, Axes, Axes]:
    figure, _ = new_figure(_PAGE, height)
    figure.clear()
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, left, right


def _length_name(L: float) -> str:
    if not np.isfinite(L):
        return r"$L=\infty$"
    power = np.log10(L)
    return f"$L=10^{{{power:.0f}}}$" if power == round(power) and power > 2 else f"$L={L:g}$"


def plot_flow(data: xr.Dataset) -> Figure:
    """Risk above the Bayes risk and read-out b along gradient flows, for a dataset of `flow_curves`; dots mark the valley's entrance.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> figure = lp.plot_flow(lp.flow_curves(task, lp.balanced_init(task, 0.5), [100, jnp.inf]))
    >>> len(figure.axes)
    2
    """
    figure, left, right = _two()
    floor = data.attrs["bayes_risk"]
    times = data["time"].values
    for i, L in enumerate(data["length"].values):
        colour = COLOURS[i % len(COLOURS)]
        excess = data["risk"].values[i] - floor
        shown = (times > 0) & (times <= max(data["stopped"].values[i], times[1])) & (excess > 0)
        left.loglog(times[shown], excess[shown], color=colour, label=_length_name(L))
        # a stationary flow stays where it is; of another nothing is known after it stopped
        stays = data["phase"].values[i] == "stationary"
        known = (times > 0) & (stays | (times <= data["stopped"].values[i]))
        right.semilogx(
            times[known], data["b"].values[i, known], color=colour, label=_length_name(L)
        )
        entered = data["valley_entered"].values[i]
        if entered > 0:
            at = np.searchsorted(times, entered)
            left.plot(times[at], excess[at], "o", color=colour, ms=4)
            right.plot(times[at], data["b"].values[i, at], "o", color=colour, ms=4)
    label(left, "time $t$", "risk above the Bayes risk", "risk along its own flow")
    label(right, "time $t$", "read-out $b(t)$", "descent, then the drift along the valley")
    legend(left)
    return figure


def plot_risks(data: xr.Dataset) -> Figure:
    """Best softmax head, best linear head and ridge regression against prompt length, above the noise floor; of `risk_curves`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1), noise_variance=0.1)
    >>> figure = lp.plot_risks(lp.risk_curves(task, [10, 100], jax.random.key(0)))
    >>> len(figure.axes[0].lines)
    3
    """
    figure, axes = new_figure()
    _draw_risks(axes, data, {name: data[name].values for name in _NAMES if name in data})
    legend(axes)
    return figure


def _draw_risks(axes: Axes, data: xr.Dataset, curves: dict[str, np.ndarray]) -> None:
    L, floor = data["length"].values, data.attrs["bayes_risk"]
    for i, (name, risk) in enumerate(curves.items()):
        shown = np.isfinite(L) & (risk > floor)
        style = {"color": COLOURS[i], "marker": MARKERS[i], "ms": 3.5, "lw": 1.2}
        axes.loglog(L[shown], risk[shown] - floor, label=_NAMES.get(name, name), **style)
    label(axes, "prompt length $L$", "risk above the noise floor")


def plot_experiment(data: xr.Dataset) -> Figure:
    """The published experiment: test risk while training, and final risk against prompt length; of `published_experiment`.

    >>> import largeprompt as lp
    >>> data = lp.published_experiment(steps=20, lengths=[10, 20], method=lp.Exact())
    >>> [axes.get_xlabel() for axes in lp.plot_experiment(data).axes]
    ['step', 'prompt length $L$']
    """
    figure, left, right = _two()
    clock = "time" if "time" in data.dims else "step"
    risk, final = data["risk"], data["final_risk"]
    risk, final = (x.mean("seed") if "seed" in x.dims else x for x in (risk, final))
    lengths = data["length"].values
    chosen = lengths[np.unique(np.linspace(0, len(lengths) - 1, 3).round().astype(int))]
    for i, L in enumerate(chosen):
        for attention, line in (("softmax", "-"), ("linear", "--")):
            values = risk.sel(attention=attention, length=L)
            name = f"{attention}, {_length_name(L)}"
            left.plot(data[clock].values, values, line, color=COLOURS[i], lw=1.2, label=name)
    left.set_yscale("log")
    if clock == "time":
        left.set_xscale("log")
    label(left, clock, "test risk", f"variant: {data.attrs['variant']}")
    legend(left)
    for i, attention in enumerate(("softmax", "linear")):
        values = final.sel(attention=attention).values
        half = (
            data["final_half_interval"].sel(attention=attention).values
            if "final_half_interval" in data
            else None
        )
        style = {"color": COLOURS[i], "marker": MARKERS[i], "ms": 3.5, "lw": 1.2}
        right.errorbar(lengths, values, half, label=f"{attention}, trained", **style)
        if "minimiser_risk" in data:
            best = data["minimiser_risk"].sel(attention=attention).values
            right.plot(lengths, best, ":", color=COLOURS[i], label=f"{attention}, best head")
    if "bayes_risk" in data:
        right.plot(lengths, data["bayes_risk"].values, color="0.4", lw=1, label="ridge (Bayes)")
    right.set_xscale("log")
    right.set_yscale("log")
    label(right, "prompt length $L$", "final test risk")
    legend(right)
    return figure
