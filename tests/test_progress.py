"""Progress: a bar on a terminal, a line now and then elsewhere."""

import io
import sys
import time
from types import SimpleNamespace

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


def test_progress_bar_waits_before_it_is_drawn(monkeypatch):
    timer = _progress.Timer
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(_progress, "Timer", timer)
    with progress_bar("quick", 1) as advance:
        advance()
    assert terminal.getvalue() == ""
    monkeypatch.setattr(_progress, "_AFTER", 0.01)
    end = time.monotonic() + 30
    with progress_bar("slow"):  # never moved: the bar comes from another thread
        while "slow" not in terminal.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert "slow" in terminal.getvalue()


def test_progress_bar_in_a_pipe_is_a_line_every_few_seconds(monkeypatch):
    now = 0.0
    monkeypatch.setattr(_progress, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with progress_bar("counting", 60, done=10, unit="steps") as advance:
        for _ in range(22):
            now += 1.0
            advance(2)
    with progress_bar("loading") as advance:
        now += 5.0
        advance(1, label="unpacking")
    with progress_bar("counting", 3) as advance:
        advance(3)
    assert pipe.getvalue().splitlines() == [
        "counting: 20 of 60 steps",
        "counting: 30 of 60 steps",
        "counting: 40 of 60 steps",
        "counting: 50 of 60 steps",
        "unpacking: 1",
    ]


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
