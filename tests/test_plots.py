# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportArgumentType=false
"""Figures show the data they are given, on the axes they are given, and refuse anything else."""

import inspect

import jax
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import largeprompt as lp

HEAD = lp.Head(U=0.5 * np.eye(1), V=np.eye(1))
MU = lp.Gaussian(np.zeros(1), np.eye(1))
DRAW = {  # without the run-time type checker, which stands before our checks
    name: inspect.unwrap(function)
    for name, function in vars(lp.plots).items()
    if inspect.isfunction(function)
    and function.__module__ == "largeprompt.plots"
    and not name.startswith("_")
}


@pytest.fixture(autouse=True)
def close_figures():
    pyplot.close("all")
    before = dict(mpl.rcParams)
    yield
    pyplot.close("all")
    assert dict(mpl.rcParams) == before  # figures change no global state


@pytest.fixture(scope="module")
def curve():
    return lp.concentration_curve(HEAD, MU, MU, [1.0, 2.0, 10.0, 1e3, np.inf])


def _flow():
    """Two flows: one that becomes stationary at the third time, one that never enters a valley."""
    time = np.array([0.0, 1.0, 10.0, 100.0])
    risk = np.array([[3.0, 2.0, 1.5, 1.5], [3.0, 2.5, 2.2, np.nan]])
    both, one = ("length", "time"), "length"
    return xr.Dataset(
        {
            "risk": (both, risk),
            "b": (both, risk - 4.0),
            "stopped": (one, [10.0, 10.0]),
            "valley_entered": (one, [0.5, np.inf]),
        },
        {"length": [100.0, np.inf], "time": time},
        {"bayes_risk": 1.0},
    )


def _probe():
    """Two prompts, two layers; the second layer has one head fewer."""
    values = np.array([[[1.0, 2.0], [900.0, np.nan]], [[3.0, 6.0], [100.0, np.nan]]])
    return xr.Dataset(
        {
            "effective_tokens": (("prompt", "layer", "head"), values, {"long_name": "worth"}),
            "sink_mass": (("prompt", "layer", "head"), values - 1),
            "error": (("prompt", "layer", "head", "size"), values[..., None]),
        },
        {"layer": [0, 1]},
    )


DATA = {
    "curve": lambda: lp.concentration_curve(HEAD, MU, MU, [2.0, 10.0]),
    "risks": lambda: xr.Dataset(
        {"softmax": ("length", [0.4, 0.3]), "linear": ("length", [0.35, 0.2])},
        {"length": [10.0, 100.0]},
        {"bayes_risk": 0.2},
    ),
    "flow": _flow,
    "regimes": lambda: lp.regime_map(sigma_max=6.0, longest=1e8, resolution=5),
    "probe": lambda: _probe().rename(effective_tokens="score_deviation"),
}


@pytest.mark.parametrize("name", DRAW)
def test_plots_draw_on_the_axes_given_or_on_new_ones(name):
    data = DATA[name]()
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert DRAW[name](data, ax=right) is right
    assert right.has_data()
    assert not left.has_data()
    assert not pyplot.get_fignums()
    new = DRAW[name](data)
    assert pyplot.gca() is new  # a notebook shows figures of pyplot
    new.figure.canvas.draw()


WRONG = {
    "a number": 3,
    "an array": np.eye(2),
    "text": "curve",
    "nothing": None,
    "a frame of pandas": {"length": [1, 2]},
    "an empty dataset": xr.Dataset(),
    "numbers without names": xr.Dataset({"value": ("x", [1.0])}),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", DRAW)
def test_plots_of_a_wrong_object_are_one_clear_line(name, wrong):
    argument = "curves" if name == "curve" else "data"
    with pytest.raises(ValueError, match=rf"^{argument} must be a dataset of .*; received .*\.$"):
        DRAW[name](WRONG[wrong])
    assert not pyplot.get_fignums()


NEEDED = {
    "curve": ("length", "value", "error"),
    "risks": ("length", "softmax", "linear"),
    "flow": ("length", "time", "risk", "stopped", "valley_entered"),
    "regimes": ("sigma", "length", "exponent", "averaging_from", "frozen_until"),
    "probe": ("layer", "score_deviation"),
}


@pytest.mark.parametrize("name", DRAW)
def test_plots_of_a_damaged_dataset_are_one_clear_line(name):
    data = DATA[name]()
    damaged = [data.isel({dim: slice(0)}) for dim in data.sizes if dim != "size"]
    for variable in NEEDED[name]:
        damaged += [data.drop_vars(variable), data.assign({variable: data[variable].astype(str)})]
        if variable not in data.dims:
            damaged.append(data.assign({variable: data[variable].expand_dims(another=2)}))
    if name in ("curve", "risks", "flow"):
        damaged.append(data.drop_attrs())
    for found in damaged:
        with pytest.raises(ValueError, match=r"^(data|curves) must be a dataset of .*; rec.*\.$"):
            DRAW[name](found)
    assert not pyplot.get_fignums()


@pytest.mark.parametrize("ax", [3, "ax", Figure()])
def test_plots_on_something_else_than_axes(curve, ax):
    with pytest.raises(ValueError, match="ax must be axes of matplotlib"):
        DRAW["curve"](curve, ax=ax)


def test_curve_draws_the_finite_lengths(curve):
    axes = lp.plots.curve(curve)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1.0, 2.0, 10.0, 1e3])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), curve.value.values[:4])
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_curve_draws_the_bound_above_the_curve(curve):
    report = lp.bound_report(curve)
    bound = lp.plots.curve(curve, bound=report).lines[1]
    at = np.interp(np.log(10.0), np.log(bound.get_xdata()), np.log(bound.get_ydata()))
    assert at >= np.log(curve.value.values[2]) - 1e-3


def test_curve_of_samples_has_two_standard_errors_and_a_fitted_line():
    sampled = lp.concentration_curve(
        HEAD, MU, MU, [10, 40], method=lp.MonteCarlo(jax.random.key(0))
    )
    axes = lp.plots.curve([sampled], ["mine"], fit=lp.fit_slope(sampled))
    bars = next(c for c in axes.collections if isinstance(c, LineCollection))
    low, high = np.asarray(bars.get_segments()[0])[:, 1]
    assert (high - low) / 4 == pytest.approx(float(sampled.error[0]))
    slope, name = axes.get_legend_handles_labels()[1]
    assert slope.startswith("slope")
    assert name == "mine"


def test_curve_of_several_quantities(curve):
    gradient = lp.concentration_curve(HEAD, MU, MU, [2.0, 10.0], lp.GradientError("U"))
    axes = lp.plots.curve([curve, gradient])
    assert axes.get_ylabel() == "squared error"
    assert [line.get_label() for line in axes.lines] == ["output", "gradient_U"]


def test_curve_of_limits_draws_the_three_distances():
    data = lp.limit_comparison(HEAD, lp.Rademacher(1), lp.Dirac([1.0]), [10.0, 1e6])
    axes = lp.plots.curve(data)
    names = ["own_limit", "linear", "between_limits"]
    for line, name in zip(axes.lines, names, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), data[name].values)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"labels": ["a", "b"]}, "labels must name every curve; received 2 labels for 1 curves"),
        ({"labels": 3}, None),
        ({"bound": 3}, "bound must be what bound_report returned"),
        ({"fit": "linear"}, "fit must be what fit_slope returned"),
    ],
)
def test_curve_options_of_a_wrong_kind(curve, options, rule):
    if rule is None:
        assert DRAW["curve"](curve, **options).lines[0].get_label() == "3"
        return
    with pytest.raises(ValueError, match=rule):
        DRAW["curve"](curve, **options)


def test_risks_draws_what_is_above_the_floor():
    data = DATA["risks"]().assign(ridge=("length", [0.3, 0.21]), ridge_error=("length", [0.01] * 2))
    axes = lp.plots.risks(data)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.2, 0.1])
    bars = next(c for c in axes.collections if isinstance(c, LineCollection))
    np.testing.assert_allclose(np.diff(bars.get_segments()[0][:, 1]), 0.04)


@pytest.mark.parametrize(("quantity", "floor"), [("risk", 1.0), ("b", 0.0)])
def test_flow_ends_where_the_flow_stopped_and_marks_the_valley(quantity, floor):
    data = _flow()
    axes = lp.plots.flow(data, quantity)
    first, dot, second = axes.lines
    values = data[quantity].values[0] - floor
    np.testing.assert_array_equal(first.get_xdata(), [1.0, 10.0])  # 0 is not on a log axis
    np.testing.assert_array_equal(first.get_ydata(), values[1:3])
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (1.0, values[1])
    assert [first.get_label(), second.get_label()] == [r"$L=100$", r"$L=\infty$"]


def test_regimes_marks_points_on_the_map():
    data = lp.regime_map(sigma_max=6.0, longest=1e8, resolution=50)
    axes = lp.plots.regimes(data, marks=[(2.0, 1e3, "here")])
    assert (axes.lines[2].get_xdata()[0], axes.lines[2].get_ydata()[0]) == (2.0, 1e3)
    words = {text.get_text() for text in axes.texts}
    assert words == {"here", "self-averaging", "rare tokens", "frozen"}
    for marks in ([3], "here", [(1.0, "x", "name")]):
        with pytest.raises(ValueError, match=r"marks must be \(sigma, L, name\) each"):
            DRAW["regimes"](data, marks=marks)


def test_probe_is_a_map_of_layers_and_heads():
    axes = lp.plots.probe(_probe(), "effective_tokens")
    image = axes.images[0]
    np.testing.assert_array_equal(image.get_array().filled(-1), [[2.0, 4.0], [500.0, -1.0]])
    assert type(image.norm).__name__ == "LogNorm"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
    assert axes.get_title() == "worth"
    one = lp.plots.probe(_probe().transpose("head", ...), "sink_mass", prompt=-1).images[0]
    np.testing.assert_array_equal(one.get_array().filled(-1), [[2.0, 5.0], [99.0, -1.0]])
    with pytest.raises(ValueError, match=r"an index of the 2 prompts; received 2\."):
        lp.plots.probe(_probe(), prompt=2, quantity="sink_mass")
    with pytest.raises(ValueError, match="over prompt and layer and head"):
        lp.plots.probe(_probe(), "error")
