"""The progress bar is drawn on a terminal only."""

import io
import sys

import pytest

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
