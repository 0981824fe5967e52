"""`largeprompt reproduce` and `report` with fake studies; test_paper.py runs the real ones."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from largeprompt import _provenance
from largeprompt._progress import progress_bar
from largeprompt.cli.commands import app
from largeprompt.reproduce import folder, record, studies
from largeprompt.reproduce.record import Job, from_dataset
from largeprompt.reproduce.report import page
from largeprompt.reproduce.studies import STUDIES, at_least, at_most
from largeprompt.reproduce.studies.study import INFINITE

from ..terminal import on_a_terminal
from .fake_studies import fake_study


def _run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def _study(name, compute):
    """A study from a function that returns data and checks."""
    checks = []

    def measure(config, key):
        data, checks[:] = compute(config, key)
        return data

    return fake_study(measure, lambda data: list(checks), name)


def _sound(config, key):
    gap = xr.Variable("step", [0.1, 0.01, np.nan], {INFINITE: "at the last step"})
    checks = [at_most("a [made-up] statement", 0.0, 0.5), at_least("≥", 1.0, 0.0, "control")]
    return xr.Dataset({"gap": gap}, {"step": [1, 2, 3]}), checks


def _drawn(config, key):
    """The same with data over lengths, which get a figure: that takes a second."""
    lengths = np.array([10.0, 100.0, np.inf])
    data = xr.Dataset({"gap": ("length", [0.1, 0.01, 0.0])}, {"length": lengths})
    return data, _sound(config, key)[1]


@pytest.fixture
def calls(monkeypatch):
    """Three fake studies in place of the real ones; the list says which were computed."""
    computed = []

    def counted(name):
        def compute(config, key):
            computed.append(name)
            return _sound(config, key)

        return compute

    made = {name: _study(name, counted(name)) for name in ("first", "second", "third")}
    monkeypatch.setattr(studies, "STUDIES", made)
    return computed


def _replace(name, compute):
    studies.STUDIES[name] = _study(name, compute)


def _interrupt(config, key):
    raise KeyboardInterrupt


def _cell(out, name):
    """The file of a stored result."""
    return out / "cells" / f"{folder.read_manifest(out).studies[name]}.cell"


def _load(out, name):
    found = folder.load(out, folder.read_manifest(out).studies[name])
    assert found is not None
    return found


def test_reproduce_writes_everything_and_prints_a_summary(calls, tmp_path):
    out = tmp_path / "results"
    _replace("second", _drawn)
    result = _run("reproduce", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert calls == ["first", "third"]
    assert "6 of 6 checks hold, in 3 studies." in result.output
    assert "[made-up]" in result.output
    assert str(out / "index.html") in result.output.replace("\n", "")
    lead = re.search(r'<figure class="lead">.*?</figure>', (out / "index.html").read_text(), re.S)
    assert lead is not None
    assert re.search(r"Made by <code>largeprompt reproduce --study \w+</code>", lead[0])
    for path in ["data/first.nc", "data/third.nc", "figures/second.pdf", "figures/second.png"]:
        assert (out / path).stat().st_size > 500
    with xr.open_dataset(out / "data" / "second.nc", engine="scipy") as exported:
        xr.testing.assert_identical(exported.load(), _load(out, "second"))


def test_reproduce_resumes_and_never_overwrites(calls, tmp_path):
    out = str(tmp_path)
    assert _run("reproduce", "--out", out, "--study", "second").exit_code == 0
    before = _cell(tmp_path, "second").read_bytes()
    refused = _run("reproduce", "--out", out)
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    result = _run("reproduce", "--out", out, "--resume")
    assert result.exit_code == 0
    assert "kept      second" in result.stderr
    assert calls == ["second", "first", "third"]
    assert _cell(tmp_path, "second").read_bytes() == before


@pytest.mark.parametrize("change", [["--seed", "1"], ["--full"]])
def test_reproduce_does_not_mix_seeds_or_scales(calls, tmp_path, change):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    refused = _run("reproduce", "--out", str(tmp_path), "--resume", *change)
    assert refused.exit_code == 2
    assert "another --out" in refused.stderr


def test_reproduce_leaves_a_folder_of_other_files_alone(calls, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for options in ([], ["--resume"]):
        assert _run("reproduce", "--out", str(tmp_path), *options).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not calls


def test_reproduce_replaces_damaged_and_outdated_results(calls, tmp_path, monkeypatch):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    first = _cell(tmp_path, "first")
    first.write_bytes(first.read_bytes()[:200])
    result = _run("reproduce", "--out", str(tmp_path), "--resume")
    assert result.exit_code == 0
    assert "replacing first: damaged" in result.stderr
    assert calls == ["first", "second", "third", "first"]
    monkeypatch.setattr(_provenance, "source_digest", lambda without="": "other code")
    result = _run("reproduce", "--out", str(tmp_path), "--resume")
    assert result.exit_code == 0
    assert "replacing second: computed by other code" in result.stderr
    assert calls[4:] == ["first", "second", "third"]
    assert not first.exists()
    assert len(list((tmp_path / "cells").glob("*.cell"))) == 3


@pytest.fixture
def stored(calls, tmp_path, monkeypatch):
    """A folder with three stored studies; the page is left out, as these tests read the summary."""
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    monkeypatch.setattr(page, "write_report", lambda folder, stored: folder / "index.html")
    return tmp_path


def _assert_lost(result, reason):
    """The second study is named with the reason, and does not count as holding."""
    text = " ".join(result.stdout.replace("│", " ").split())
    assert result.exit_code == 1
    assert "4 of 4 checks hold, in 2 of 3 studies; no result: second." in text
    assert f"second no result {reason}" in text


@pytest.mark.slow
def test_report_notices_every_flipped_bit(stored):
    """300 random positions from a fixed seed; ten of them go through the command."""
    path = _cell(stored, "second")
    content = path.read_bytes()
    positions = np.random.default_rng(0).choice(8 * len(content), 300, replace=False)
    for i, position in enumerate(positions):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        assert list(folder.load_all(stored).lost) == ["second"]
        if i < 10:
            _assert_lost(_run("report", str(stored)), "damaged: ")
    path.write_bytes(content)
    assert _run("report", str(stored)).exit_code == 0


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def _extended(path):
    path.write_bytes(path.read_bytes() + b"\0")


def _with_another_verdict(path):
    content = path.read_bytes()
    assert content.count(b"holds") > 0
    path.write_bytes(content.replace(b"holds", b"fails"))


def _exchanged(path):
    path.write_bytes(_cell(path.parents[1], "first").read_bytes())


DAMAGE = {
    "truncated": (_truncated, "damaged: checksum does not match"),
    "extended": (_extended, "damaged: checksum does not match"),
    "empty": (lambda path: path.write_bytes(b""), "damaged: truncated"),
    "verdict": (_with_another_verdict, "damaged: checksum does not match"),
    "exchanged": (_exchanged, "damaged: contains another cell"),
    "deleted": (lambda path: path.unlink(), "missing: no result is stored"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_report_names_a_damaged_study_and_resume_repairs_it(stored, calls, damage):
    spoil, reason = DAMAGE[damage]
    spoil(_cell(stored, "second"))
    _assert_lost(_run("report", str(stored)), reason)
    calls.clear()
    result = _run("reproduce", "--out", str(stored), "--resume")
    assert result.exit_code == 0
    assert calls == ["second"]
    if reason.startswith("damaged: "):
        assert f"replacing second: damaged, {reason.removeprefix('damaged: ')}" in result.stderr
    assert _run("report", str(stored)).exit_code == 0


def test_report_page_names_a_damaged_study(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    assert "no result" not in (tmp_path / "index.html").read_text()
    _truncated(_cell(tmp_path, "second"))
    assert _run("report", str(tmp_path)).exit_code == 1
    text = (tmp_path / "index.html").read_text()
    assert "<code>second</code> (damaged: checksum does not match)" in text


def test_from_dataset_computes_the_verdict_from_the_checks(stored):
    """A verdict that was changed in the record has no effect; changed checks have."""
    found = _load(stored, "second")
    values = found.check_value.copy(data=[1.0, 1.0])  # the claim is: at most 0.5
    assert from_dataset(found.assign(check_value=values)).verdict.word == "fails"
    assert from_dataset(found.assign_attrs(verdict="fails")).verdict.word == "holds"


def test_report_ignores_results_of_another_seed(stored, tmp_path):
    other = tmp_path / "other"
    assert _run("reproduce", "--out", str(other), "--seed", "1").exit_code == 0
    _cell(stored, "second").write_bytes(_cell(other, "second").read_bytes())
    _assert_lost(_run("report", str(stored)), "damaged: contains another cell")


def test_report_covers_the_studies_asked_for(calls, tmp_path):
    out = str(tmp_path)
    assert _run("reproduce", "--out", out, "--study", "second").exit_code == 0
    assert _run("report", out).exit_code == 0
    text = (tmp_path / "index.html").read_text()
    assert "Not asked for" in text
    assert "Not in this report" not in text
    assert _run("reproduce", "--out", out, "--resume", "--study", "first").exit_code == 0
    _cell(tmp_path, "second").unlink()
    assert _run("report", out).exit_code == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"scale": "quick", "seed": 0}',
        b'{"scale": 1, "seed": 0, "studies": {}}',
        b'{"scale": "quick", "seed": 0, "studies": ["first"]}',
    ],
)
def test_read_manifest_rejects_a_damaged_one_in_one_line(stored, content):
    (stored / "reproduce.json").write_bytes(content)
    for command in (["report", str(stored)], ["reproduce", "--out", str(stored), "--resume"]):
        result = _run(*command)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: reproduce.json must hold the scale, the seed")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_summary_is_printed_if_the_page_cannot_be_written(calls, tmp_path, command):
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


@pytest.mark.parametrize("part", ["data", "figure", "page"])
def test_summary_is_printed_on_a_full_disk(calls, tmp_path, monkeypatch, part):
    """Results are stored; then nothing more can be written."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    _replace("second", _drawn)
    place = {"data": (folder, "export"), "figure": (page, "update_figure")}
    monkeypatch.setattr(*place.get(part, (page, "atomic_write")), full)
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "6 of 6 checks hold, in 3 studies." in result.stdout
    assert result.stderr.endswith("error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("options", [["--workers", "0"], ["--workers", "-1"]])
def test_reproduce_checks_workers_before_anything_is_written(calls, tmp_path, options):
    out = tmp_path / "results"
    result = _run("reproduce", *options, "--out", str(out))
    assert result.exit_code == 2
    assert "--workers" in result.stderr
    assert not out.exists()


def test_reproduce_starts_again_in_a_folder_without_results(calls, tmp_path):
    both = ["--workers", "1", "--cluster", "tcp://nowhere"]
    assert _run("reproduce", *both, "--out", str(tmp_path)).exit_code == 2
    assert _run("reproduce", "--out", str(tmp_path), "--seed", "5").exit_code == 0


def test_reproduce_interrupted_says_how_to_continue(calls, tmp_path):
    sound = studies.STUDIES["second"]
    _replace("second", _interrupt)
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "1 of 3 studies are stored" in result.stderr
    assert f"largeprompt reproduce --resume --out {tmp_path}" in result.stderr.replace("\n", "")
    studies.STUDIES["second"] = sound
    result = _run("reproduce", "--resume", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert "kept      first" in result.stderr
    assert "computed  third: holds" in result.stderr
    assert calls == ["first", "second", "third"]


def test_reproduce_does_not_name_kept_results_as_computed(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path), "--study", "second").exit_code == 0
    result = _run("reproduce", "--out", str(tmp_path), "--resume")
    lines = sorted(re.sub(r" \(.*", "", line) for line in result.stderr.splitlines())
    assert lines == [
        "computed  first: holds",
        "computed  third: holds",
        "kept      second: same configuration, key and code",
    ]
    again = _run("reproduce", "--out", str(tmp_path), "--resume")
    assert again.exit_code == 0
    assert "computed" not in again.stderr
    assert calls == ["second", "first", "third"]


def _drawn_from(last):
    def compute(config, key):
        data, checks = _drawn(config, key)
        return data.assign(gap=("length", [0.1, 0.01, last])), checks

    return compute


@pytest.mark.slow
def test_reproduce_never_shows_a_stale_figure(calls, tmp_path, monkeypatch):
    """A changed number changes figure, data and page; equal numbers change none of them."""
    files = ["figures/second.pdf", "figures/second.png", "data/second.nc", "index.html"]

    def run():
        assert _run("reproduce", "--out", str(tmp_path), "--resume").exit_code == 0
        return [(tmp_path / file).read_bytes() for file in files]

    _replace("second", _drawn_from(0.0))
    first = run()
    written = [(tmp_path / file).stat().st_mtime_ns for file in files[:3]]
    assert run() == first
    assert [(tmp_path / file).stat().st_mtime_ns for file in files[:3]] == written
    (tmp_path / files[1]).write_bytes(b"tampered with")
    (tmp_path / files[2]).write_bytes(b"tampered with")
    assert run() == first
    _replace("second", _drawn_from(0.0))
    studies.STUDIES["second"] = dataclasses.replace(
        studies.STUDIES["second"], measure=_other_numbers(studies.STUDIES["second"].measure)
    )
    monkeypatch.setattr(_provenance, "source_digest", lambda without="": "other code")
    changed = run()
    assert all(new != old for new, old in zip(changed, first, strict=True))


def _other_numbers(measure):
    def changed(config, key):
        data = measure(config, key)
        return data.assign(gap=2 * data.gap)

    return changed


def test_write_report_removes_figures_of_lost_studies(calls, tmp_path):
    _replace("second", _drawn)
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    _truncated(_cell(tmp_path, "second"))
    assert _run("report", str(tmp_path)).exit_code == 1
    assert not (tmp_path / "figures" / "second.png").exists()
    assert not (tmp_path / "data" / "second.nc").exists()
    assert (tmp_path / "data" / "first.nc").exists()


def test_summary_separates_the_paper_from_this_project(calls, tmp_path):
    third = dataclasses.replace(studies.STUDIES["third"], of_paper=True)
    studies.STUDIES["third"] = third
    result = _run("reproduce", "--out", str(tmp_path))
    rows = re.findall(r"^(paper|project) +(\w+)", result.stdout, re.MULTILINE)
    assert rows == [("paper", "third"), ("project", "first"), ("project", "second")]
    text = (tmp_path / "index.html").read_text()
    order = ["Statements of the paper", "#third", "Statements of this project", "#first", "#second"]
    assert sorted(order, key=text.index) == order


def test_write_report_says_how_many_statements_hold(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    assert "All 3 statements hold, in 6 checks" in (tmp_path / "index.html").read_text()
    _replace("second", lambda config, key: (xr.Dataset(), [at_most("a claim", 1.0, 0.5)]))
    _cell(tmp_path, "second").unlink()
    assert _run("reproduce", "--out", str(tmp_path), "--resume").exit_code == 1
    text = (tmp_path / "index.html").read_text()
    assert "2 of 3 statements hold, in 5 checks; the table below names the others" in text
    assert '<details class="study" id="second" open>' in text
    assert '<details class="study" id="first">' in text


def test_write_report_says_how_to_run_studies_that_need_weights(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    text = (tmp_path / "index.html").read_text()
    assert "All 3 statements hold" in text
    for study in studies.OPTIONAL_STUDIES.values():
        assert f"largeprompt models fetch {' '.join(study.weights)}" in text
        assert f"largeprompt reproduce --study {study.name}" in text


def test_progress_bar_of_reproduce_is_the_only_one(calls, tmp_path, monkeypatch):
    """A study that shows its own progress, as descent does, does not draw over it."""

    def with_progress(config, key):
        with progress_bar("steps of the study", 10) as advance:
            advance(3)
        return _sound(config, key)

    _replace("second", with_progress)
    terminal = on_a_terminal(monkeypatch)
    app(["reproduce", "--out", str(tmp_path)], standalone_mode=False)
    assert "second" in terminal.getvalue()
    assert "steps of the study" not in terminal.getvalue()


def test_stored_names_reads_no_result(stored):
    _truncated(_cell(stored, "second"))
    _cell(stored, "third").unlink()
    assert folder.stored_names(stored) == ["first", "second"]


def test_reproduce_continues_after_a_study_that_raises(calls, tmp_path):
    def fail(config, key):
        raise RuntimeError("no convergence")

    _replace("second", fail)
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "error: second could not be computed: RuntimeError: no convergence" in result.stderr
    assert calls == ["first", "third"]
    assert "Not in this report" in (tmp_path / "index.html").read_text()


def test_reproduce_rejects_undeclared_nan(calls, tmp_path):
    data = xr.Dataset({"gap": ("step", [np.nan])})
    _replace("second", lambda config, key: (data, [at_most("a claim", 0.0, 0.5)]))
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "second could not be computed: FloatingPointError" in result.stderr


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([at_most("a claim", 1.0, 0.5)], "fails"),
        ([at_most("a claim", float("nan"), 0.5)], "fails"),
        ([at_most("a claim", 0.0, 0.5), at_most("a control", 1.0, 0.5, "control")], "not testable"),
        ([], "not testable"),
    ],
)
def test_reproduce_exit_status_follows_the_verdict(calls, tmp_path, checks, word):
    _replace("second", lambda config, key: (xr.Dataset(), checks))
    result = _run("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert word in result.output
    assert _run("report", str(tmp_path)).exit_code == 1


def test_report_computes_nothing_again(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    page = (tmp_path / "index.html").read_bytes()
    (tmp_path / "index.html").unlink()
    result = _run("report", str(tmp_path))
    assert result.exit_code == 0
    assert (tmp_path / "index.html").read_bytes() == page
    assert len(calls) == 3


@pytest.mark.parametrize("make", [False, True])
def test_report_needs_a_folder_of_results(calls, tmp_path, make):
    if make:
        (tmp_path / "data").mkdir()
    result = _run("report", str(tmp_path))
    assert result.exit_code == 2
    assert "largeprompt reproduce" in result.stderr


def test_reproduce_checks_names_of_studies_before_anything_is_written(calls, tmp_path):
    out = tmp_path / "results"
    result = _run("reproduce", "--study", "fourth", "--out", str(out))
    assert result.exit_code == 2
    assert "first, second, third" in result.stderr
    assert not out.exists()


def test_load_returns_what_compute_made(calls, tmp_path):
    made = record.compute(Job("first", "quick", 7))
    assert _run("reproduce", "--seed", "7", "--out", str(tmp_path)).exit_code == 0
    found = _load(tmp_path, "first")
    xr.testing.assert_identical(from_dataset(found).data, from_dataset(made).data)
    assert from_dataset(found).checks == from_dataset(made).checks
    assert from_dataset(found).verdict == from_dataset(made).verdict
    assert json.loads(found.attrs["configuration"]) == {"n": 3}
    assert found.attrs["seed"] == "7"
    assert 0 <= float(found.attrs["compile_seconds"]) <= float(found.attrs["seconds"])
    assert found.attrs["code_version"].startswith("0.")


def test_studies_lists_all():
    result = _run("studies")
    assert result.exit_code == 0
    assert all(name in result.output for name in STUDIES)


@pytest.mark.slow
def test_reproduce_on_processes_gives_the_same_numbers(tmp_path):
    """A real study, since other processes do not know the fake ones."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    names = ["--study", "softmax-operator"]
    assert _run("reproduce", *names, "--out", str(alone)).exit_code == 0
    result = _run("reproduce", *names, "--out", str(together), "--workers", "1")
    assert result.exit_code == 0, result.output
    first, second = (_load(path, "softmax-operator") for path in (alone, together))
    for name in ("check_value", "dense_against_numpy"):
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-12)
    assert _cell(alone, "softmax-operator").name == _cell(together, "softmax-operator").name


def _study_versions(monkeypatch, changed):
    """The code version of every study after a change of one file of the package."""

    def read_bytes(path, exact=Path.read_bytes):
        return exact(path) + (b"# changed" if path.name == changed else b"")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        _provenance.source_digest.cache_clear()
        found = {name: studies.study_version(name) for name in STUDIES}
    _provenance.source_digest.cache_clear()
    return found


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("theorem_4_3.py", {"theorem-4.3", "theorem-5.1"}),  # imported by the other one
        ("section_6.py", {"section-6"}),
        ("mutants.py", set(STUDIES)),
        ("flow.py", set(STUDIES)),
        ("no such file.py", set()),
    ],
)
def test_study_version_changes_with_what_a_study_imports(monkeypatch, changed, affected):
    before, after = (_study_versions(monkeypatch, file) for file in ("", changed))
    assert {name for name in STUDIES if before[name] != after[name]} == affected


def test_report_in_json_is_the_table_of_verdicts(calls, tmp_path):
    assert _run("reproduce", "--out", str(tmp_path)).exit_code == 0
    result = _run("report", str(tmp_path), "--json")
    found = json.loads(result.stdout)
    assert [row["study"] for row in found["rows"]] == ["first", "second", "third"]
    assert {row["verdict"] for row in found["rows"]} == {"holds"}
    assert (found["facts"]["checks"], found["facts"]["hold"]) == (6, 6)
    assert found["facts"]["report"] == str(tmp_path / "index.html")
