"""The figures of the studies of training, from their stored data alone."""

import numpy as np
import xarray as xr
from contourpy import contour_generator

from .panels import Panel, Series

_LENGTH = "prompt length $L$"


def theorem_4_3(data: xr.Dataset) -> list[Panel]:
    """Gaps against L: exact for Gaussian inputs, the largest over tasks; on sampled prompts for
    Rademacher inputs.
    """
    L = data["length"].values
    curves = [
        ("limiting risk", data["limit_excess"].max("task")),
        ("risk along the paths", data["risk_gap"].max(["task", "point"])),
        ("gradient along the paths", data["gradient_gap"].max(["task", "point"])),
        ("parameters on $[0,T]$", data["parameter_gap"].max(["task", "time"])),
    ]
    exact = [Series(text, L, values.values, i) for i, (text, values) in enumerate(curves)]
    L = data["sampled_length"].values
    sampled = [
        Series("parameters", L, data["sampled_parameter_gap"].values, 3),
        Series("risk", L, data["sampled_risk_gap"].values, 1, "dashed"),
    ]
    return [
        Panel(exact, _LENGTH, "largest gap", title="Gaussian inputs (exact)"),
        Panel(
            sampled, _LENGTH, "largest gap on $[0,T]$", title="Rademacher inputs (sampled prompts)"
        ),
    ]


def theorem_5_1(data: xr.Dataset) -> list[Panel]:
    """L(eps), and the read-out along flows."""
    needed = Series("$L(\\epsilon)$", data["epsilon"].values, data["prompt_length"].values, 0)
    times, flows = data["time"].values[1:], []
    for i, L in enumerate(data["length"].values):
        name = "$L=\\infty$" if L < 0 else f"$L=10^{{{np.log10(L):.0f}}}$"
        flows.append(Series(name, times, data["b"].values[i, 1:], i))
    title = "descent, then the drift along the valley"
    return [
        Panel(
            [needed],
            "$\\epsilon$",
            "smallest sufficient $L$",
            title="flow within $\\epsilon$ of Bayes",
        ),
        Panel(flows, "time $t$", "read-out $b(t)$", log_y=False, title=title),
    ]


def section_6(data: xr.Dataset) -> list[Panel]:
    """Final risks against L for each variant; shares of runs that arrive; the landscape."""
    L, panels = data["length"].values, []
    for variant in data["variant"].values:
        here = data.sel(variant=variant)
        series = [
            Series("softmax", L, here["softmax"].values, 0),
            Series("softmax, best head", L, here["softmax_best"].values, 0, "dotted"),
            Series("linear", L, here["linear"].values, 1),
            Series("linear, best head", L, here["linear_best"].values, 1, "dotted"),
            Series("ridge (Bayes)", L, here["ridge"].values, 6, "dashed"),
        ]
        panels.append(Panel(series, _LENGTH, "median final risk", title=f"variant: {variant}"))
    return [*panels, _shares(data), _landscape(data), _starts(data)]


def _shares(data: xr.Dataset) -> Panel:
    """Wilson intervals of the share of runs in the block class."""
    L, series = data["length"].values, []
    here = data.sel(start="paper")
    for i, attention in enumerate(("softmax", "linear")):
        one = here.sel(attention=attention)
        low, high = one["share_low"].values, one["share_high"].values
        # side by side; bars are two of what is called an error
        x, half = L * 1.08 ** (2 * i - 1), (high - low) / 4
        series.append(Series(f"{attention}, 95% interval", x, (low + high) / 2, i, "points", half))
    arrive = data["share"].sel(start="(9)").min("attention").values
    series.append(Series("from initialisation (9)", L, arrive, 2, "dashed"))
    title = "runs that end in the block form"
    return Panel(series, _LENGTH, "share of runs", log_y=False, title=title)


_LEVELS = (0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.2, 1.6)  # 0: lowest risk, 1: no prediction
_PATHS = 24  # drawn in the landscape
_ROUTES = ("strength of: score by $x$, read $y$", "strength of: score by $y$, read $x$")


def _landscape(data: xr.Dataset) -> Panel:
    """Level lines of the risk over the strengths of both routes, and the paths of descent."""
    s, t = data["block_strength"].values, data["other_strength"].values
    risk = data["landscape"].values.T
    lowest, nothing = risk.min(), risk[np.argmin(np.abs(t)), np.argmin(np.abs(s))]
    generator = contour_generator(s, t, risk)
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
    """Where these paths start, in the same coordinates, by the route they end in."""
    series = []
    for name, colour, runs in _by_end(data):
        x, y = (runs[path].isel(moment=0).values for path in ("path_block", "path_other"))
        series.append(Series(name, x, y, colour, "points"))
    y = np.concatenate([one.y for one in series])
    y = np.linspace(y.min(), y.max(), 20)
    zero = Series("no first pull to the block form", np.zeros(20), y, 6, "dashed")
    return Panel([*series, zero], *_ROUTES, False, False, "which start ends where")


def _by_end(data: xr.Dataset) -> list[tuple[str, int, xr.Dataset]]:
    """Paths of linear attention by the route they end in: name, colour, data."""
    return [
        (name, colour, data.isel(path=np.flatnonzero(data["path_arrives"].values == arrived)))
        for arrived, colour, name in (
            (1.0, 2, "ends in the block form"),
            (0.0, 3, "ends in the other route"),
        )
    ]
