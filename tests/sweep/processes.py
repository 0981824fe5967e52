"""Start drivers in other processes, and read what they stored."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np

from largeprompt.sweep import Sweep, SweepResult
from largeprompt.sweep.store import Store

from .driver import forked

ROOT = Path(__file__).parents[2]


@contextmanager
def driving(folder: Path, stderr=subprocess.PIPE, **arguments) -> Iterator[subprocess.Popen]:
    """Start a driver that is about to run its sweep; it is killed at the end of the block."""
    command = [sys.executable, "-m", "tests.sweep.driver", str(folder), json.dumps(arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        try:
            yield driver
        finally:
            driver.kill()


@contextmanager
def forking(folder: Path, **arguments) -> Iterator[ForkServerProcess]:
    """Like `driving`, but forked from a process that has imported all a driver needs."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.sweep.driver", "dask.array", "distributed"])
    ready = context.Event()
    driver = context.Process(target=forked, args=(ready, str(folder)), kwargs=arguments)
    driver.start()
    assert ready.wait(60)
    try:
        yield driver
    finally:
        driver.kill()
        driver.join()


def python(script: Path, folder: Path) -> subprocess.CompletedProcess:
    """Run a script in `folder`, with the tests importable."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def draws(count: int = 8, **cell) -> Sweep:
    """The sweep of the driver, in this process."""
    return Sweep("tests.sweep.cells:draws", [{"seed": seed, **cell} for seed in range(count)])


def expected(count: int = 8, size: int = 8) -> list[bytes]:
    """Values of its cells, computed with NumPy alone."""
    return [np.random.default_rng(seed).normal(size=size).tobytes() for seed in range(count)]


def values(result: SweepResult) -> list[bytes]:
    """Values of the cells of a result, as bytes."""
    assert result.complete
    return [data.value.values.tobytes() for data in result.datasets if data is not None]


def stored(folder: Path) -> int:
    """Number of cells in a folder; raises if one of them is damaged."""
    paths = list(folder.glob("*.cell"))
    for path in paths:
        Store(folder).read(path.stem)
    return len(paths)


def temporary(folder: Path) -> list[Path]:
    """Temporary files left by a writer."""
    return list(folder.glob("*.tmp"))
