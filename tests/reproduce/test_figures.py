"""Figures show the data they are given and change no global state."""

import jax
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection

import largeprompt as lp

HEAD = lp.Head(U=0.5 * np.eye(1), V=np.eye(1))
MU = lp.Gaussian(np.zeros(1), np.eye(1))


@pytest.fixture(scope="module")
def curve():
    return lp.concentration_curve(HEAD, MU, MU, [1.0, 2.0, 10.0, 1e3, np.inf])


def test_plot_curve_draws_the_finite_lengths(curve):
    axes = lp.plot_curve(curve).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1.0, 2.0, 10.0, 1e3])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), curve.value.values[:4])
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_plot_curve_draws_the_bound_above_the_curve(curve):
    report = lp.bound_report(curve)
    bound = lp.plot_curve(curve, bound=report).axes[0].lines[1]
    at = np.interp(np.log(10.0), np.log(bound.get_xdata()), np.log(bound.get_ydata()))
    assert at >= np.log(curve.value.values[2]) - 1e-3


def test_plot_curve_of_samples_has_two_standard_errors_and_a_fitted_line():
    sampled = lp.concentration_curve(
        HEAD, MU, MU, [10, 40], method=lp.MonteCarlo(jax.random.key(0))
    )
    axes = lp.plot_curve([sampled], ["sampled"], fit=lp.fit_slope(sampled), title="a title").axes[0]
    bars = next(c for c in axes.collections if isinstance(c, LineCollection))
    low, high = np.asarray(bars.get_segments()[0])[:, 1]
    assert (high - low) / 4 == pytest.approx(float(sampled.error[0]))
    assert any("slope" in str(line.get_label()) for line in axes.lines)


def test_plot_curve_of_several_quantities(curve):
    gradient = lp.concentration_curve(HEAD, MU, MU, [2.0, 10.0], lp.GradientError("U"))
    axes = lp.plot_curve([curve, gradient]).axes[0]
    assert axes.get_ylabel() == "squared error"
    assert [line.get_label() for line in axes.lines] == ["output", "gradient_U"]


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_save_figure_is_repeatable(curve, tmp_path, suffix):
    before = dict(mpl.rcParams)
    first = lp.save_figure(lp.plot_curve(curve), tmp_path / f"a.{suffix}").read_bytes()
    assert first == lp.save_figure(lp.plot_curve(curve), tmp_path / f"b.{suffix}").read_bytes() or (
        suffix == "svg"  # ids of clip paths are random there
    )
    assert dict(mpl.rcParams) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_save_figure_that_fails_leaves_no_file(curve, tmp_path, monkeypatch):
    figure = lp.plot_curve(curve)

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        lp.save_figure(figure, tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []
