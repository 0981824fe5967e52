"""A reproduction that is stopped by a signal ends its workers and leaves a folder to resume."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from largeprompt.cli.commands import app
from largeprompt.reproduce import folder, studies

from . import command

ROOT = Path(__file__).parents[2]

# where the command was started, what sends which signal, options
STOPPED = {
    "by Ctrl-C": ("foreground", os.killpg, signal.SIGINT, ["--workers", "2"]),
    "in the background": ("background", os.kill, signal.SIGTERM, ["--workers", "1"]),
    "by a batch system": ("background", os.killpg, signal.SIGTERM, ["--workers", "1"]),
    "without workers": ("background", os.kill, signal.SIGTERM, []),
}


@pytest.mark.parametrize("how", STOPPED)
def test_reproduce_stopped_by_a_signal_can_be_resumed(how, tmp_path, monkeypatch):
    place, kill, number, options = STOPPED[how]
    out = tmp_path / "results"
    words = [sys.executable, "-m", "tests.reproduce.command", place, "reproduce"]
    with subprocess.Popen(
        [*words, "--out", str(out), *options],
        cwd=ROOT,
        env=os.environ | {command.WAIT: "600"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while not list(out.glob("cells/*.cell")):
                assert process.poll() is None
                time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
            assert bool(children) is bool(options)
            if place == "background":
                os.killpg(process.pid, signal.SIGINT)  # has no effect
                time.sleep(0.2)
            kill(process.pid, number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    *_, stored, resume = errors.splitlines()
    assert stored == f"interrupted: 1 of 2 studies are stored in {out}"
    words = ["largeprompt", "reproduce", "--resume", "--out", str(out), *options]
    assert resume == f"continue with: {shlex.join(words)}"

    monkeypatch.setattr(studies, "STUDIES", command.STUDIES)
    (cell,) = folder.load_all(out).records
    assert cell == "fast"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) == 3, files  # the manifest, the result, and a text about results
    again = CliRunner().invoke(app, ["reproduce", "--resume", "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert "kept      fast" in again.stderr
    assert "computed  slow" in again.stderr


START = """
import gc, os, signal, sys, time, weakref
from largeprompt.cli._signals import catch_signals, exit_status, uncovered_interruptions

signal.signal(signal.SIGINT, signal.default_int_handler)
catch_signals()
number = getattr(signal, sys.argv[1])

def interrupt(*_):
    os.kill(os.getpid(), number)

class Closing:
    def __del__(self):
        interrupt()

class Named:
    def __set_name__(self, owner, name):
        interrupt()

try:
    with uncovered_interruptions():
"""

END = """
        time.sleep(30)
except KeyboardInterrupt as received:
    print(type(received).__name__)
    sys.exit(exit_status(received))
"""

PLACES = {
    "a callback of the garbage collector": "gc.callbacks.append(interrupt); gc.collect();"
    "gc.callbacks.clear()",
    "a finaliser": "Closing()",
    "a callback of a weak reference": "it = set(); ref = weakref.ref(it, interrupt); del it",
    "text that is executed": "exec('interrupt(); time.sleep(30)')",
    "the definition of a class": "type('Of', (), {'it': Named()})",
    "code that raises something else": "exec('try: interrupt()\\nfinally: int(None)')",
}


@pytest.mark.parametrize("received", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("place", PLACES)
def test_signals_end_the_command_wherever_they_arrive(place, received, tmp_path):
    """CPython ignores exceptions in callbacks, remembers those of executed text, and turns those
    of `__set_name__` into a RuntimeError.
    """
    (tmp_path / "interrupted.py").write_text(f"{START}        {PLACES[place]}{END}")
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted", received],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ended.stdout.strip() == {"SIGINT": "Interrupted", "SIGTERM": "Terminated"}[received]
    assert not ended.stderr
    assert ended.returncode == 128 + getattr(signal, received)


def test_ctrl_c_before_the_command_has_begun():
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    def find_spec(name, path, target=None):
        if name == "largeprompt.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
from largeprompt.cli import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 130, ended.stderr
    assert not ended.stderr
