"""Figures are drawn again if and only if what they show has changed, or a file was altered."""

import dataclasses

import numpy as np
import pytest

from largeprompt.reproduce.derived_files import RECORD, DerivedFiles
from largeprompt.reproduce.report import figure_files, static
from largeprompt.reproduce.report.figure_files import figure_names, fingerprint, update_figure
from largeprompt.reproduce.report.panels import Panel, Series

CURVE = Series("error", np.array([1.0, 10.0, 100.0]), np.array([1.0, 0.2, 0.03]), 0)
PANEL = Panel([CURVE], "x", "y")


def _with(**changes):
    return Panel([dataclasses.replace(CURVE, **changes)], "x", "y")


@pytest.fixture
def drawn(monkeypatch):
    """Counts the figures drawn."""
    exact, calls = static.draw, []

    def draw(panels):
        calls.append(panels)
        return exact(panels)

    monkeypatch.setattr(static, "draw", draw)
    return calls


def _files(folder):
    return [(folder / name).read_bytes() for name in figure_names("study")]


def test_update_figure_draws_only_what_changed(drawn, tmp_path):
    assert update_figure(tmp_path, "study", [PANEL])
    before = _files(tmp_path)
    assert not update_figure(tmp_path, "study", [PANEL])
    assert (len(drawn), _files(tmp_path)) == (1, before)
    assert update_figure(tmp_path, "study", [_with(y=CURVE.y * [1.0, 1.0, 2.0])])
    assert all(new != old for new, old in zip(_files(tmp_path), before, strict=True))
    assert update_figure(tmp_path, "study", [PANEL])  # back again: not what is there now
    assert _files(tmp_path) == before


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_update_figure_replaces_a_damaged_file(tmp_path, monkeypatch, which, damage):
    monkeypatch.setattr(static, "draw", _fake_figure)
    update_figure(tmp_path, "study", [PANEL])
    before, path = _files(tmp_path), tmp_path / figure_names("study")[which]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(before[which][:-1] + (b"?" if damage == "altered" else b""))
    assert update_figure(tmp_path, "study", [PANEL])
    assert _files(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"figures/study.pdf": 3}'])
def test_update_figure_draws_again_without_a_usable_record(tmp_path, monkeypatch, text):
    monkeypatch.setattr(static, "draw", _fake_figure)
    update_figure(tmp_path, "study", [PANEL])
    (tmp_path / RECORD).write_text(text)
    assert update_figure(tmp_path, "study", [PANEL])
    assert not update_figure(tmp_path, "study", [PANEL])


def test_update_figure_follows_the_code_that_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(static, "draw", _fake_figure)
    update_figure(tmp_path, "study", [PANEL])
    monkeypatch.setattr(figure_files, "_drawing_version", lambda: "other code")
    assert update_figure(tmp_path, "study", [PANEL])


class _FakeFigure:
    """A figure that is written at once."""

    def get_layout_engine(self):
        return None

    def savefig(self, name, **_):
        with open(name, "w") as file:
            file.write(f"a figure as {name.rpartition('.')[2]}")


def _fake_figure(panels):
    return _FakeFigure()


@pytest.mark.parametrize(
    "other",
    [
        _with(x=CURVE.x * (1 + 1e-15)),
        _with(y=np.nextafter(CURVE.y, 9.0)),
        _with(name="other"),
        _with(colour=1),
        _with(style="dashed"),
        _with(error=0.1 * CURVE.y),
        _with(in_legend=False),
        Panel([CURVE, CURVE], "x", "y"),
        Panel([CURVE], "z", "y"),
        Panel([CURVE], "x", "y", log_x=False),
        Panel([CURVE], "x", "y", floor=1e-17),
        Panel([CURVE], "x", "y", title="a title"),
    ],
)
def test_fingerprint_depends_on_everything_shown(other):
    assert fingerprint([other]) != fingerprint([PANEL])
    assert fingerprint([PANEL, other]) != fingerprint([other, PANEL])


def test_fingerprint_is_that_of_equal_panels():
    assert fingerprint([_with(y=CURVE.y.copy())]) == fingerprint([PANEL])


def test_remove_others_removes_what_is_out_of_date(tmp_path):
    files = DerivedFiles(tmp_path)
    for name in ("kept", "outdated", "foreign"):
        (tmp_path / name).write_text(name)
    files.made("a source", ["kept", "outdated"])
    DerivedFiles(tmp_path).remove_others(["kept"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["derived.json", "foreign", "kept"]
    assert DerivedFiles(tmp_path).up_to_date("a source", ["kept"])
    assert not DerivedFiles(tmp_path).up_to_date("another", ["kept"])
