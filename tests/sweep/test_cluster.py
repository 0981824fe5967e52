"""Sweeps on a Dask scheduler with two workers, in three processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from largeprompt.sweep import Sweep

from .processes import ROOT, draws, expected, stored, values


def _dask(part: str, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", f"distributed.cli.dask_{part}", "--host", "127.0.0.1"]
    command += ["--no-dashboard", *options]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a process group, killed as a whole
    )


def _kill(process: subprocess.Popen) -> None:
    """Kill the process and its children: a worker may wait long for a lost scheduler."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The process of a scheduler, and its address."""
    folder = tmp_path_factory.mktemp("dask")
    contact = folder / "scheduler.json"
    scheduler = _dask("scheduler", "--port", "0", "--scheduler-file", str(contact))
    options = ("--nworkers", "2", "--nthreads", "1", "--local-directory", str(folder))
    workers = _dask("worker", "--scheduler-file", str(contact), *options)
    try:
        while not (contact.exists() and contact.read_text().endswith("}")):
            assert scheduler.poll() is None
            time.sleep(0.05)
        yield scheduler, json.loads(contact.read_text())["address"]
    finally:
        _kill(scheduler)
        _kill(workers)


def test_sweep_on_a_cluster_survives_a_lost_worker_and_lists_failures(tmp_path, cluster):
    faults = [{}, {"fault": "raises"}, {"fault": "dies once", "marker": str(tmp_path / "died")}, {}]
    sweep = Sweep("tests.sweep.cells:faulty", [{"seed": i, **f} for i, f in enumerate(faults)])
    result = sweep.run(tmp_path / "cells", cluster=cluster[1])
    assert (tmp_path / "died").exists()
    assert [failure.reason for failure in result.failures] == ["ZeroDivisionError: on purpose"]
    assert "in faulty" in result.failures[0].traceback
    found = [data and data.value.values.tobytes() for data in result.datasets]
    assert found == [None if i == 1 else value for i, value in enumerate(expected(4))]


def test_sweep_on_a_cluster_keeps_stored_cells_when_the_scheduler_dies(tmp_path, cluster):
    """Must be the last test of this file: it kills the scheduler."""
    scheduler, address = cluster
    sweep = draws(80, sleep=0.05)

    def kill_in_the_middle() -> None:
        while len(list(tmp_path.glob("*.cell"))) < 10:
            time.sleep(0.01)
        scheduler.kill()

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    result = sweep.run(tmp_path, cluster=address)
    killer.join()
    assert 10 <= result.computed < 80
    assert len(result.failures) == 80 - result.computed
    assert all("lost by the cluster" in failure.reason for failure in result.failures)
    assert stored(tmp_path) == result.computed
    assert values(sweep.run(tmp_path, workers=2)) == expected(80)
