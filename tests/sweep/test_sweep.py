"""Cells: addresses, keys, precision, allowed results, storage, and consolidation."""

import importlib
import json
import os
import pty
import random
import sys

import jax
import numpy as np
import pytest
import xarray as xr

import largeprompt as lp
from largeprompt import _provenance
from largeprompt.sweep import cell_file
from largeprompt.sweep.store import Store

from . import cells, processes
from .processes import draws, driving, expected, values

KEPT = [{"what": "finite"}, {"what": "nan", "allowed": True}, {"what": "infinite", "allowed": True}]
REFUSED = {
    "NaN or infinity in value": [{"what": "nan"}, {"what": "infinite"}, {"what": "none"}],
    "NaN or infinity in bound": [{"what": "finite", "attribute": True}],
    "int32": [{"what": "large"}],
    "complex": [{"what": "complex"}],
    "none along entry": [{"what": "empty"}],
}


def test_sweep_computes_only_missing_cells(tmp_path):
    first = draws(3).run(tmp_path)
    assert (first.computed, first.reused) == (3, 0)
    more = draws(5).run(tmp_path)
    assert (more.computed, more.reused) == (2, 3)
    assert values(more) == expected(5)
    os.remove(tmp_path / f"{more.cells[1].address}.cell")
    assert draws(5).run(tmp_path).computed == 1
    again = draws(5).run(tmp_path)
    os.remove(tmp_path / f"{more.cells[1].address}.cell")
    with pytest.raises(ValueError, match="must stay as the sweep left them"):
        again.consolidate()


def test_cell_address_depends_on_everything_that_determines_the_result(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "written_by_a_user.py"
    module.write_text(
        "def one(configuration, key): return {'x': 1.0}\ndef two(configuration, key): ...\n"
    )

    def address(name="one", configuration=None, key=None):
        cell = {"a": 1, "b": 2} if configuration is None else configuration
        return lp.Sweep(f"written_by_a_user:{name}", [cell], keys=[key]).cells[0].address

    base = address()
    assert address(configuration={"b": 2, "a": 1}) == base
    assert address(configuration={"b": np.int64(2), "a": np.int32(1)}) == base
    others = {
        address("two"),
        address(configuration={"a": 1, "b": 2.5}),
        address(key=0),
        address(key=1),
    }
    module.write_text(module.read_text().replace("1.0", "2.0 "))
    assert address() == base, "the code that is loaded is the old one"
    importlib.reload(sys.modules["written_by_a_user"])
    others.add(address())
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(_provenance, "PACKAGE", package)
    for name, changes in (
        ("measures.py", True),
        ("reproduce/texts/story.txt", True),
        ("reproduce/report/figures.py", False),
        ("cli/x.py", False),
    ):
        before = address()
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1\n")
        _provenance.source_digest.cache_clear()
        assert (address() != before) is changes
    _provenance.source_digest.cache_clear()
    assert len(others | {base}) == 6


def test_sweep_keys_are_jax_keys_that_depend_on_the_configuration_alone():
    configurations = lp.grid(sigma=[1.0, 2.0], L=[10, np.inf])
    assert configurations[1] == {"sigma": 1.0, "L": np.inf}
    for key in (7, 2**40 + 5):
        from_integer, from_jax, raw = (
            lp.Sweep(cells.draws, [{}], keys=[k]).cells[0].key
            for k in (key, jax.random.key(key), jax.random.PRNGKey(key))
        )
        assert from_integer == from_jax == raw
        assert from_jax == tuple(np.asarray(jax.random.key_data(jax.random.key(key))).tolist())
    forward = lp.Sweep(cells.draws, configurations, seed=3).cells
    backward = lp.Sweep(cells.draws, configurations[::-1], seed=3).cells
    assert forward == backward[::-1]
    other = lp.Sweep(cells.draws, configurations, seed=4).cells
    assert len({cell.key for cell in (*forward, *other)}) == 8


def test_sweep_runs_cells_in_64_bit_mode_and_restores_the_mode(tmp_path):
    """In a new process, with JAX in its default mode; the first cell imports JAX itself."""
    script = tmp_path / "precision.py"
    script.write_text(
        "import sys\n"
        "from largeprompt.sweep import Sweep\n"
        "def run(folder, keys, **where):\n"
        "    result = Sweep('tests.sweep.cells:jax_draws', [{}], keys=keys).run(folder, **where)\n"
        "    data = result.datasets[0]\n"
        "    return int(data.bits), data.value.values.tobytes().hex()\n"
        "if __name__ == '__main__':\n"
        "    print('jax' in sys.modules, run('a', [None])[0])\n"
        "    import jax\n"
        "    here, there = run('b', [5]), run('c', [5], workers=1)\n"
        "    print(here[0], here == there, jax.config.jax_enable_x64)\n"
        "    print(here[1])\n"
    )
    done = processes.python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = np.asarray(jax.random.normal(jax.random.key(5), (4,)))
    assert done.stdout.split() == ["False", "64", "64", "True", "False", drawn.tobytes().hex()]


def test_sweep_stores_results_bit_for_bit(tmp_path):
    made = cells.kinds({}, None)
    (kept,) = lp.Sweep(cells.kinds, [{}]).run(tmp_path).datasets
    assert kept is not None
    assert kept.attrs == made.attrs
    assert kept.number.attrs == made.number.attrs
    assert set(kept.coords) == set(made.coords)
    for name, variable in made.variables.items():
        assert kept[name].dims == variable.dims
        assert np.array_equal(kept[name].values, variable.values)
        if variable.dtype.kind == "f":
            assert kept[name].values.tobytes() == variable.values.tobytes()
            assert kept[name].dtype.isnative
    (plain,) = lp.Sweep(cells.returns, [{"what": "finite", "plain": True}]).run(tmp_path).datasets
    assert plain is not None
    assert (plain.list.dims, plain.list.values.tolist(), float(plain.number)) == (
        ("list_0",),
        [1.0],
        2.0,
    )


def test_sweep_fails_cells_with_non_finite_or_unstorable_results(tmp_path):
    refused = [(rule, case) for rule, cases in REFUSED.items() for case in cases]
    sweep = lp.Sweep(cells.returns, [*KEPT, *(case for _, case in refused)])
    result = sweep.run(tmp_path)
    assert result.computed == len(KEPT)
    for failure, (rule, case) in zip(result.failures, refused, strict=True):
        assert failure.configuration == case
        assert rule in failure.reason


def test_decode_detects_flipped_bits_and_truncation():
    whole = cell_file.encode(xr.Dataset({"x": ("i", np.arange(4.0))}), {"address": "a"})
    assert cell_file.decode(whole)[0].x.values.tolist() == [0, 1, 2, 3]
    for end in range(len(whole)):
        with pytest.raises(cell_file.Damaged, match=r"truncated|checksum does not match"):
            cell_file.decode(whole[:end])
    places = random.Random(0).sample(range(8 * len(whole)), 400)
    for place in places:
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(cell_file.Damaged, match=r"truncated|checksum does not match"):
            cell_file.decode(bytes(flipped))


def test_consolidate_stacks_cells_of_one_form(tmp_path):
    configurations = [
        {"seed": seed, "name": name, "large": 2**40 + seed, "nested": {"a": [seed]}}
        for seed in (0, 1)
        for name in "pq"
    ]
    result = lp.Sweep(cells.draws, configurations).run(tmp_path / "cells")
    result.write(tmp_path / "all.nc")
    with xr.open_dataset(tmp_path / "all.nc", engine="scipy") as file:
        data = file.load()
    rows = [np.random.default_rng(c["seed"]).normal(size=8) for c in configurations]
    assert np.array_equal(data.value.values, rows)
    assert data.value.dims == ("cell", "draw")
    for name in ("seed", "large"):
        assert data[name].values.tolist() == [c[name] for c in configurations]
    assert data.name.values.tolist() == ["p", "q", "p", "q"]
    assert [json.loads(text) for text in data.cell_configuration.values] == configurations
    assert [
        json.loads(text)["seed"] for text in data.cell_attributes.values
    ] == data.seed.values.tolist()
    assert data.cell_address.values.tolist() == [cell.address for cell in result.cells]
    assert data.cell_key.values.tolist() == ["null"] * 4
    assert (data.cell_seconds > 0).all()
    assert data.cell_jax.values.tolist() == [jax.__version__] * 4
    assert data.cell_backend.values.tolist() == [jax.default_backend()] * 4
    assert data.attrs["function"] == "tests.sweep.cells:draws"
    assert data.attrs["code"] == result.cells[0].code
    assert data.attrs["largeprompt"] == lp.__version__
    assert (data.attrs["layout"], data.attrs["cells"], data.attrs["missing_cells"]) == (
        "stacked",
        4,
        0,
    )


def test_consolidate_puts_different_cells_side_by_side(tmp_path):
    result = lp.Sweep(cells.ragged, lp.grid(n=[2, 3], seed=[0])).run(tmp_path / "cells")
    data = result.consolidate()
    assert data.attrs["layout"] == "side by side"
    for i, n in enumerate((2, 3)):
        assert data[f"cell{i}_value"].dims == (f"cell{i}_x",)
        assert data[f"cell{i}_value"].values.tolist() == [k / 2 for k in range(n)]
        assert data[f"cell{i}_cell_seconds"] == n
    assert data.n.values.tolist() == [2, 3]


def test_consolidate_keeps_types_and_attributes(tmp_path):
    result = lp.Sweep(cells.kinds, [{"i": 0}, {"i": 1}]).run(tmp_path / "cells")
    result.write(tmp_path / "all.nc")
    made = cells.kinds({}, None)
    with xr.open_dataset(tmp_path / "all.nc", engine="scipy", decode_timedelta=False) as file:
        data = file.load()
    for name, variable in made.variables.items():
        row = data[name] if name == "x" else data[name][1]
        assert np.array_equal(row.values, variable.values), name
    assert data.number.attrs["units"] == "seconds"


def test_sweep_reads_a_finished_folder_without_writing(tmp_path, monkeypatch):
    draws(2).run(tmp_path)
    monkeypatch.setattr(Store, "prepare", lambda _: pytest.fail("nothing is to be written"))
    assert values(draws(2).run(tmp_path)) == expected(2)


def test_sweep_shows_progress_on_a_terminal_only(tmp_path, capfd):
    draws(3).run(tmp_path)
    assert capfd.readouterr() == ("", "")
    ours, theirs = pty.openpty()
    shown = b""
    with driving(tmp_path, stderr=theirs, count=30, sleep=0.02) as driver:
        os.close(theirs)
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the terminal is closed: the driver has ended
                break
        assert driver.wait(timeout=60) == 0
    os.close(ours)
    assert b"30/30" in shown
    assert b"cells/s" in shown
