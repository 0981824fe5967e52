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


def test_signals_in_a_callback_of_the_garbage_collector_are_not_lost():
    """Python ignores exceptions there: the signal is sent again."""
    code = """
import gc, os, signal, time
from largeprompt.cli._signals import catch_signals
catch_signals()
gc.callbacks.append(lambda phase, _: phase == "start" and os.kill(os.getpid(), signal.SIGTERM))
try:
    gc.collect()
    gc.callbacks.clear()
    time.sleep(30)
except KeyboardInterrupt as received:
    print(type(received).__name__)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "Terminated"
    assert not found.stderr
