"""`largeprompt reproduce` as a user meets it: with studies of a moment here, with all real ones in test_paper.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from largeprompt.cli import app, reproduce
from largeprompt.reproduce import studies
from largeprompt.reproduce.report import folder, page
from largeprompt.reproduce.report.runners import by_sweep
from largeprompt.reproduce.studies import STUDIES, at_least, at_most, record
from largeprompt.reproduce.studies.record import Job, from_dataset


def _run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def _study(name, compute):
    """A study from a function that returns data and checks."""
    checks = []

    def measure(config, key):
        data, checks[:] = compute(config, key)
        return data

    real = STUDIES["lemma-2.1"]
    return replace(
        real,
        name=name,
        quick={"n": 3},
        full={"n": 4},
        measure=measure,
        examine=lambda data: list(checks),
    )


def _sound(config, key):
    data = xr.Dataset({"gap": ("step", [0.1, 0.01, np.nan])}, {"step": [1, 2, 3]})
    return data, [at_most("a [made-up] statement", 0.0, 0.5), at_least("≥", 1.0, 0.0, "control")]


def _drawn(config, key):
    """The same with data over lengths, which have a figure: these take a second."""
    lengths = np.array([10.0, 100.0, np.inf])
    return xr.Dataset({"gap": ("length", [0.1, 0.01, 0.0])}, {"length": lengths}), _sound(
        config, key
    )[1]


@pytest.fixture
def calls(monkeypatch):
    """Three quick studies in place of the real ones; the list says which were computed."""
    computed = []

    def counted(name):
        def compute(config, key):
            computed.append(name)
            return _sound(config, key)

        return compute

    made = {}
    for module in (studies, record, folder, page):  # all imported before one of them is changed
        monkeypatch.setattr(module, "STUDIES", made)
    for name in ("first", "second", "third"):
        made[name] = _study(name, counted(name))
    return computed


def _break(name, compute):
    record.STUDIES[name] = _study(name, compute)


def test_everything_is_written_and_the_summary_printed(calls, tmp_path):
    out = tmp_path / "results"
    _break("second", _drawn)
    result = _run("reproduce", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert calls == ["first", "third"]
    assert "6 of 6 checks hold, in 3 studies." in result.output
    assert "[made-up]" in result.output
    assert str(out / "index.html") in result.output.replace("\n", "")
    written = ["data/first.nc", "data/third.nc", "figures/second.pdf", "figures/second.png"]
    for path in written:
        assert (out / path).stat().st_size > 500


def test_existing_results_are_refused_kept_or_completed(calls, tmp_path):
    out = str(tmp_path)
    assert _run("reproduce", "--out", out, "--study", "second").exit_code == 0
    before = (tmp_path / "data" / "second.nc").read_bytes()
    refused = _run("reproduce", "--out", out)
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    result = _run("reproduce", "--out", out, "--resume")
    assert result.exit_code == 0
    assert "kept      second" in result.stderr
    assert calls == ["second", "first", "third"]
    assert (tmp_path / "data" / "second.nc").read_bytes() == before


@pytest.mark.parametrize("change", [["--seed", "1"], ["--full"]])
def test_results_of_another_seed_or_scale_are_not_mixed(calls, tmp_path, change):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    refused = _run("reproduce", "--out", str(tmp_path), "--resume", *change)
    assert refused.exit_code == 2
    assert "another --out" in refused.stderr


def test_a_folder_of_something_else_is_left_alone(calls, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for options in ([], ["--resume"]):
        assert _run("reproduce", "--out", str(tmp_path), *options).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not calls


def test_damaged_and_outdated_results_are_computed_again_and_said(calls, tmp_path, monkeypatch):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    first = tmp_path / "data" / "first.nc"
    first.write_bytes(first.read_bytes()[:200])
    result = _run("reproduce", "--out", str(tmp_path), "--resume")
    assert result.exit_code == 0
    assert "replacing first" in result.stderr
    assert calls == ["first", "second", "third", "first"]
    monkeypatch.setattr(record, "code_version", lambda: "other code")
    assert _run("reproduce", "--out", str(tmp_path), "--resume").exit_code == 0
    assert calls[4:] == ["first", "second", "third"]


@pytest.fixture
def stored(calls, tmp_path, monkeypatch):
    """A folder with three stored studies; the page is left out, these tests read the summary."""
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    monkeypatch.setattr(page, "write_report", lambda folder, stored: folder / "index.html")
    return tmp_path


def _assert_lost(result, reason):
    """The second study is named, with the reason, and counts as not held."""
    text = " ".join(result.stdout.replace("│", " ").split())
    assert result.exit_code == 1
    assert "4 of 4 checks hold, in 2 of 3 studies; no result: second." in text
    assert f"second no result {reason}" in text


def test_report_notices_every_flipped_bit(stored):
    """300 random positions, fixed: every flip is damage; ten of them go through the command."""
    path = stored / "data" / "second.nc"
    content = path.read_bytes()
    positions = np.random.default_rng(0).choice(8 * len(content), 300, replace=False)
    for i, position in enumerate(positions):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        assert list(folder.load_all(stored).lost) == ["second"]
        if i < 10:
            _assert_lost(_run("report", str(stored)), "damaged: it")
    path.write_bytes(content)
    assert _run("report", str(stored)).exit_code == 0


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def _extended(path):
    path.write_bytes(path.read_bytes() + b"\0")


def _emptied(path):
    path.write_bytes(b"")


def _with_another_verdict(path):
    with xr.open_dataset(path, engine="scipy") as file:
        changed = file.load().assign_attrs(verdict="fails")
    changed.to_netcdf(path, engine="scipy")


def _exchanged(path):
    path.write_bytes((path.parent / "first.nc").read_bytes())


DAMAGE = {
    "truncated": (_truncated, "damaged: its checksum does not match"),
    "extended": (_extended, "damaged: its checksum does not match"),
    "empty": (_emptied, "damaged: it has no checksum"),
    "verdict": (_with_another_verdict, "damaged: its checksum does not match"),
    "exchanged": (_exchanged, "damaged: it holds the study 'first'"),
    "deleted": (lambda path: path.unlink(), "missing: no result is stored"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_report_names_a_damaged_study_and_resume_mends_it(stored, calls, damage):
    spoil, reason = DAMAGE[damage]
    spoil(stored / "data" / "second.nc")
    _assert_lost(_run("report", str(stored)), reason)
    calls.clear()
    result = _run("reproduce", "--out", str(stored), "--resume")
    assert result.exit_code == 0
    assert calls == ["second"]
    if reason.startswith("damaged: "):
        assert f"replacing second: damaged, {reason.removeprefix('damaged: ')}" in result.stderr
    assert _run("report", str(stored)).exit_code == 0


def test_the_page_names_a_damaged_study(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    assert "no result" not in (tmp_path / "index.html").read_text()
    _truncated(tmp_path / "data" / "second.nc")
    assert _run("report", str(tmp_path)).exit_code == 1
    text = (tmp_path / "index.html").read_text()
    assert "<code>second</code> (damaged: its checksum does not match)" in text


def test_a_verdict_is_computed_from_the_stored_checks(stored):
    """A record whose verdict was changed before its checksum was made: the checks decide."""
    found = folder.load(stored, "second")
    assert found is not None
    values = found.check_value.copy(data=[1.0, 1.0])  # the claim is: at most 0.5
    folder.store(stored, found.assign(check_value=values))
    result = _run("report", str(stored))
    assert result.exit_code == 1
    assert "fails" in result.stdout
    folder.store(stored, found.assign_attrs(verdict="fails", evidence="none"))
    result = _run("report", str(stored))
    assert result.exit_code == 0
    assert "fails" not in result.stdout


def test_results_of_another_seed_copied_into_a_folder_do_not_count(stored, tmp_path):
    other = tmp_path / "other"
    assert _run("reproduce", "--out", str(other), "--seed", "1").exit_code == 0
    (stored / "data" / "second.nc").write_bytes((other / "data" / "second.nc").read_bytes())
    _assert_lost(_run("report", str(stored)), "computed at another scale")


def test_a_report_covers_the_studies_asked_for(calls, tmp_path):
    out = str(tmp_path)
    assert _run("reproduce", "--out", out, "--study", "second").exit_code == 0
    assert _run("report", out).exit_code == 0
    text = (tmp_path / "index.html").read_text()
    assert "Not asked for" in text
    assert "Not in this report" not in text
    assert _run("reproduce", "--out", out, "--resume", "--study", "first").exit_code == 0
    (tmp_path / "data" / "second.nc").unlink()
    assert _run("report", out).exit_code == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"scale": "quick", "seed": 0}',
        b'{"scale": 1, "seed": 0, "studies": []}',
    ],
)
def test_a_damaged_manifest_is_one_clear_line(stored, content):
    (stored / "reproduce.json").write_bytes(content)
    for command in (["report", str(stored)], ["reproduce", "--out", str(stored), "--resume"]):
        result = _run(*command)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: reproduce.json must hold the scale, the seed")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_verdicts_are_printed_where_the_page_cannot_be_written(calls, tmp_path, command):
    (tmp_path / "results").mkdir()
    out = tmp_path / "results"
    assert _run("reproduce", "--out", str(out)).exit_code == 0
    (out / "index.html").unlink()
    (out / "index.html").mkdir()  # replacing it is an OSError, as on a full disk
    options = ["--resume", "--out"] if command == "reproduce" else []
    result = _run(command, *options, str(out))
    assert result.exit_code == 2
    assert "6 of 6 checks hold, in 3 studies." in result.stdout
    assert "error: [Errno" in result.stderr


@pytest.mark.parametrize("options", [["--workers", "0"], ["--workers", "-1"]])
def test_a_number_of_workers_is_refused_before_anything_is_written(calls, tmp_path, options):
    out = tmp_path / "results"
    result = _run("reproduce", *options, "--out", str(out))
    assert result.exit_code == 2
    assert "--workers" in result.stderr
    assert not out.exists()


def test_a_folder_without_results_does_not_block_the_next_run(calls, tmp_path):
    both = ["--workers", "1", "--cluster", "tcp://nowhere"]
    assert _run("reproduce", *both, "--out", str(tmp_path)).exit_code == 2
    assert _run("reproduce", "--out", str(tmp_path), "--seed", "5").exit_code == 0


def test_an_interrupted_run_says_how_to_continue_and_does(calls, tmp_path):
    def interrupt(config, key):
        raise KeyboardInterrupt

    sound = record.STUDIES["second"]
    _break("second", interrupt)
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "1 of 3 studies are stored" in result.stderr
    assert f"largeprompt reproduce --resume --out {tmp_path}" in result.stderr.replace("\n", "")
    record.STUDIES["second"] = sound
    assert _run("reproduce", "--resume", "--out", str(tmp_path)).exit_code == 0
    assert calls == ["first", "second", "third"]


def test_an_interrupted_run_of_a_sweep_keeps_what_was_finished(calls, tmp_path, monkeypatch):
    """In this process, which knows the fake studies: finished ones are stored and reused."""
    monkeypatch.setattr(
        reproduce, "_runner", lambda out, workers, cluster: by_sweep(out, None, None)
    )

    def finite(config, key):
        return xr.Dataset({"gap": ("step", [0.1])}, {"step": [1]}), [at_most("a", 0.0, 0.5)]

    def interrupt(config, key):
        raise KeyboardInterrupt

    for name, compute in (("first", finite), ("second", finite), ("third", interrupt)):
        _break(name, compute)
    options = ["--out", str(tmp_path), "--workers", "2"]
    result = _run("reproduce", *options)
    assert result.exit_code == 130
    assert "2 of 3 studies are stored" in result.stderr
    assert f"--resume --out {tmp_path} --workers 2" in result.stderr.replace("\n", "")
    (tmp_path / "data" / "second.nc").unlink()  # its cell is still there
    _break("third", finite)
    result = _run("reproduce", "--resume", *options)
    assert result.exit_code == 0
    assert "kept      first" in result.stderr
    assert "reused    second: holds" in result.stderr
    assert "computed  third: holds" in result.stderr


def test_a_study_that_raises_does_not_stop_the_others(calls, tmp_path):
    def fail(config, key):
        raise RuntimeError("no convergence")

    _break("second", fail)
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "error: second could not be computed: RuntimeError('no convergence')" in result.stderr
    assert calls == ["first", "third"]
    assert "Not in this report" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([at_most("a claim", 1.0, 0.5)], "fails"),
        ([at_most("a claim", float("nan"), 0.5)], "fails"),
        ([at_most("a claim", 0.0, 0.5), at_most("a control", 1.0, 0.5, "control")], "not testable"),
        ([], "not testable"),
    ],
)
def test_the_exit_status_is_the_verdict(calls, tmp_path, checks, word):
    _break("second", lambda config, key: (xr.Dataset(), checks))
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert word in result.output
    assert _run("report", str(tmp_path)).exit_code == 1


def test_report_recomputes_nothing(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    page = (tmp_path / "index.html").read_bytes()
    (tmp_path / "index.html").unlink()
    result = _run("report", str(tmp_path))
    assert result.exit_code == 0
    assert (tmp_path / "index.html").read_bytes() == page
    assert len(calls) == 3


@pytest.mark.parametrize("make", [False, True])
def test_report_of_nothing_is_refused(calls, tmp_path, make):
    if make:
        (tmp_path / "data").mkdir()
    result = _run("report", str(tmp_path))
    assert result.exit_code == 2
    assert "largeprompt reproduce" in result.stderr


def test_an_unknown_study_is_refused_before_anything_is_written(calls, tmp_path):
    out = tmp_path / "results"
    result = _run("reproduce", "--study", "fourth", "--out", str(out))
    assert result.exit_code == 2
    assert "first, second, third" in result.stderr
    assert not out.exists()


def test_records_survive_the_file(calls, tmp_path):
    job = Job("first", "quick", 7)
    folder.open_folder(tmp_path, "quick", 7, resume=False, studies=["first"])
    made = record.compute(job)
    folder.store(tmp_path, made)
    found = folder.load(tmp_path, "first")
    assert found is not None
    xr.testing.assert_identical(from_dataset(found).data, from_dataset(made).data)
    assert from_dataset(found).checks == from_dataset(made).checks
    assert from_dataset(found).verdict == from_dataset(made).verdict
    assert json.loads(found.attrs["configuration"]) == {"n": 3}
    assert found.attrs["seed"] == "7"
    assert 0 <= float(found.attrs["compile_seconds"]) <= float(found.attrs["seconds"])
    assert record.fingerprint(job) != record.fingerprint(Job("first", "full", 7))
    assert record.fingerprint(job) != record.fingerprint(Job("first", "quick", 8))


def test_studies_are_listed():
    result = _run("studies")
    assert result.exit_code == 0
    assert all(name in result.output for name in STUDIES)


def test_studies_on_processes_find_the_same(tmp_path):
    """Real studies: another process knows no other. Whatever computes them, the numbers are the same."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    names = ["--study", "softmax-operator"]
    assert _run("reproduce", *names, "--out", str(alone)).exit_code == 0
    result = _run("reproduce", *names, "--out", str(together), "--workers", "1")
    assert result.exit_code == 0, result.output
    first, second = (folder.load(path, "softmax-operator") for path in (alone, together))
    assert first is not None
    assert second is not None
    for name in ("check_value", "dense_against_numpy"):
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-12)
    assert first.attrs["fingerprint"] == second.attrs["fingerprint"]
