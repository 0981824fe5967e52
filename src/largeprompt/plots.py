"""Figures of datasets that the library returns: curves, risks, regimes, flows, probes.

Every function draws on the matplotlib axes `ax`, or on those of a new figure, and returns them:
`lp.plots.curve(data).set_title("mine")`. Needs matplotlib (`pip install matplotlib`).
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from ._checks import accepts, shown
from ._extras import require
from ._message import error
from .concentration import BoundReport, SlopeFit, proposition_3_1, proposition_3_4

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LENGTH = "prompt length $L$"
_SAMPLED = "Monte Carlo"
_VISIBLE = 1e-3  # relative error from which a line gets a band
_FEW = 8  # up to so many points of a line get a marker
_WIDE = 100  # ratio of the ends from which the colours of a positive quantity are logarithmic
_ERRORS = {
    "output": "mean squared error",
    "gradient_U": "mean squared error of $\\partial_U T$",
    "gradient_V": "mean squared error of $\\partial_V T$",
}
_LIMITS = {
    "own_limit": ("to its own limit", "-"),
    "linear": ("to linear attention", "--"),
    "between_limits": ("between the limits", ":"),
}
_RISKS = {
    "softmax": ("best softmax head", "-"),
    "linear_weights_in_softmax": ("best linear head's weights in softmax", ":"),
    "linear": ("best linear head", "--"),
    "ridge": ("ridge regression (Bayes)", ""),
}
_PATHS = {"risk": "risk above the Bayes risk", "b": "read-out $b(t)$"}


def curve(
    curves: xr.Dataset | Sequence[xr.Dataset],
    labels: Sequence[str] | None = None,
    *,
    bound: BoundReport | None = None,
    fit: SlopeFit | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw error against prompt length, for datasets of `concentration_curve`.

    A dataset of `limit_comparison` is drawn as the distances of a prompt to its own limit and to
    linear attention. Exact curves are lines, with a band where their numerical error is visible.
    Sampled ones are points with bars of two standard errors.

    **Arguments:**

    - `labels`: one for each dataset; by default the method of one, the quantities of several.
    - `bound`, `fit`: of `bound_report` and `fit_slope`, for the first dataset.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> data = lp.concentration_curve(head, mu, mu, [2.0, 100.0, 1e6])
    >>> ax = lp.plots.curve(data, bound=lp.bound_report(data))
    >>> [line.get_label() for line in ax.lines]
    ['exact', 'bound of the paper, $c_1$ fitted']
    """
    if isinstance(curves, xr.Dataset) and "own_limit" in curves and labels is bound is fit is None:
        return _limits(curves, ax)
    found: list[Any] = list(curves) if isinstance(curves, list | tuple) else [curves]
    rows = [
        _values(
            "curves",
            data,
            "concentration_curve",
            ("quantity", "method"),
            length=("length",),
            value=("length",),
            error=("length",),
        )
        for data in found
    ]
    if not found:
        raise error("curves must be one dataset of concentration_curve or several", "none")
    names = _names(found) if labels is None else _labels(labels, len(found))
    if bound is not None and not isinstance(bound, BoundReport):
        raise error("bound must be what bound_report returned", shown(bound))
    if fit is not None and not isinstance(fit, SlopeFit):
        raise error("fit must be what fit_slope returned", shown(fit))
    axes = _axes(ax)
    for data, row, name in zip(found, rows, names, strict=True):
        style = "" if data.attrs["method"] == _SAMPLED else "-"
        _draw(axes, name, row["length"], row["value"], style, row["error"])
    lengths = rows[0]["length"]
    lengths = lengths[np.isfinite(lengths)]
    if bound is not None and lengths.size:
        L = np.geomspace(max(lengths.min(), 2.0), lengths.max(), 200)
        heights = _bound(found[0].attrs["quantity"], bound, L)
        axes.plot(L, heights, "k--", label="bound of the paper, $c_1$ fitted")
    if fit is not None:
        text = f"slope {fit.slope:.3f} $\\pm$ {fit.standard_error:.3f}"
        axes.plot(lengths, np.exp(fit.intercept) * lengths**fit.slope, "k:", label=text)
    quantities = {str(data.attrs["quantity"]) for data in found}
    several = len(quantities) > 1
    label = "squared error" if several else _ERRORS.get(quantities.pop(), "squared error")
    return _finished(axes, _LENGTH, label)


def _names(curves: Sequence[xr.Dataset]) -> list[str]:
    if len(curves) == 1:
        return ["sampled" if curves[0].attrs["method"] == _SAMPLED else "exact"]
    return [str(data.attrs["quantity"]) for data in curves]


def _labels(labels: Any, count: int) -> list[str]:
    found = [labels] if isinstance(labels, str) or not isinstance(labels, Iterable) else [*labels]
    if len(found) != count:
        raise error("labels must name every curve", f"{len(found)} labels for {count} curves")
    return [str(label) for label in found]


def _bound(quantity: str, bound: BoundReport, L: np.ndarray) -> np.ndarray:
    constants = bound.c1, bound.c2, bound.sigma
    if quantity == "output":
        return np.asarray(proposition_3_1(*constants, L))
    return np.asarray(proposition_3_4(*constants, L, "U" if quantity == "gradient_U" else "V"))


def _limits(data: xr.Dataset, ax: "Axes | None") -> "Axes":
    wanted = dict.fromkeys(("length", *_LIMITS), ("length",))
    found = _values("curves", data, "limit_comparison", **wanted)
    axes = _axes(ax)
    for name, (text, style) in _LIMITS.items():
        _draw(axes, text, found["length"], found[name], style)
    return _finished(axes, _LENGTH, "squared distance")


def risks(data: xr.Dataset, *, ax: "Axes | None" = None) -> "Axes":
    """Draw risks above the noise floor: best softmax head, best linear head, ridge regression.

    `data` is a dataset of `risk_curves`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1), noise_variance=0.1)
    >>> ax = lp.plots.risks(lp.risk_curves(task, [10, 100], lp.MonteCarlo(jax.random.key(0))))
    >>> ax.get_legend_handles_labels()[1]
    ['best softmax head', 'best linear head', 'ridge regression (Bayes)']
    """
    present = [
        name
        for risk in _RISKS
        for name in (risk, f"{risk}_error")
        if isinstance(data, xr.Dataset) and name in data
    ]
    wanted = dict.fromkeys(("length", "softmax", "linear", *present), ("length",))
    found = _values("data", data, "risk_curves", ("bayes_risk",), **wanted)
    axes = _axes(ax)
    for name, (text, style) in _RISKS.items():
        if name in found:
            above = found[name] - float(data.attrs["bayes_risk"])
            _draw(axes, text, found["length"], above, style, found.get(f"{name}_error"))
    return _finished(axes, _LENGTH, "risk above the noise floor")


@accepts(data=object)  # `_values` names the function that makes it
def flow(
    data: xr.Dataset, quantity: Literal["risk", "b"] = "risk", *, ax: "Axes | None" = None
) -> "Axes":
    r"""Draw the risk above the Bayes risk, or the read-out "b", along gradient flows.

    `data` is a dataset of `flow_curves`. Lines end where a flow stopped; dots mark where it enters
    the valley.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(1))
    >>> data = lp.flow_curves(task, lp.balanced_init(task, 0.5), [100, jnp.inf])
    >>> lp.plots.flow(data).get_legend_handles_labels()[1]
    ['$L=100$', '$L=\\infty$']
    """
    found = _values(
        "data",
        data,
        "flow_curves",
        ("bayes_risk",),
        time=("time",),
        length=("length",),
        stopped=("length",),
        valley_entered=("length",),
        **{quantity: ("length", "time")},
    )
    times = found["time"]
    log_y = quantity == "risk"
    floor = float(data.attrs["bayes_risk"]) if log_y else 0.0
    axes = _axes(ax)
    for i, L in enumerate(found["length"]):
        known = times <= max(found["stopped"][i], times[:2].max())
        heights = found[quantity][i] - floor
        line = _draw(axes, _length_label(L), times[known], heights[known], "-", log_y=log_y)
        entered = found["valley_entered"][i]
        if np.isfinite(entered):
            at = min(np.searchsorted(times, entered), len(times) - 1)
            axes.plot(times[at], heights[at], "o", color=line.get_color())
    return _finished(axes, "time $t$", _PATHS[quantity], log_y=log_y)


def _length_label(L: float) -> str:
    """A prompt length as the name of a curve."""
    if not np.isfinite(L):
        return r"$L=\infty$"
    power = np.log10(L)
    return f"$L=10^{{{power:.0f}}}$" if power == round(power) and power > 2 else f"$L={L:g}$"


def regimes(
    data: xr.Dataset,
    marks: Sequence[tuple[float, float, str]] = (),
    *,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the map of `regime_map`: exponent of P_2 over (sigma, L), with the two transitions.

    `marks` are points (sigma, L, name) to show on it.

    >>> import largeprompt as lp
    >>> data = lp.regime_map(sigma_max=6.0, longest=1e8)
    >>> len(lp.plots.regimes(data, marks=[(2.0, 1e3, "here")]).lines)  # two transitions and a mark
    3
    """
    found = _values(
        "data",
        data,
        "regime_map",
        sigma=("sigma",),
        length=("length",),
        exponent=("sigma", "length"),
        averaging_from=("sigma",),
        frozen_until=("sigma",),
    )
    try:
        points = [(float(sigma), float(L), str(name)) for sigma, L, name in marks]
    except (TypeError, ValueError) as cause:
        raise error("marks must be (sigma, L, name) each", shown(marks)) from cause
    axes = _axes(ax)
    outline = require("matplotlib.patheffects", extra="report").withStroke(
        linewidth=2, foreground="black"
    )
    white = {"color": "white", "path_effects": [outline]}  # legible on every colour
    sigma, L = found["sigma"], found["length"]
    image = axes.pcolormesh(
        sigma, L, found["exponent"].T, cmap="cividis", vmin=0, vmax=1, rasterized=True
    )
    axes.figure.colorbar(image, ax=axes, label="exponent $f$: $P_2 \\approx L^{-f}$")
    for name, style in (("averaging_from", "-"), ("frozen_until", "--")):
        axes.plot(sigma, found[name], style, color="white")
    for x, y, text in points:
        axes.plot(x, y, "o", color="C1", markeredgecolor="white")
        axes.annotate(text, (x, y), (4, 4), textcoords="offset points", **white)
    top, right = np.log(L[-1]), sigma[-1]
    for text, height, ends in (  # in the middle of each regime, if the map shows it
        ("self-averaging", 0.92 * top, lambda y: (0.0, np.sqrt(y / 1.5))),
        ("rare tokens", 0.6 * top, lambda y: (np.sqrt(y / 1.5), np.sqrt(2 * y))),
        ("frozen", 0.25 * top, lambda y: (np.sqrt(2 * y), right)),
    ):
        middle = float(np.mean(ends(height)))
        if middle < 0.9 * right:
            place = {"ha": "center", "va": "center", "fontsize": "small", **white}
            axes.text(middle, float(np.exp(height)), text, **place)
    axes.set(xlabel=r"score deviation $\sigma$", ylabel=_LENGTH, yscale="log")
    axes.set_ylim(float(L[0]), float(L[-1]))
    return axes


def probe(
    data: xr.Dataset,
    quantity: str = "score_deviation",
    *,
    prompt: int | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a heat map over layers and heads of one quantity of a dataset of `lp.models.probe`.

    Shown is the median over prompts, or the prompt of index `prompt`. Heads without a number are
    left blank. Colours are logarithmic if the quantity is positive and spans two decades.

    >>> import numpy as np
    >>> import largeprompt as lp
    >>> rng = np.random.default_rng(0)
    >>> queries, keys = (rng.normal(size=(2, n, 4)).astype(np.float32) for n in (128, 150))
    >>> layer = lp.models.RecordedLayer(queries, keys, keys, scaling=0.2)
    >>> data = lp.models.probe(lp.models.Recording("normal", ((layer,) * 3,)))
    >>> lp.plots.probe(data, "effective_tokens").images[0].get_array().shape
    (3, 2)
    """
    outer = ("prompt", "layer", "head")
    name = str(quantity)
    values = _values("data", data, "lp.models.probe", layer=("layer",), **{name: outer})[name]
    if prompt is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # heads that no prompt has
            values = np.nanmedian(values, axis=0)
    elif isinstance(prompt, int | np.integer) and -len(values) <= prompt < len(values):
        values = values[prompt]
    else:
        raise error(f"prompt must be an index of the {len(values)} prompts", shown(prompt))
    known = values[np.isfinite(values)]
    wide = known.size and known.min() > 0 and known.max() > _WIDE * known.min()
    axes = _axes(ax)
    image = axes.imshow(
        np.where(np.isfinite(values), values, np.nan),
        aspect="auto",
        interpolation="none",
        norm="log" if wide else "linear",
        cmap="viridis",
    )
    axes.figure.colorbar(image, ax=axes)
    axes.locator_params(integer=True)
    title = str(data[name].attrs.get("long_name", name))
    axes.set(xlabel="head", ylabel="layer", title=title)
    return axes


def _values(
    argument: str, data: Any, maker: str, attrs: tuple[str, ...] = (), **wanted: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Variables of a dataset as arrays over the wanted dimensions, in that order.

    Raises if it is not a dataset of `maker`: if a variable or an attribute is missing, or differs.
    """
    rule = f"{argument} must be a dataset of {maker}"
    if not isinstance(data, xr.Dataset):
        raise error(rule, type(data).__name__)
    for name, dims in wanted.items():
        if name not in data.variables:
            raise error(rule, f"one without {name!r}")
        found = data[name]
        if set(found.dims) != set(dims):
            over = " and ".join(map(str, found.dims)) or "nothing"
            raise error(f"{rule}, with {name!r} over {' and '.join(dims)}", f"one over {over}")
        if found.dtype.kind not in "fiu" or not found.size:
            raise error(f"{rule}, with numbers in {name!r}", f"{found.size} of {found.dtype}")
    for name in attrs:
        if name not in data.attrs:
            raise error(rule, f"one without the attribute {name!r}")
    return {name: data[name].transpose(*dims).values for name, dims in wanted.items()}


def _axes(ax: "Axes | None") -> "Axes":
    if ax is None:
        pyplot = require("matplotlib.pyplot", extra="report")
        return pyplot.subplots(layout="constrained")[1]
    if not isinstance(ax, require("matplotlib.axes", extra="report").Axes):
        raise error("ax must be axes of matplotlib", shown(ax))
    return ax


def _draw(
    axes: "Axes",
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    style: str,
    deviation: np.ndarray | None = None,
    log_y: bool = True,
) -> Any:
    """A line of that style with a band of two errors, or points with bars if there is none."""
    kept = np.isfinite(x) & np.isfinite(y) & (x > 0)
    kept &= (y > 0) | (not log_y)
    x, y = x[kept], y[kept]
    bars = np.zeros_like(y) if deviation is None else 2 * deviation[kept]
    if not style:
        return axes.errorbar(x, y, bars, fmt="o", markersize=4, capsize=2, label=name)[0]
    marker = "o" if len(x) <= _FEW else ""
    (line,) = axes.plot(x, y, style, label=name, marker=marker, markersize=4)
    if np.any(bars > 2 * _VISIBLE * np.abs(y)):
        low = np.maximum(y - bars, _VISIBLE * y)
        axes.fill_between(x, low, y + bars, color=line.get_color(), alpha=0.2, linewidth=0)
    return line


def _finished(axes: "Axes", x: str, y: str, *, log_y: bool = True) -> "Axes":
    """Curves with labels, scales and a legend."""
    axes.set(xlabel=x, ylabel=y, xscale="log", yscale="log" if log_y else "linear")
    axes.legend()
    return axes
