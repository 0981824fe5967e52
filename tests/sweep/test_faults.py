"""Faults: after each, running again gives the result of an undisturbed run, bit for bit."""

import errno
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from largeprompt.sweep import Sweep

from . import processes
from .cells import SIZE
from .processes import draws, driving, expected, forking, stored, temporary, values

CELL = {"sleep": 0.003, "size": SIZE}
COUNT = 200


def _workers(driver) -> list[psutil.Process]:
    """The driver's worker processes, once both are there."""
    while True:
        found = [child for child in psutil.Process(driver.pid).children() if _is_worker(child)]
        if len(found) == 2:
            return found
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.02)


def _is_worker(process: psutil.Process) -> bool:
    """Whether it is alive, and is not the resource tracker of multiprocessing."""
    try:
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:  # it died while we looked
        return False


def _stored_at_least(folder: Path, count: int, driver) -> None:
    while len(list(folder.glob("*.cell"))) < count:
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.01)


def _stored_by_a_fork(folder: Path, count: int, driver) -> None:
    while len(list(folder.glob("*.cell"))) < count:
        assert driver.is_alive()
        time.sleep(0.01)


@pytest.mark.slow
def test_sweep_keeps_finished_cells_when_the_driver_is_killed(tmp_path):
    moments = random.Random(0)
    counts = [0]
    for kill in range(10):
        with forking(tmp_path, count=COUNT, **CELL) as driver:
            if (
                kill >= 3
            ):  # the first ones may hit while it looks at the folder, these while it works
                _stored_by_a_fork(tmp_path, counts[-1] + 1, driver)
            time.sleep(moments.uniform(0, 0.08))
            driver.kill()
        assert driver.exitcode == -signal.SIGKILL
        counts.append(stored(tmp_path))  # every one of them whole
        assert counts[-1] >= counts[-2]
    assert 0 < counts[-1] < COUNT

    (tmp_path / "stale.tmp").write_bytes(b"half a cell")
    os.utime(tmp_path / "stale.tmp", (0, 0))
    (tmp_path / "fresh.tmp").write_bytes(b"half a cell")
    result = draws(COUNT, **CELL).run(tmp_path)
    assert result.reused == counts[-1]
    assert values(result) == expected(COUNT, SIZE)
    assert not (tmp_path / "stale.tmp").exists()
    assert (tmp_path / "fresh.tmp").exists(), "its writer may be alive"


def test_sweep_survives_a_killed_worker_and_a_killed_driver(tmp_path):
    with driving(tmp_path, count=100, workers=2, sleep=0.02) as driver:
        _stored_at_least(tmp_path, 5, driver)
        before = _workers(driver)
        before[0].kill()
        psutil.wait_procs(before, timeout=60)
        after = _workers(driver)
        _stored_at_least(tmp_path, stored(tmp_path) + 5, driver)
        driver.kill()
    _, alive = psutil.wait_procs(after, timeout=60)
    assert not alive, "a worker outlived its driver"
    assert stored(tmp_path) < 100
    assert values(draws(100, sleep=0.02).run(tmp_path)) == expected(100)


def test_sweep_stops_its_workers_on_interrupt_and_resumes(tmp_path):
    with driving(tmp_path, count=40, workers=2, sleep=0.05) as driver:
        _stored_at_least(tmp_path, 3, driver)
        workers = _workers(driver)
        os.killpg(driver.pid, signal.SIGINT)  # as Ctrl-C does: to all processes at once
        _, errors = driver.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert driver.returncode != 0
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    assert 3 <= stored(tmp_path) < 40
    assert not temporary(tmp_path)
    assert values(draws(40, sleep=0.05).run(tmp_path)) == expected(40)


@pytest.mark.slow
def test_sweep_completes_other_cells_when_one_kills_its_process(tmp_path):
    faults = [
        {},
        {"fault": "dies"},
        {},
        {"fault": "dies once", "marker": str(tmp_path / "died")},
        {},
        {},
    ]
    cells = [{"seed": seed, **fault} for seed, fault in enumerate(faults)]
    result = Sweep("tests.sweep.cells:faulty", cells).run(tmp_path / "cells", workers=2)
    assert (tmp_path / "died").exists()
    assert [failure.configuration["seed"] for failure in result.failures] == [1]
    assert "its process died" in result.failures[0].reason
    assert result.computed == 5
    whole = [data.value.values.tobytes() for data in result.datasets if data is not None]
    assert whole == [value for seed, value in enumerate(expected(6)) if seed != 1]


def test_sweep_lists_failing_cells_and_finishes_the_others(tmp_path):
    cells = [
        {"seed": 0},
        {"seed": 1, "fault": "raises"},
        {"seed": 2, "fault": "exits"},
        {"seed": 3},
    ]
    sweep = Sweep("tests.sweep.cells:faulty", cells)
    for computed, reused in ((2, 0), (0, 2)):  # failures are tried again, the rest is not
        result = sweep.run(tmp_path)
        assert not result.complete
        assert (result.computed, result.reused) == (computed, reused)
        raised, exited = result.failures
        assert raised.configuration == cells[1]
        assert raised.reason == "ZeroDivisionError: on purpose"
        assert 'raise ZeroDivisionError("on purpose")' in raised.traceback
        assert exited.reason == "SystemExit: on purpose"
        assert [data is None for data in result.datasets] == [False, True, True, False]
    with pytest.raises(ValueError, match="must contain every cell; received 2 of 4 cells"):
        result.write(tmp_path / "all.nc")
    partial = result.consolidate(allow_missing=True)
    assert (partial.attrs["cells"], partial.attrs["missing_cells"]) == (2, 2)
    assert "on purpose" in partial.attrs["failures"]


@pytest.mark.parametrize("workers", [None, 2])
def test_sweep_stops_when_the_disk_is_full(tmp_path, workers):
    """A limit on file sizes stops a write in the middle of a cell, as a full disk does."""
    small = draws(3, size=8).run(tmp_path)
    with driving(tmp_path, count=4, size=SIZE, file_limit=8 * SIZE // 2, workers=workers) as driver:
        _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert f"OSError: [Errno {errno.EFBIG}] finished cells must be stored in a folder" in errors
    assert "what is stored there is kept" in errors
    assert stored(tmp_path) == 3
    assert not temporary(tmp_path)
    assert values(small) == expected(3)
    assert values(draws(4, size=SIZE).run(tmp_path)) == expected(4, SIZE)


def test_sweep_rejects_an_unwritable_folder_before_computing(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cell = {"seed": 0, "fault": "dies once", "marker": str(tmp_path / "computed")}
    sweep = Sweep("tests.sweep.cells:faulty", [cell])
    with pytest.raises(FileExistsError, match="must be stored in a folder"):
        sweep.run(tmp_path / "file")
    assert not (tmp_path / "computed").exists()
    assert (tmp_path / "file").read_text() == "not a folder"


def test_sweep_reports_and_recomputes_damaged_cells(tmp_path, caplog):
    sweep = draws(6)
    assert values(sweep.run(tmp_path)) == expected(6)
    paths = [tmp_path / f"{cell.address}.cell" for cell in sweep.cells]
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    paths[1].write_bytes(b"")
    flipped = bytearray(paths[2].read_bytes())
    flipped[-20] ^= 1
    paths[2].write_bytes(flipped)
    paths[3].write_bytes(paths[4].read_bytes())
    result = sweep.run(tmp_path)
    assert result.damaged == tuple(f'{{"seed": {i}}}' for i in range(4))
    assert (result.computed, result.reused) == (4, 2)
    assert [str(path) in text for path, text in zip(paths, caplog.messages, strict=False)] == [
        True
    ] * 4
    assert "contains another cell" in caplog.messages[3]
    assert values(result) == expected(6)
    assert sweep.run(tmp_path).damaged == ()


def test_sweep_in_three_processes_on_one_folder(tmp_path):
    with ExitStack() as stack:
        drivers = [stack.enter_context(driving(tmp_path, count=60, **CELL)) for _ in range(3)]
        for driver in drivers:
            _, errors = driver.communicate(timeout=120)
            assert (driver.returncode, errors) == (0, "")
    assert not temporary(tmp_path)
    result = draws(60, **CELL).run(tmp_path)
    assert result.reused == 60
    assert values(result) == expected(60, SIZE)


def test_sweep_raises_when_workers_cannot_start(tmp_path):
    """A script without a main guard starts itself again in each worker."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from largeprompt.sweep import Sweep\n"
        "Sweep('tests.sweep.cells:draws', [{'seed': 0}]).run('cells', workers=1)\n"
    )
    done = processes.python(script, tmp_path)
    assert done.returncode == 1
    assert "worker processes must be able to start" in done.stderr
    assert "__main__" in done.stderr
