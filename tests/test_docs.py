"""What the documents point to exists; the examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from largeprompt.studies import STUDIES

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _rows() -> list[list[str]]:
    """The cells of the table of docs/theory_map.md."""
    lines = (ROOT / "docs" / "theory_map.md").read_text().splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in table[1:]]


def test_every_cell_of_the_theory_map_leads_somewhere():
    """Modules, tests and studies named in backticks exist; a cell without any says why."""
    rows = _rows()
    assert len(rows) > 10
    for _, _, *cells in rows:
        for cell, folder in zip(cells, (ROOT / "src" / "largeprompt", ROOT, None), strict=True):
            names = re.findall(r"`([^`]+)`", cell)
            assert names or re.match(r"none: \w+", cell), cell
            for name in names:
                assert (folder / name).is_file() if folder else name in STUDIES, name


def test_every_study_is_on_the_theory_map():
    named = {name for row in _rows() for name in re.findall(r"`([^`]+)`", row[-1])}
    assert named == set(STUDIES)


def test_files_named_in_the_documents_exist():
    for path in (ROOT / "docs").glob("*.md"):
        for name in re.findall(r"`((?:tests|src|examples|benchmarks)/[\w/.]+)`", path.read_text()):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path, tmp_path):
    """Each script as a reader would run it, from a folder of its own; one also draws."""
    draws = "sys.argv" in path.read_text()
    command = [sys.executable, "-W", "error", str(path), *["figure.png"] * draws]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3
    assert (tmp_path / "figure.png").exists() == draws


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
