"""A terminal for the tests of progress bars."""

import io
import sys

import pytest

from largeprompt import _progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _AtOnce:
    """A timer that does not wait."""

    def __init__(self, seconds, function):
        self.start = function

    def cancel(self) -> None:
        pass

    def join(self) -> None:
        pass


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Make standard error a terminal, with bars drawn at once; returns what is written to it.

    Call it in the test itself: pytest replaces standard error after the set-up of a test.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_progress, "Timer", _AtOnce)
    monkeypatch.setattr(sys, "stderr", written := _Terminal())
    return written
