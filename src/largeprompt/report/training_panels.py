"""The figures of the studies of training, from their stored data alone."""

import numpy as np
import xarray as xr

from .panels import Panel, Series

_LENGTH = "prompt length $L$"


def theorem_4_3(data: xr.Dataset) -> list[Panel]:
    """Gaps against L: exact for Gaussian inputs, on sampled prompts for Rademacher inputs."""
    panels = []
    for prefix, length, title in (
        ("", "length", "Gaussian inputs (exact)"),
        ("sampled_", "sampled_length", "Rademacher inputs (sampled prompts)"),
    ):
        L = data[length].values
        series = [
            Series("parameters", L, data[f"{prefix}parameter_gap"].values, 0),
            Series("risk", L, data[f"{prefix}risk_gap"].values, 1, "dashed"),
        ]
        panels.append(Panel(series, _LENGTH, "largest gap on $[0,T]$", title=title))
    return panels


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
    """Final risks against L, one panel for each variant."""
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
        panels.append(Panel(series, _LENGTH, "final test risk", title=f"variant: {variant}"))
    return panels
