"""A terminal for the tests of progress bars."""

import io
import sys

import pytest


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Make standard error a terminal; returns what is written to it. Call it in the test itself:
    pytest replaces standard error after the set-up of a test.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", written := _Terminal())
    return written
