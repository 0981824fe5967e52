"""The figure of each study, from its stored data."""

from collections.abc import Callable

import numpy as np
import xarray as xr

from ...concentration import sharp_exponent
from .captions import CAPTIONS
from .figures import ERROR_LABELS, growing_prompt_panel, limits_panel
from .panels import LENGTH, Panel, Series, Style, default_panels
from .real_transformers_panels import real_transformers_panels
from .section_6_panels import section_6_panels
from .training_figures import readout_panel, risk_panels

_PATHS = 40  # of growing prompts that are drawn
_NO_DIFFERENCE = 1e-17  # where numbers that agree to the last bit are drawn on a log axis


def panels_of(study: str, data: xr.Dataset) -> list[Panel]:
    """Panels of a study: its own, or the default ones."""
    return PANELS.get(study, default_panels)(data)


def caption_of(study: str) -> str:
    """What the figure of a study shows."""
    return CAPTIONS.get(study, "The numbers of this study against prompt length.")


def _lemma_2_1(data: xr.Dataset) -> list[Panel]:
    z = data["query"].values
    curves = [
        Series(f"{law} tokens", z, data["output"].sel(law=law).values, i)
        for i, law in enumerate(data["law"].values)
    ]
    linear = Series("linear attention", z, data["linear"].values, 6, "dotted")
    return [Panel([*curves, linear], "query $z_1$", "output $T[\\mu](z)_1$", False, False)]


def _softmax_operator(data: xr.Dataset) -> list[Panel]:
    names = {
        "dense_against_numpy": "dense - NumPy",
        "streamed_against_dense": "streamed - dense",
        "shuffled_against_dense": "shuffled - dense",
    }
    series = [
        Series(text, data["length"].values, data[name].values, i, "points")
        for i, (name, text) in enumerate(names.items())
    ]
    return [Panel(series, LENGTH, "largest absolute difference", floor=_NO_DIFFERENCE)]


def _non_gaussian_limit(data: xr.Dataset) -> list[Panel]:
    return [limits_panel(data.sel(law=law), f"{law} tokens") for law in data["law"].values]


def _almost_sure(data: xr.Dataset) -> list[Panel]:
    return [growing_prompt_panel(data.isel(prompt=slice(_PATHS)))]


def _finite_prompts(data: xr.Dataset) -> list[Panel]:
    L = data["length"].values
    errors = [
        Series("output", L, data["output_error"].values, 0),
        Series("gradient in $U$", L, data["gradient_U_error"].values, 1),
    ]
    gaps = [
        Series(text, L, gap, i, "points")
        for i, (text, name) in enumerate([("output", "output"), ("gradient in $U$", "gradient_U")])
        for gap in [np.abs(data[f"{name}_integral"].values / data[f"{name}_error"].values - 1)]
    ]
    return [
        Panel(errors, LENGTH, "mean squared error", title="closed form"),
        Panel(
            gaps,
            LENGTH,
            "relative difference",
            title="against the integral",
            floor=_NO_DIFFERENCE,
        ),
    ]


def _with_bounds(data: xr.Dataset, value: str, bound: str, y: str, title: str = "") -> Panel:
    L = data["length"].values
    series = []
    for i, sigma in enumerate(data["sigma"].values):
        here = data.sel(sigma=sigma)
        series.append(Series(f"$\\sigma={sigma:g}$", L, here[value].values, i))
        if sigma >= 1:
            series.append(
                Series(
                    f"bound, $\\sigma={sigma:g}$",
                    L,
                    here[bound].values,
                    i,
                    "dashed",
                    in_legend=False,
                )
            )
    return Panel(series, LENGTH, y, title=title)


def _proposition_3_1(data: xr.Dataset) -> list[Panel]:
    title = "solid: exact error; dashed: bound of the paper"
    errors = _with_bounds(data, "value", "bound", ERROR_LABELS["output"], title)
    L, slopes = data["length"].values, []
    for i, sigma in enumerate(data["sigma"].values):
        here = data.sel(sigma=sigma)
        slopes.append(Series(f"$\\sigma={sigma:g}$", L, -here["slope"].values, i))
        sharp = np.full(L.shape, sharp_exponent(float(sigma) ** 2))
        slopes.append(Series(f"limit, $\\sigma={sigma:g}$", L, sharp, i, "dotted", in_legend=False))
    title = "local exponent; dotted: limit"
    return [
        errors,
        Panel(slopes, LENGTH, r"$-d\,\ln E/d\,\ln L$", log_y=False, title=title),
    ]


def _proposition_3_4(data: xr.Dataset) -> list[Panel]:
    return [
        _with_bounds(
            data,
            f"{name}_value",
            f"{name}_bound",
            ERROR_LABELS[f"gradient_{name}"],
            f"gradient in ${name}$; dashed: bound",
        )
        for name in ("U", "V")
    ]


def _assumption_3_3(data: xr.Dataset) -> list[Panel]:
    scale, series = data["scale"].values, []
    for i, (p, q) in enumerate([(4, 0), (4, 4), (8, 8)]):
        here = data.sel(token_order=p, query_order=q)
        name = f"$p={p}$, $q={q}$"
        series.append(Series(name, scale, here["tilted"].values, i))
        raw = here["joint"].values
        series.append(Series(f"{name}, not normalised", scale, raw, i, "dashed", in_legend=False))
    title = "solid: tilted law normalised; dashed: not"
    return [Panel(series, "scale $|U|$", "moment $M_{pq}$", log_x=False, title=title)]


def _regimes(data: xr.Dataset) -> list[Panel]:
    x, share, lengths = (data[n].values for n in ("x", "largest_share", "length"))
    panels = []
    for rows, limit, y, title in (
        (-np.log(share) / np.log(lengths)[:, None], "limit", r"$-\ln P_2/\ln L$", "exponent"),
        (share, "frozen_share", "$P_2$", "share of the largest weights"),
    ):
        curves = [
            Series(f"$L=10^{{{np.log10(L):.0f}}}$", x, row, i)
            for i, (L, row) in enumerate(zip(lengths, rows, strict=True))
        ]
        ends = Series("limit", x, data[limit].values, 6, "dashed")
        panels.append(Panel([*curves, ends], r"$x=\sigma^2/\ln L$", y, False, False, title))
    return panels


def _gaussian_mixtures(data: xr.Dataset) -> list[Panel]:
    L, some = data["length"].values, data["sampled_length"].values
    drawn = data.sel(model="two heads")
    denoisers = [
        Series(r"one head, $\gamma=\xi$", L, data["one_head"].values, 0),
        Series(r"linear attention, $\gamma=\xi$", L, data["linear"].values, 1),
        Series(
            r"two heads, $\gamma<\xi$ (sampled)",
            some,
            drawn["sampled"].values,
            2,
            "points",
            drawn["sampled_error"].values,
        ),
    ]
    strength = data["strength"].values
    orders = [
        Series(f"$L={n}$", strength, row, i)
        for i, (n, row) in enumerate(zip(some, data["order"].values.T, strict=True))
    ]
    orders.append(Series("limit", strength, data["order_limit"].values, 6, "dashed"))
    linear = np.full(L.shape, float(data["label_linear"]))
    labels = [
        Series("softmax", L, data["label_excess"].values, 0),
        Series("linear attention, $L=\\infty$", L, linear, 1, "dotted"),
    ]
    return [
        Panel(denoisers, LENGTH, "excess risk", title="denoisers"),
        Panel(orders, r"$\lambda$", "$E\\,u^2$", False, False, "iterated denoiser"),
        Panel(labels, LENGTH, "excess risk", title="labels in context"),
    ]


def _one_prompt(data: xr.Dataset) -> list[Panel]:
    """Coverage over sigma and L, where the diagnostic warns, and the regimes of softmax weights."""
    L, sigma = data["length"].values, data["sigma"].values
    fine = np.geomspace(L[0], L[-1], 40)
    edges = [("averaging", 2 / 3), ("frozen", 2.0)]  # in sigma^2 / ln L
    classes = [("0.9 or more", 0.9, 2.0), ("0.7 to 0.9", 0.7, 0.9), ("below 0.7", -1.0, 0.7)]
    panels = []
    for law in data["law"].values:
        here = data.sel(law=law)
        coverage = here["coverage"].transpose("sigma", "length").values
        rows, columns = np.meshgrid(sigma, L, indexing="ij")
        series = []
        for i, (text, low, high) in enumerate(classes):
            kept = (coverage >= low) & (coverage < high)
            name = f"coverage {text}"
            series.append(Series(name, columns[kept], rows[kept], i, "points"))
        trusting = here["holds"].transpose("length", "sigma").values
        half = np.array([_last_above(sigma, row, 0.5) for row in trusting])
        series.append(Series("half the prompts read 'holds'", L, half, 3))
        for i, (text, x) in enumerate(edges):
            style: Style = "dashed" if i == 0 else "dotted"
            series.append(Series(f"edge of {text}", fine, np.sqrt(x * np.log(fine)), 6, style))
        panels.append(Panel(series, LENGTH, r"$\sigma$", True, False, title=f"{law} tokens"))
    return panels


def _last_above(x: np.ndarray, y: np.ndarray, level: float) -> float:
    """The largest x at which the curve y crosses `level` downwards; NaN if it is below it."""
    above = np.flatnonzero(y >= level)
    if not above.size:
        return np.nan
    i = above[-1]
    if i == len(x) - 1:
        return float(x[i])
    return float(x[i] + (x[i + 1] - x[i]) * (y[i] - level) / (y[i] - y[i + 1]))


def _depth(data: xr.Dataset) -> list[Panel]:
    L = data["length"].values
    series = []
    for i, layer in enumerate(data["layer"].values):
        here = data.sel(layer=layer)
        value, error = here["squared_error"].values, here["squared_error_error"].values
        series.append(Series(f"after layer {layer}", L, value, i, "points", error))
        guide = value[0] * L[0] / L
        series.append(Series("$1/L$", L, guide, i, "dotted", in_legend=i == 0))
    L, shown = data["pushed_length"].values, []
    for k in range(data.sizes["i"]):
        at = data.isel(i=k, j=k)
        value, error = at["pushed_shared_sampled"].values, at["pushed_shared_error"].values
        name = f"coordinate {k + 1}"
        shown.append(Series(f"{name}, exact", L, at["pushed_shared"].values, k))
        shown.append(Series(f"{name}, particles", L, value, k, "points", error, False))
    return [
        Panel(series, LENGTH, "squared error (mean, covariance)"),
        Panel(shown, LENGTH, "covariance of two tokens", title="one layer, tokens of one prompt"),
    ]


def _finite_length_risk(data: xr.Dataset) -> list[Panel]:
    return [*risk_panels(data, float(data["floor"]))]


def _many_heads(data: xr.Dataset) -> list[Panel]:
    """Risks above the floor, a panel for each task."""
    L, along, panels = data["length"].values, data["curve_length"].values, []
    curves = {"one softmax head": "one", "linear attention": "linear", "ridge regression": "ridge"}
    for case in data["case"].values:
        here, floor = data.sel(case=case), float(data["floor"])
        series = [
            Series(text, along, here[f"{name}_curve"].values - floor, i)
            for i, (text, name) in enumerate(curves.items())
        ]
        for i, n in enumerate(data["heads"].values):
            risk = here["risk"].sel(heads=n).values
            series.append(Series(f"{int(n)} softmax heads", L, risk - floor, 3 + i, "points"))
        panels.append(Panel(series, LENGTH, "risk above the noise floor", title=str(case)))
    return panels


def _assumption_4_2(data: xr.Dataset) -> list[Panel]:
    x, series = data["log_length"].values, []
    for i, c in enumerate(data["c"].values):
        styles: dict[str, Style] = {"log_decay": "line", "log_decay_heavy": "dashed"}
        for name, style in styles.items():
            y = data[name].isel(case=-1).sel(c=c).values / np.log(10)
            text = f"$c={c:g}$" if style == "line" else f"$c={c:g}$, Cauchy tasks"
            series.append(Series(text, x, y, i, style))
    y = r"$\log_{10}\,(\ln L)^4\,E\,L^{-c/\sigma_w^2}$"
    return [Panel(series, r"$\ln L$", y, log_y=False, title="the second condition")]


def _theorem_4_3(data: xr.Dataset) -> list[Panel]:
    """Gaps against length: exact for Gaussian inputs, sampled for Rademacher inputs."""
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
        Panel(exact, LENGTH, "largest gap", title="Gaussian inputs (exact)"),
        Panel(
            sampled, LENGTH, "largest gap on $[0,T]$", title="Rademacher inputs (sampled prompts)"
        ),
    ]


def _theorem_5_1(data: xr.Dataset) -> list[Panel]:
    """Lengths that suffice, and the read-out along flows."""
    needed = Series("$L(\\epsilon)$", data["epsilon"].values, data["prompt_length"].values, 0)
    title = "flow within $\\epsilon$ of Bayes"
    lengths = data["length"].values
    flows = data.assign_coords(length=np.where(lengths < 0, np.inf, lengths))
    return [
        Panel([needed], "$\\epsilon$", "smallest sufficient $L$", title=title),
        readout_panel(flows),
    ]


PANELS: dict[str, Callable[[xr.Dataset], list[Panel]]] = {
    "lemma-2.1": _lemma_2_1,
    "softmax-operator": _softmax_operator,
    "non-gaussian-limit": _non_gaussian_limit,
    "almost-sure": _almost_sure,
    "finite-prompts": _finite_prompts,
    "proposition-3.1": _proposition_3_1,
    "proposition-3.4": _proposition_3_4,
    "assumption-3.3": _assumption_3_3,
    "assumption-4.2": _assumption_4_2,
    "regimes": _regimes,
    "gaussian-mixtures": _gaussian_mixtures,
    "one-prompt": _one_prompt,
    "depth": _depth,
    "finite-length-risk": _finite_length_risk,
    "many-heads": _many_heads,
    "theorem-4.3": _theorem_4_3,
    "theorem-5.1": _theorem_5_1,
    "real-transformers": real_transformers_panels,
    "section-6": section_6_panels,
}
