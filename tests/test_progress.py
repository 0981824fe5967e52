"""The progress bar is drawn on a terminal only."""

import io
import sys

import pytest

from largeprompt import _progress
from largeprompt._progress import progress_bar

from .terminal import on_a_terminal


@pytest.mark.parametrize(("shown", "total"), [(True, 3), (True, None), (False, 3)])
def test_progress_bar_on_a_terminal(monkeypatch, shown, total):
    terminal = on_a_terminal(monkeypatch)
    with progress_bar("counting", total, done=1, unit="steps", shown=shown) as advance:
        advance()
        advance(1, label="nearly done")
    assert ("counting" in terminal.getvalue()) is shown
    assert ("nearly done" in terminal.getvalue()) is shown
    assert ("━" in terminal.getvalue()) is shown
    assert ("3/3" in terminal.getvalue()) is (shown and total is not None)


def test_progress_bar_in_a_pipe_is_silent(monkeypatch):
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with progress_bar("counting", 3) as advance:
        advance(3)
    assert pipe.getvalue() == ""


def test_progress_bar_inside_another_is_not_drawn(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with progress_bar("outer", 2) as advance:
        with progress_bar("inner", 5) as inner:
            inner(5)
        advance()
    with progress_bar("next", 1) as advance:
        advance()
    assert "outer" in terminal.getvalue()
    assert "inner" not in terminal.getvalue()
    assert "next" in terminal.getvalue()


def test_progress_bar_after_an_error_is_drawn_again(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with pytest.raises(RuntimeError, match="stopped halfway"), progress_bar("outer", 2):
        raise RuntimeError("stopped halfway")
    with progress_bar("next", 1):
        pass
    assert "next" in terminal.getvalue()


def test_draw_no_bars_silences_a_worker(monkeypatch):
    monkeypatch.setattr(_progress, "_quiet", False)  # restored after the test
    terminal = on_a_terminal(monkeypatch)
    _progress.draw_no_bars()
    with progress_bar("counting", 3) as advance:
        advance(3)
    assert terminal.getvalue() == ""
