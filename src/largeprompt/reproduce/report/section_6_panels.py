"""The figure of Section 6: final risks, shares of runs, and the landscape of the risk."""

import numpy as np
import xarray as xr

from ..._extras import require
from .panels import LENGTH, Panel, Series
from .training_figures import Trained, final_risk_panel


def section_6_panels(data: xr.Dataset) -> list[Panel]:
    """Final risks against length for each variant; shares of runs; the landscape of the risk."""
    panels = []
    for variant in data["variant"].values:
        here = data.sel(variant=variant)
        heads = {
            name: Trained(here[name].values, here[f"{name}_best"].values)
            for name in ("softmax", "linear")
        }
        panels.append(
            final_risk_panel(
                data["length"].values,
                heads,
                here["ridge"].values,
                "median final risk",
                f"variant: {variant}",
            )
        )
    return [*panels, _shares(data), _landscape(data), _starts(data)]


def _shares(data: xr.Dataset) -> Panel:
    """Shares of runs in the block class, with Wilson intervals."""
    L, series = data["length"].values, []
    here = data.sel(start="paper")
    for i, attention in enumerate(("softmax", "linear")):
        one = here.sel(attention=attention)
        low, high = one["share_low"].values, one["share_high"].values
        # side by side; half a bar is two errors
        x, half = L * 1.08 ** (2 * i - 1), (high - low) / 4
        series.append(Series(f"{attention}, 95% interval", x, (low + high) / 2, i, "points", half))
    arrive = data["share"].sel(start="(9)").min("attention").values
    series.append(Series("from initialisation (9)", L, arrive, 2, "dashed"))
    title = "runs that end in the block form"
    return Panel(series, LENGTH, "share of runs", log_y=False, title=title)


# level lines: 0 is the lowest risk, 1 the risk of predicting zero
_LEVELS = (0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.2, 1.6)
_PATHS = 24  # number drawn in the landscape
_ROUTES = ("strength of: score by $x$, read $y$", "strength of: score by $y$, read $x$")


def _landscape(data: xr.Dataset) -> Panel:
    """Level lines of the risk over the strengths of both routes, and paths of descent."""
    s, t = data["block_strength"].values, data["other_strength"].values
    risk = data["landscape"].values.T
    lowest, nothing = risk.min(), risk[np.argmin(np.abs(t)), np.argmin(np.abs(s))]
    generator = require("contourpy", extra="report").contour_generator(s, t, risk)
    levels = [lowest + part * (nothing - lowest) for part in _LEVELS]
    lines = [np.asarray(line) for level in levels for line in generator.lines(level)]
    series = [
        Series("equal risk", line[:, 0], line[:, 1], 6, "dotted", in_legend=i == 0)
        for i, line in enumerate(lines)
    ]
    for name, colour, runs in _by_end(data.isel(path=slice(_PATHS))):
        paths = zip(runs["path_block"].values, runs["path_other"].values, strict=True)
        series += [Series(name, *path, colour, in_legend=i == 0) for i, path in enumerate(paths)]
    title = f"risk of linear attention, $L={data['length'].values[0]:g}$"
    return Panel(series, *_ROUTES, False, False, title)


def _starts(data: xr.Dataset) -> Panel:
    """Initialisations of these paths in the same coordinates, by the route they end in."""
    series = []
    for name, colour, runs in _by_end(data):
        x, y = (runs[path].isel(moment=0).values for path in ("path_block", "path_other"))
        series.append(Series(name, x, y, colour, "points"))
    y = np.concatenate([one.y for one in series])
    y = np.linspace(y.min(), y.max(), 20)
    zero = Series("no first pull to the block form", np.zeros(20), y, 6, "dashed")
    return Panel([*series, zero], *_ROUTES, False, False, "initialisations by where they end")


def _by_end(data: xr.Dataset) -> list[tuple[str, int, xr.Dataset]]:
    """Paths of linear attention by the route they end in: name, colour, data."""
    return [
        (name, colour, data.isel(path=np.flatnonzero(data["path_arrives"].values == arrived)))
        for arrived, colour, name in (
            (1.0, 2, "ends in the block form"),
            (0.0, 3, "ends in the other route"),
        )
    ]
