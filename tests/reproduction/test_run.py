"""`python -m reproduction` with made-up studies; tests/test_paper.py runs the real ones."""

import ast
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xarray as xr

from reproduction import catalogue, folder, table
from reproduction.catalogue import load
from reproduction.record import compute, from_dataset, job
from reproduction.report import static
from reproduction.study import Study

from .here import named, run, study_file

ROOT = Path(__file__).parents[2]
DRAWN = "panels=panels"


@pytest.fixture
def three(tmp_path):
    """Options that name three made-up studies."""
    folder = tmp_path / "mine"
    folder.mkdir()
    return named([study_file(folder, name) for name in ("first", "second", "third")])


def _lines(text, begin):
    return [line for line in text.splitlines() if line.startswith(begin)]


def _read(out, name):
    record = folder.read(out, name)
    assert record is not None
    return record


def _dates(out):
    return {name: _read(out, name).attrs["date"] for name in folder.stored_names(out)}


def test_main_writes_everything_and_prints_a_table(three, tmp_path, capsys):
    out = tmp_path / "out"
    study_file(tmp_path / "mine", "second", options=DRAWN)
    assert run(*three, "--out", out) == 0
    shown = capsys.readouterr()
    assert "This project: 3 of 3 statements hold." in shown.out
    assert "6 of 6 checks hold." in shown.out
    assert "a [made-up] statement: 0.1 (at most 0.5)" in shown.out
    assert f"page: {out / 'index.html'}" in shown.err
    for path in ("data/first.nc", "data/third.nc", *static.figure_names("second")):
        assert (out / path).stat().st_size > 500
    text = (out / "index.html").read_text(encoding="utf-8")
    assert "Claim second" in text
    assert "python -m reproduction --study FILE" in text
    assert "Not asked for" in text


def test_main_stores_what_compute_made(three, tmp_path):
    file = Path(three[1])
    assert run(*three[:2], "--out", tmp_path / "out", "--seed", 7) == 0
    found = _read(tmp_path / "out", "first")
    made = compute(job(file, "quick", 7))
    xr.testing.assert_equal(found, made)
    assert from_dataset(found, load(file)) == from_dataset(made, load(file))
    assert json.loads(found.attrs["configuration"]) == {"n": 3}
    assert found.attrs["seed"] == "7"


def test_main_resumes_and_never_overwrites(three, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(*three[2:4], "--out", out) == 0
    before = _dates(out)
    assert run(*three, "--out", out) == 2
    assert "--resume" in capsys.readouterr().err
    assert run(*three, "--out", out, "--resume") == 0
    assert _dates(out)["second"] == before["second"]
    written = sorted(_lines(capsys.readouterr().err, ("kept", "computed ")))
    assert [line.split(" (")[0] for line in written] == [
        "computed  first: holds",
        "computed  third: holds",
        "kept      second: same configuration, key and code",
    ]


@pytest.mark.parametrize("change", [["--seed", "1"], ["--full"]])
def test_main_does_not_mix_seeds_or_scales(three, tmp_path, capsys, change):
    assert run(*three[:2], "--out", tmp_path / "out") == 0
    assert run(*three, "--out", tmp_path / "out", "--resume", *change) == 2
    assert "another --out" in capsys.readouterr().err


def test_main_leaves_a_folder_of_other_files_alone(three, tmp_path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for options in ([], ["--resume"]):
        assert run(*three, "--out", out, *options) == 2
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_main_computes_a_changed_study_again_and_draws_it(tmp_path, capsys):
    """A changed number changes result, figure and page; equal ones change none of them."""
    mine, out = study_file(tmp_path, "mine", options=DRAWN), tmp_path / "out"
    parts = ["data/mine.nc", *static.figure_names("mine"), "index.html"]

    def made(*options):
        assert run("--study", mine, "--out", out, *options) == 0
        return [(out / part).read_bytes() for part in parts]

    first = made()
    assert made("--resume") == first
    study_file(tmp_path, "mine", value=0.05, options=DRAWN)
    assert all(a != b for a, b in zip(made("--resume"), first, strict=True))
    assert "computed  mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"bound": 0.01}, "fails"),
        ({"bound": "np.nan"}, "fails"),
        ({"before": "raise RuntimeError('no convergence')"}, "no result"),
        ({"before": "return xr.Dataset({'gap': ('step', [0.1, np.nan])})"}, "no result"),
        ({"before": "return None"}, "no result"),
    ],
)
def test_main_exit_status_follows_the_verdict(three, tmp_path, capsys, changes, word):
    options = [*three[:2], "--study", study_file(tmp_path, "bad", **changes)]
    out = tmp_path / "out"
    assert run(*options, "--out", out) == 1
    assert re.search(rf"^(project)? +bad +{word} ", capsys.readouterr().out, re.MULTILINE)
    assert run("--report", out, *options) == 1
    text = (out / "index.html").read_text(encoding="utf-8")
    assert ("Not in this report" in text) == (word == "no result")
    assert ('id="bad" open' in text) == (word != "no result")
    study_file(tmp_path, "bad")
    assert run(*options, "--out", out, "--resume") == 0
    assert "Not in this report" not in (out / "index.html").read_text(encoding="utf-8")


def test_main_forgets_an_older_result_of_a_study_that_fails_now(tmp_path):
    mine, out = study_file(tmp_path, "mine", options=DRAWN), tmp_path / "out"
    assert run("--study", mine, "--out", out) == 0
    assert (out / "figures/mine.pdf").exists()
    study_file(tmp_path, "mine", before="raise RuntimeError('no convergence')")
    assert run("--study", mine, "--out", out, "--resume") == 1
    assert not (out / "data/mine.nc").exists()
    assert not (out / "figures/mine.pdf").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--study", "fourth"], "a study must be a file, or one of softmax-operator, lemma-2.1"),
        (["--study", "no/such/file.py"], "a study must be a Python file"),
        (["--workers", "0"], "must be at least 1"),
        (["--json", "--csv"], "not allowed with"),
    ],
)
def test_main_checks_its_options_before_anything_is_written(tmp_path, capsys, options, text):
    out = tmp_path / "out"
    assert run(*options, "--out", out) == 2
    assert text in capsys.readouterr().err
    assert not out.exists()


def test_main_names_the_command_that_fetches_weights(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LARGEPROMPT_MODELS", str(tmp_path / "nowhere"))
    out = tmp_path / "out"
    assert run("--study", "real-transformers", "--out", out) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "largeprompt models fetch tabpfn smollm2 minilm" in said
    assert not out.exists()


def test_report_computes_nothing_and_writes_the_page_again(three, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(*three, "--out", out) == 0
    before, dates = (out / "index.html").read_bytes(), _dates(out)
    (out / "index.html").unlink()
    capsys.readouterr()
    assert run("--report", out, *three, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["study"], row["verdict"]) for row in found["rows"]] == [
        ("first", "holds"),
        ("second", "holds"),
        ("third", "holds"),
    ]
    assert (found["checks"], found["hold"]) == (6, 6)
    assert ((out / "index.html").read_bytes(), _dates(out)) == (before, dates)


def _renamed(path):
    path.write_bytes(path.with_name("first.nc").read_bytes())


DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "its file is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "its file is damaged"),
    "exchanged": (_renamed, "its file holds the result of 'first'"),
    "deleted": (lambda path: path.unlink(), "it was deleted"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_report_names_a_damaged_result_and_resume_repairs_it(three, tmp_path, capsys, damage):
    out, (spoil, reason) = tmp_path / "out", DAMAGE[damage]
    assert run(*three, "--out", out) == 0
    spoil(out / "data" / "second.nc")
    assert run("--report", out, *three) == 1
    shown = capsys.readouterr().out
    assert re.search(rf"second +no result +{re.escape(reason)}", shown)
    assert "This project: 2 of 2 statements hold." in shown
    assert "No result: second." in shown
    assert f"<code>second</code> ({reason.split(chr(39))[0]}" in (out / "index.html").read_text()
    assert run(*three, "--out", out, "--resume") == 0


def test_report_runs_and_deletes_nothing_that_a_folder_names(tmp_path, capsys):
    """A folder of somebody else names files, studies and code; none of them is touched."""
    mine = study_file(tmp_path, "mine", options=DRAWN)
    out, victim = tmp_path / "out", tmp_path / "victim.txt"
    assert run("--study", mine, "--out", out) == 0
    victim.write_text("mine")
    (out / "derived.json").write_text(json.dumps({"../victim.txt": ["", ""]}))
    (out / "data" / "..victim.missing").write_text("<script>alert(1)</script>")
    study_file(tmp_path, "mine", before="raise SystemExit('run')")
    assert run("--report", out) == 1  # the study's file is not named, so it is not run
    assert "name its file with --study" in capsys.readouterr().out
    assert victim.read_text() == "mine"
    assert (out / "figures" / "mine.pdf").exists()
    assert "<script>alert" not in (out / "index.html").read_text()


def test_report_needs_a_folder_of_results(tmp_path, capsys):
    assert run("--report", tmp_path) == 2
    assert "written by `python -m reproduction`" in capsys.readouterr().err


def test_report_refuses_results_of_two_seeds(three, tmp_path, capsys):
    for seed in (0, 1):
        assert run(*three, "--out", tmp_path / str(seed), "--seed", seed) == 0
    (tmp_path / "1/data/second.nc").replace(tmp_path / "0/data/second.nc")
    assert run("--report", tmp_path / "0", *three) == 2
    assert "one seed; received quick 0, quick 1" in capsys.readouterr().err
    assert run(*three, "--out", tmp_path / "0", "--resume") == 2


def test_conclusion_tells_paper_and_project_apart_and_names_restrictions(tmp_path):
    options = 'of_paper=True, restriction="for some of the starts"'
    files = [
        study_file(tmp_path, "limited", options=options),
        study_file(tmp_path, "other"),
        study_file(tmp_path, "wrong", bound=0.01),
    ]
    out = tmp_path / "out"
    assert run(*named(files), "--out", out) == 1
    found = {load(file).name: file for file in map(Path, files)}
    pairs = {
        name: (load(file), from_dataset(_read(out, name), load(file)))
        for name, file in found.items()
    }
    assert table.conclusion(pairs, {}) == [
        "The paper: 1 of 1 statements hold, 1 of them with a restriction: Claim limited "
        "(for some of the starts).",
        "This project: 1 of 2 statements hold. Not: Claim wrong.",
        "5 of 6 checks hold.",
    ]
    text = (out / "index.html").read_text(encoding="utf-8")
    order = ["The paper: 1 of 1", "Statements of the paper", "#limited", "Statements of this"]
    order += ["#other", "#wrong"]
    assert sorted(order, key=text.index) == order


def test_list_names_every_study(capsys):
    assert run("--list") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in catalogue.catalogue())
    assert "real-transformers runs if it is named" in shown


def test_catalogue_finds_a_new_file_and_nothing_else_changes(monkeypatch, tmp_path, capsys):
    study_file(tmp_path, "added", options="place=3.05")
    study_file(tmp_path, "_helper")
    for name in ("proposition_3_1.py", "finite_prompts.py"):
        (tmp_path / name).write_text(f"from reproduction.studies.{name[:-3]} import STUDY\n")
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    monkeypatch.setattr(
        catalogue.importlib, "import_module", lambda name: _executed(tmp_path, name)
    )
    catalogue.catalogue.cache_clear()
    try:
        assert list(catalogue.catalogue()) == ["finite-prompts", "added", "proposition-3.1"]
    finally:
        catalogue.catalogue.cache_clear()


def _executed(place, name):
    module = type(sys)("made_up")
    exec((place / f"{name.rpartition('.')[2]}.py").read_text(), vars(module))
    return module


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("_flows.py", {"theorem-4.3", "theorem-5.1"}),
        ("_error_families.py", {"proposition-3.1", "proposition-3.4"}),
        ("_independent_errors.py", {"proposition-3.1", "proposition-3.4"}),  # of a helper
        ("section_6.py", {"section-6"}),
        ("page.py", set()),
    ],
)
def test_version_changes_with_what_a_study_imports(monkeypatch, changed, affected):
    def versions():
        catalogue.version.cache_clear()
        return {name: catalogue.version(file) for name, file in catalogue.catalogue().items()}

    before, exact = versions(), Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: exact(path) + b"#" * (path.name == changed)
    )
    after = versions()
    catalogue.version.cache_clear()
    assert {name for name in before if before[name] != after[name]} == affected


@pytest.mark.parametrize("name", ["../victim", "a/b", "", "Upper", "a b", "-a"])
def test_study_names_are_parts_of_file_names(name):
    with pytest.raises(ValueError, match="the name of a study"):
        Study(name, "", "", "", "", "", {}, {}, lambda *_: xr.Dataset(), lambda _: [])


def test_reproduction_uses_public_names_only():
    """Modules and attributes of the library without underscore."""
    for path in (ROOT / "reproduction").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not str(node.module).startswith("largeprompt"), path
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("lp."):
                private = re.search(r"\._(?!_version__)", ast.unparse(node))
                assert not private, (path, ast.unparse(node))


def _started(out, files, *options):
    words = [sys.executable, "-m", "reproduction", *named(files), "--out", str(out), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=ROOT, **pipes)


def _ended(process, within=120):
    said, complained = process.communicate(timeout=within)
    return process.returncode, said, complained


@pytest.mark.slow
def test_main_interrupted_says_how_to_continue(tmp_path):
    out = tmp_path / "out"
    files = [study_file(tmp_path, "fast"), study_file(tmp_path, "slow", before="time.sleep(600)")]
    process = _started(out, files, "--workers", "2")
    while not (out / "data" / "fast.nc").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    status, _, said = _ended(process)
    assert status == 130, said
    assert "interrupted: 1 of 2 studies are stored" in said
    assert f"python -m reproduction --resume --out {out} --study" in said
    before = _dates(out)
    study_file(tmp_path, "slow")
    assert run("--resume", "--out", out, *named(files)) == 0
    assert _dates(out)["fast"] == before["fast"]


@pytest.mark.slow
def test_main_survives_a_study_that_kills_its_process(tmp_path):
    out = tmp_path / "out"
    files = [
        study_file(tmp_path, "deadly", before="os.kill(os.getpid(), 9)"),
        study_file(tmp_path, "sound"),
    ]
    status, said, complained = _ended(_started(out, files, "--workers", "1"))
    assert status == 1, complained
    assert re.search(r"project +sound +holds", said)
    assert re.search(r"deadly +no result", said)


@pytest.mark.slow
def test_main_twice_at_once_in_one_folder_loses_nothing(tmp_path):
    out = tmp_path / "out"
    files = [study_file(tmp_path, name, before="time.sleep(1)") for name in ("one", "two")]
    both = [_started(out, [file], "--resume", "--workers", "1") for file in files]
    for status, said, complained in map(_ended, both):
        assert status == 0, complained
        assert "2 of 2 checks hold." in said or "4 of 4 checks hold." in said
    assert folder.stored_names(out) == ["one", "two"]
    assert run("--report", out, *named(files)) == 0
