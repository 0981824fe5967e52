"""Sweeps: the dataset of a grid, what is stored, keys, executors, and faults."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
import xarray as xr

import largeprompt as lp
from largeprompt import _provenance, _sweep
from largeprompt._sweep import Failure

from . import cells

ROOT = Path(__file__).parents[1]
HERE = ThreadPoolExecutor(1)  # no process to start
SEEDS = [{"seed": seed} for seed in range(8)]


def _values(results) -> dict[int, bytes]:
    """The values of `draws`, by seed."""
    return {cell["seed"]: data["value"].values.tobytes() for cell, data in results}


EXPECTED = {seed: cells.expected(seed).tobytes() for seed in range(100)}


def _first(count: int) -> dict[int, bytes]:
    return {seed: EXPECTED[seed] for seed in range(count)}


def test_sweep_on_a_grid_has_its_axes(tmp_path):
    grid = {"seed": range(2), "L": [10, 10**12], "kind": ["a", "b"], "pair": [[1, 2], (3, 4)]}
    data = lp.sweep(cells.draws, grid, tmp_path, HERE)
    assert data.value.dims == ("seed", "L", "kind", "pair", "value_0")
    assert data.value.dtype == np.float64
    assert data.value.sel(seed=1, L=1e12, kind="b", pair="[3, 4]").values.tobytes() == EXPECTED[1]
    assert all((data.value[i] == cells.expected(i)).all() for i in range(2))
    assert data.attrs["failures"] == ""
    data.to_netcdf(tmp_path / "all.nc")
    assert xr.load_dataset(tmp_path / "all.nc").value.equals(data.value)


def test_sweep_joins_cells_with_own_dimensions(tmp_path):
    data = lp.sweep(cells.steps, {"n": [3, 2]}, tmp_path, HERE)
    assert data.square.values.tolist() == [[0, 1, 4], [0, 1, pytest.approx(np.nan, nan_ok=True)]]
    assert data.step.values.tolist() == [0, 0.5, 1]
    assert data.whole.values.tolist() == [3, 2]
    assert data.sure.dtype == bool
    assert data.name.values.tolist() == ["a", "a"]
    assert data.attrs == {"units": "seconds", "failures": ""}
    same = lp.sweep(cells.steps, {"n": [3, 2]}, tmp_path, HERE)
    assert same.identical(data)
    with pytest.raises(ValueError, match="name of an axis; received step"):
        lp.sweep(cells.steps, {"n": [2], "step": [1]}, tmp_path, HERE)


def test_sweep_needs_equal_sizes_of_dimensions_without_coordinates(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "expected", lambda seed: np.zeros(seed))
    with pytest.raises(ValueError, match=r"must fit together.*value_0.*lp\.iterate"):
        lp.sweep(cells.draws, {"seed": [2, 3]}, tmp_path, HERE)


def test_sweep_shows_failed_cells_as_nan(tmp_path):
    grid = {"seed": [0, 1], "fault": [None, "raises"]}
    with pytest.warns(UserWarning, match="2 of 4 cells failed"):
        data = lp.sweep(cells.faulty, grid, tmp_path, HERE)
    assert np.isnan(data.value.sel(fault='"raises"')).all()
    assert (data.value.sel(fault="null") == [cells.expected(0), cells.expected(1)]).all()
    assert data.attrs["failures"].splitlines() == [
        f'{{"seed": {seed}, "fault": "raises"}}: ZeroDivisionError: on purpose' for seed in (0, 1)
    ]
    with pytest.raises(RuntimeError, match=r"every cell failed.*on purpose(.|\n)*in faulty"):
        lp.sweep(cells.faulty, {"seed": [0], "fault": ["raises"]}, tmp_path, HERE)


def test_sweep_joins_coordinates_although_the_first_cell_failed(tmp_path):
    with pytest.warns(UserWarning, match="1 of 3 cells failed"):
        data = lp.sweep(cells.steps, {"n": [-1, 2, 3]}, tmp_path, HERE)
    assert data.label.sel(n=3).values.tolist() == ["a", "b", "c"]
    assert data.label.sel(n=2).values.tolist()[:2] == ["a", "b"]
    assert data.square.isnull().sum(dim="step").values.tolist() == [3, 1, 0]
    assert "must return no empty dimension" in data.attrs["failures"]


def test_iterate_yields_unlike_cells_and_failures(tmp_path):
    wanted: list[dict] = [
        {"seed": 0},
        {"seed": 1, "fault": "raises", "nested": {"a": (1, np.float64(2.5))}},
        {"seed": 2, "fault": "exits"},
        {"seed": 3, "fault": "returns a list"},
        {"seed": 4, "fault": "returns nothing"},
        {"seed": 5, "fault": "returns a function"},
    ]
    found = {
        cell["seed"]: (cell, r) for cell, r in lp.iterate(cells.faulty, wanted, tmp_path, HERE)
    }
    assert [found[i][0] for i in range(6)] == wanted
    reasons = {seed: r.reason for seed, (_, r) in found.items() if isinstance(r, Failure)}
    assert reasons[1] == "ZeroDivisionError: on purpose"
    assert reasons[2] == "SystemExit: on purpose"
    assert reasons[3].startswith("TypeError: a cell must return an xarray.Dataset or a dict")
    assert reasons[4].startswith("ValueError: a cell must return no empty dimension")
    assert set(reasons) == {1, 2, 3, 4, 5}
    assert isinstance(found[1][1], Failure)
    assert 'raise ZeroDivisionError("on purpose")' in found[1][1].traceback
    assert len(list(tmp_path.iterdir())) == 1


def test_iterate_computes_only_missing_and_damaged_cells(tmp_path):
    def computed(count):
        log = tmp_path / "log"
        log.write_text("")
        wanted = [{"seed": seed, "log": str(log)} for seed in range(count)]
        assert _values(lp.iterate(cells.draws, wanted, tmp_path / "cells", HERE)) == _first(count)
        return sorted(map(int, log.read_text().split()))

    assert computed(3) == [0, 1, 2]
    assert computed(6) == [3, 4, 5]
    assert computed(6) == []
    files = sorted((tmp_path / "cells").glob("*.nc"))
    files[0].write_bytes(files[0].read_bytes()[:-9])
    files[1].write_bytes(b"")
    files[2].write_bytes(b"not netCDF")
    files[3].write_bytes(files[4].read_bytes())  # of another cell
    files[5].unlink()
    assert len(computed(6)) == 5
    assert computed(6) == []


def test_iterate_computes_again_when_code_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "written_by_a_user.py"

    def result(value):
        module.write_text(f"def f(cell, key): return {{'x': {value}}}\n")
        sys.modules.pop(module.stem, None)
        f = __import__(module.stem).f
        [(_, data)] = lp.iterate(f, [{"a": 1}], tmp_path / "cells", HERE)
        assert isinstance(data, xr.Dataset)
        return float(data.x), len(list((tmp_path / "cells").iterdir()))

    assert result(1.0) == (1, 1)
    assert result(22.0) == (22, 2)
    assert result(1.0) == (1, 2)
    package = tmp_path / "package"
    package.mkdir()
    (package / "changed.py").touch()
    monkeypatch.setattr(_provenance, "PACKAGE", package)
    _provenance.source_digest.cache_clear()
    try:
        assert result(1.0) == (1, 3)
    finally:
        _provenance.source_digest.cache_clear()


def test_iterate_fails_where_a_worker_has_other_code(tmp_path, monkeypatch):
    monkeypatch.setattr(_sweep, "_version", lambda function, found=["1+b", "1+a"]: found.pop())
    [(_, failure)] = lp.iterate(cells.draws, SEEDS[:1], tmp_path, HERE)
    assert isinstance(failure, Failure)
    assert "must run the code of the sweep, 1+a; received 1+b" in failure.reason


def test_iterate_gives_keys_that_depend_on_seed_and_configuration_alone(tmp_path):
    def drawn(wanted, seed, folder):
        results: Any = lp.iterate(cells.normal, wanted, tmp_path / folder, HERE, seed)
        return {json.dumps(cell): data["value"].values.tolist() for cell, data in results}

    both = [{"a": 1, "b": 2}, {"a": 2, "b": 2}]
    first = drawn(both, 3, "first")
    assert drawn([{"a": 7}, both[1], both[0]], 3, "second").items() >= first.items()
    assert drawn(both, 4, "first") != first
    digest = hashlib.sha256(b'3\n{"a": 1, "b": 2}').digest()
    words = np.array([int.from_bytes(digest[i : i + 4], "big") for i in (0, 4)], np.uint32)
    expected = jax.random.normal(jax.random.wrap_key_data(jnp.asarray(words)), (3,))
    assert first[json.dumps(both[0])] == expected.tolist()
    [(_, failure), _] = lp.iterate(cells.normal, both, tmp_path, HERE)
    assert isinstance(failure, Failure)  # without a seed there is no key


@pytest.mark.slow
def test_iterate_names_the_cell_that_kills_its_process(tmp_path):
    faults = {1: {"fault": "dies"}, 3: {"fault": "dies once", "marker": str(tmp_path / "died")}}
    wanted = [{"seed": seed, **faults.get(seed, {})} for seed in range(6)]
    results = list(lp.iterate(cells.faulty, wanted, tmp_path / "cells", 2))
    [(culprit, failure)] = [(c, r) for c, r in results if isinstance(r, Failure)]
    assert culprit == wanted[1]
    assert failure.reason.startswith("its process died")
    rest = _values((c, r) for c, r in results if c != culprit)
    assert rest == {seed: EXPECTED[seed] for seed in range(6) if seed != 1}
    assert (tmp_path / "died").exists()


DRIVER = """
import sys
import largeprompt as lp
from tests import cells

def doubled(cell, key):
    return {"value": 2 * cells.draws(cell, key)["value"]}

if __name__ == "__main__":
    wanted = [{"seed": seed, "sleep": float(sys.argv[2])} for seed in range(int(sys.argv[3]))]
    for cell, data in lp.iterate(doubled, wanted, sys.argv[1], 2):
        print(cell["seed"], data.value.values.tobytes().hex(), flush=True)
"""


@contextmanager
def _driver(tmp_path, sleep, count, script=DRIVER):
    """A script that computes in two processes; it is killed at the end of the block."""
    (tmp_path / "driver.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "driver.py", "cells", str(sleep), str(count)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_iterate_of_a_stopped_driver_leaves_no_worker_and_resumes(tmp_path, how):
    """SIGKILL to the driver; SIGINT, as Ctrl-C, to all processes."""
    with _driver(tmp_path, 0.05, 40) as driver:
        for _ in range(5):
            assert driver.stdout is not None
            assert driver.stdout.readline()
        workers = psutil.Process(driver.pid).children()
        assert len(workers) >= 2
        if how == signal.SIGINT:
            os.killpg(driver.pid, how)
        else:
            driver.kill()
        _, errors = driver.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    assert ("KeyboardInterrupt" in errors) is (how == signal.SIGINT)
    files = list((tmp_path / "cells").glob("*.nc"))
    assert 5 <= len(files) < 40
    assert sum(path.stat().st_size > 0 for path in files) >= 5
    with _driver(tmp_path, 0.05, 40) as driver:
        printed, errors = driver.communicate(timeout=120)
    assert (driver.returncode, errors) == (0, "")
    found = dict(line.split() for line in printed.splitlines())
    assert found == {str(s): (2 * cells.expected(s)).tobytes().hex() for s in range(40)}


@pytest.mark.slow
def test_iterate_in_an_unguarded_script_says_what_is_missing(tmp_path):
    script = DRIVER.replace('if __name__ == "__main__":', "if True:")
    with _driver(tmp_path, 0, 1, script) as driver:
        _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert "worker processes must be able to start; received one that ended at once" in errors


@pytest.mark.slow
def test_iterate_on_the_executor_of_a_dask_cluster(tmp_path):
    """Two processes, of which one dies."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    wanted: list[dict] = [{"seed": seed} for seed in range(4)]
    wanted[1] |= {"fault": "dies once", "marker": str(tmp_path / "died")}
    wanted[2] |= {"fault": "raises"}
    folder = tmp_path / "cells"
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        results = list(lp.iterate(cells.faulty, wanted, folder, client.get_executor()))
    [(failed, failure)] = [(c, r) for c, r in results if isinstance(r, Failure)]
    assert failed == wanted[2]
    assert failure.reason == "ZeroDivisionError: on purpose"
    rest = _values((c, r) for c, r in results if c != failed)
    assert rest == {seed: EXPECTED[seed] for seed in (0, 1, 3)}


@pytest.mark.slow
def test_iterate_on_a_pool_of_the_user_that_breaks(tmp_path):
    wanted = [{"seed": 0}, {"seed": 1, "fault": "dies"}, {"seed": 2}]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        results = dict((c["seed"], r) for c, r in lp.iterate(cells.faulty, wanted, tmp_path, pool))
    assert isinstance(results[1], Failure)
    assert "BrokenProcessPool" in results[1].reason
    again = [{"seed": 0}, {"seed": 2}]
    assert _values(lp.iterate(cells.faulty, again, tmp_path, HERE)).keys() == {0, 2}


@pytest.mark.slow
def test_iterate_stops_its_processes_when_it_is_closed(tmp_path):
    wanted = [{"seed": 0}, *({"seed": seed, "sleep": 60} for seed in range(1, 4))]
    results = lp.iterate(cells.draws, wanted, tmp_path, 2)
    assert next(iter(results))[0] == wanted[0]
    begun = time.monotonic()
    results.close()
    assert time.monotonic() - begun < 20
    assert not [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
