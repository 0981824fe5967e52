"""Parts of the page: inline pictures, axes, alternative texts, typeset formulas, captions."""

import json
import re
from typing import Any

import numpy as np
import pytest

from reproduction.catalogue import catalogue, load
from reproduction.panels import Panel, Series
from reproduction.report import inline_svg, static
from reproduction.report.alternative_text import describe
from reproduction.report.formulas import typeset
from reproduction.report.ticks import choose_axis

L = np.geomspace(2.0, 1e12, 20)


def _places(svg, name="l"):
    """Places of the vertices of a path, between 0 and 1 from the lower left corner of the axes."""
    path = re.search(rf'<path class="{name}"[^>]* d="([^"]+)"', svg)
    assert path is not None
    x, y = np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", path[1]), float).T
    return (x - 46) / (400 - 46 - 10), (270 - 24 - y) / (270 - 24 - 8)


def test_draw_places_points_where_the_axes_say():
    """The vertices, read back through the axes given to the script, are the data."""
    panel = Panel([Series("a", L, L**-0.5, 0)], "x", "y")
    drawn = inline_svg.draw(panel)
    numbers = json.loads(drawn.numbers)
    for axis, place, values in zip("xy", _places(drawn.svg), (L, L**-0.5), strict=True):
        low, high, _ = numbers["axes"][axis]["log"]
        np.testing.assert_allclose(low + place * (high - low), np.log10(values), atol=0.01)
    np.testing.assert_allclose(numbers["series"][0]["y"], L**-0.5, rtol=1e-4)
    assert drawn.switches == "xy"


def test_draw_puts_zero_at_the_floor():
    y = np.array([0.0, 1e-17, 1e-14])
    panel = Panel([Series("a", np.arange(1.0, 4.0), y, 0)], "x", "y", floor=1e-17)
    drawn = inline_svg.draw(panel)
    _, heights = _places(drawn.svg)
    assert heights[0] == heights[1] < heights[2]
    low, high, ticks = json.loads(drawn.numbers)["axes"]["y"]["log"]
    assert ticks[0] == [1e-17, "0"]
    assert abs(low + heights[0] * (high - low) - (-17)) < 0.02
    assert json.loads(drawn.numbers)["series"][0]["y"][0] == 0  # shown at the pointer


def test_draw_leaves_out_what_a_log_axis_cannot_show():
    y = np.array([1.0, 0.0, -1.0, np.nan, np.inf, 2.0])
    drawn = inline_svg.draw(Panel([Series("a", np.arange(1.0, 7.0), y, 0)], "x", "y"))
    assert json.loads(drawn.numbers)["series"][0]["x"] == [1.0, 6.0]
    assert inline_svg.draw(Panel([Series("a", L, np.full(20, np.nan), 0)], "x", "y")).svg


def test_draw_shows_two_standard_errors():
    error = np.array([0.5, 0.1])
    panel = Panel([Series("a", np.array([1.0, 2.0]), np.array([2.0, 3.0]), 0, "points", error)],
                  "x", "y", False, False)  # fmt: skip
    drawn = inline_svg.draw(panel)
    low, high, _ = json.loads(drawn.numbers)["axes"]["y"]["linear"]
    bar = re.search(r'class="b" d="M[\d.]+ ([\d.]+)V([\d.]+)', drawn.svg)
    assert bar is not None
    ends = [low + (270 - 24 - float(y)) / (270 - 32) * (high - low) for y in bar.groups()]
    np.testing.assert_allclose(ends, [1.0, 3.0], atol=0.02)


def test_draw_escapes_text_and_json():
    drawn = inline_svg.draw(Panel([Series('<b>"&', L, L, 0)], "x", "y", title="</script>"))
    assert "<b>" not in drawn.svg + drawn.title
    assert "</script>" not in drawn.numbers + drawn.title + drawn.svg


def test_legend_hides_unnamed_curves_with_those_of_their_colour():
    main, bound = Series("a", L, L, 0), Series("b", L, L, 1)
    hidden = Series("bound of b", L, L, 1, "dashed", in_legend=False)
    drawn = inline_svg.draw(Panel([main, bound, hidden], "x", "y"))
    assert re.findall(r'data-entry="(-?\d+)"', drawn.svg) == ["0", "1", "1"]
    names = [entry.name for entry in inline_svg.legend([Panel([main, bound, hidden], "x", "y")])]
    assert names == ["a", "b"]


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_choose_axis_covers_the_values_with_a_few_ticks(log, seed):
    generator = np.random.default_rng(seed)
    ends = 10.0 ** generator.uniform(-12, 12, 2) if log else generator.normal(size=2) * 10**seed
    axis = choose_axis(np.sort(ends), log)
    places = np.log10(np.sort(ends)) if log else np.sort(ends)
    assert axis.low < places[0] < places[1] < axis.high
    values = [value for value, _ in axis.ticks]
    assert 2 <= len(values) <= 9
    assert np.all(np.diff(values) > 0)
    within = np.log10(values) if log else np.array(values)
    assert np.all((axis.low <= within) & (within <= axis.high))
    assert len({label for _, label in axis.ticks}) == len(values)


def test_choose_axis_of_one_value_and_of_none():
    for log in (True, False):
        axis = choose_axis(np.array([5.0, 5.0]), log)
        assert axis.low < (np.log10(5) if log else 5) < axis.high
        assert choose_axis(np.zeros(0), log).ticks == []


def test_describe_says_where_curves_start_and_end():
    x = np.array([1.0, 2.0, 3.0])
    rows = {"down": [3.0, 2.0, 1.0], "up": [1.0, 2.0, 4.0], "flat": [2.0, 2.0, 2.0]}
    series = [Series(name, x, np.array(y), i) for i, (name, y) in enumerate(rows.items())]
    cloud = Series("cloud", np.array([2.0, 1.0]), np.array([5.0, 6.0]), 3, "points")
    text = describe(Panel([*series, cloud], "time $t$", r"$\sigma$", False, True, "a title"))
    assert text == (
        "a title. σ against time t, y axis logarithmic. down: falls from 3 at 1 to 1 at 3. "
        "up: rises from 1 at 1 to 4 at 3. flat: constant at 2. "
        "cloud: 2 points, x from 1 to 2, y from 5 to 6."
    )


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("|T_L - T|^2", "|<var>T</var><sub><var>L</var></sub> − <var>T</var>|<sup>2</sup>"),
        ("e^(-sigma^2)", "<var>e</var><sup>−<var>σ</var><sup>2</sup></sup>"),
        ("tr(Sig^-2)^(1/4)", "tr(Σ<sup>−2</sup>)<sup>1/4</sup>"),
        ("Vm + VGV'", "<var>V</var><var>m</var> + <var>V</var>Γ<var>V</var>′"),
        ("sqrt(2/x) != U", "√(2/<var>x</var>) ≠ <var>U</var>"),
        ("at most 3.5e-07", "at most 3.5·10<sup>−7</sup>"),
        ("L >= 1e1, L <= 1e3, 2e5", "<var>L</var> ≥ 10, <var>L</var> ≤ 1000, 2·10<sup>5</sup>"),
        ("(-A, -b)", "(−<var>A</var>, −<var>b</var>)"),
        # words stay words
        ("A sum of a few weights, e.g. the paper's", "A sum of a few weights, e.g. the paper's"),
        ("Lemma D.1, quasi-random, sub-Gaussian", "Lemma D.1, quasi-random, sub-Gaussian"),
        ("<script>", "&lt;script&gt;"),
    ],
)  # fmt: skip
def test_typeset_formulas_and_leaves_words(text, html):
    assert typeset(text) == html


def test_typeset_changes_no_number_of_a_text():
    """The digits and words of every text of the studies come out in the same order."""
    for study in map(load, catalogue().values()):
        for text in (study.statement, study.method, study.unknown):
            plain = re.sub(r"<[^>]+>", "", typeset(text))
            long_words = [re.findall(r"[A-Za-z]{6,}", t) for t in (text, plain)]
            kept = [[w for w in words if w not in ("lambda",)] for words in long_words]
            assert kept[0] == kept[1]


def test_captions_say_something_about_every_figure():
    for study in map(load, catalogue().values()):
        assert 40 < len(study.caption) < 350, study.name
        assert study.caption not in (study.title, study.statement)


def test_draw_shows_the_points_of_a_panel():
    """The static figure has the data, two standard errors, and zero at the floor."""
    y, error = np.array([0.0, 1e-14, 2e-14]), np.array([0.0, 1e-15, 1e-15])
    series = [Series("a", np.arange(1.0, 4.0), y, 0, "points", error), Series("b", L, L, 1)]
    axes: Any
    (axes,) = static.draw([Panel(series, "x", "y", floor=1e-17)]).axes
    points, line = axes.containers[0].lines[0], axes.lines[-1]
    np.testing.assert_array_equal(points.get_ydata(), [1e-17, 1e-14, 2e-14])
    np.testing.assert_array_equal(line.get_ydata(), L)
    low, high = axes.collections[0].get_segments()[1][:, 1]
    assert high - low == pytest.approx(4e-15)
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_save_is_repeatable(tmp_path):
    for name in ("a", "b"):
        static.save(tmp_path, name, [Panel([Series("a", L, L, 0)], "$x$", "y")])
    for suffix in ("pdf", "png"):
        first, second = ((tmp_path / f"figures/{n}.{suffix}").read_bytes() for n in "ab")
        assert first == second
    assert len(list((tmp_path / "figures").iterdir())) == 4
