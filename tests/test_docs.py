"""Links and names in the documents exist; their code and the examples run."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from largeprompt.reproduce.studies import every_study

from .site_builder import generated_pages

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _rows() -> list[list[str]]:
    """Cells of the table of docs/theory_map.md."""
    lines = (ROOT / "docs" / "theory_map.md").read_text().splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in table[1:]]


def test_theory_map_names_existing_files_and_studies():
    """Modules, tests and studies named in backticks exist; a cell without any says why."""
    rows = _rows()
    assert len(rows) > 10
    for _, _, *cells in rows:
        for cell, folder in zip(cells, (ROOT / "src" / "largeprompt", ROOT, None), strict=True):
            names = re.findall(r"`([^`]+)`", cell)
            assert names or re.match(r"none: \w+", cell), cell
            for name in names:
                assert (folder / name).is_file() if folder else name in every_study(), name


def test_every_study_is_on_the_theory_map():
    named = {name for row in _rows() for name in re.findall(r"`([^`]+)`", row[-1])}
    assert named == set(every_study())


def test_files_named_in_the_documents_exist():
    named = {
        (path.name, name)
        for path in documents()
        for name in re.findall(r"`((?:tests|src|examples|benchmarks)/[\w/.]+)`", path.read_text())
    }
    assert len(named) > 10
    assert not {(page, name) for page, name in named if not (ROOT / name).exists()}


def documents() -> list[Path]:
    """README and everything in docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(path: Path) -> tuple[str, str]:
    """The ```python blocks of a document, and its ```text blocks, which show their output."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", path.read_text(), flags=re.DOTALL)
    script = "\n".join(body for kind, body in blocks if kind == "python")
    return script, "".join(body for kind, body in blocks if kind == "text")


WITH_CODE = [path for path in documents() if _blocks(path)[0]]


@pytest.fixture(scope="module")
def read(tmp_path_factory) -> tuple[Path, dict[str, tuple[str, str]]]:
    """Output and error of all documents and examples, run in one new process and empty folder."""
    folder = tmp_path_factory.mktemp("reader")
    jobs = {path.name: (_blocks(path)[0], []) for path in WITH_CODE}
    for path in EXAMPLES:
        jobs[path.name] = (path.read_text(), [f"{path.stem}.png"])
    command = [sys.executable, str(ROOT / "tests" / "reader.py")]
    done = subprocess.run(
        command,
        cwd=folder,
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=True,
    )
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_code_in_documents_runs_and_prints_what_it_shows(path, read):
    """Words are compared exactly, numbers to one unit of the last digit shown."""
    printed, error = read[1][path.name]
    assert not error
    assert same_text(printed, _blocks(path)[1]), printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path, read):
    """Each script answers in a few lines and draws a figure."""
    folder, found = read
    printed, error = found[path.name]
    assert not error
    assert len(printed.splitlines()) > 3
    assert (folder / f"{path.stem}.png").stat().st_size > 10_000


def test_the_readme_has_code():
    assert ROOT / "README.md" in WITH_CODE


def test_every_example_asks_a_question():
    """The gallery shows the first line of a script as its title."""
    assert len(EXAMPLES) >= 9
    for path in EXAMPLES:
        title, _, rest = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")
        assert title.endswith("?"), path.name
        assert len(rest.split()) > 10, path.name


_NUMBER = re.compile(r"(\d+(?:\.(\d*))?(?:e([+-]?\d+))?)")


def same_text(printed: str, shown: str) -> bool:
    """Whether words are the same, and numbers to one unit of the last digit shown."""

    def unit(match: re.Match) -> float:
        """One unit of the last digit, at least 1e-12 of the number (rounding differs)."""
        last_digit = 10.0 ** (int(match[3] or 0) - len(match[2] or ""))
        return max(1.001 * last_digit, 1e-12 * float(match[1]))

    pairs = list(zip(_NUMBER.finditer(printed), _NUMBER.finditer(shown), strict=False))
    return _NUMBER.sub("#", printed) == _NUMBER.sub("#", shown) and all(
        abs(float(p[1]) - float(s[1])) <= (unit(s) if {".", "e"} & set(s[1]) else 0)
        for p, s in pairs
    )


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("error 8.9e-05", True),
        ("error 9.1e-05", True),
        ("error 9.2e-05", False),
        ("error 9.0e-04", False),
        ("errors 9.0e-05", False),
        ("error 9.0e-05 1", False),
    ],
)
def test_comparison_of_printed_text(printed, same):
    assert same_text(printed, "error 9.0e-05") is same


def test_whole_numbers_are_compared_exactly():
    assert not same_text("12 of 13", "12 of 12")


_NO_PROSE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)  # code, formulas


def test_links_in_documents_exist():
    linked = set()
    for path in documents():
        prose = _NO_PROSE.sub("", path.read_text())
        targets = re.findall(r"\]\(([^)#]+)\)", prose)
        linked |= {path.parent / target for target in targets if not target.startswith("http")}
    assert len(linked) > 10
    made = {ROOT / "docs" / page for page in generated_pages()}  # when the site is built
    assert not {target for target in linked - made if not target.exists()}
