"""Links and names in the documents exist; their code and the examples run."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from operator import attrgetter
from pathlib import Path

import pytest
import typer

import largeprompt as lp
from largeprompt.cli.commands import app
from reproduction.catalogue import catalogue

from .site_builder import builder, generated_pages

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
gallery = builder("gallery")


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
                assert (folder / name).is_file() if folder else name in catalogue(), name


def test_files_named_in_the_documents_exist():
    named = {
        (path.name, name)
        for path in documents()
        for name in re.findall(r"`((?:tests|src|examples|benchmarks)/[\w/.]+)`", path.read_text())
    }
    assert len(named) > 10
    assert not {(page, name) for page, name in named if not (ROOT / name).exists()}


def test_commands_named_in_the_documents_exist():
    named = {
        (path.name, name)
        for path in [*documents(), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.html")]
        for name in re.findall(r"(?:`|^ {4}|^)largeprompt ([a-z]+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 5
    known = typer.main.get_group(app).commands
    assert not {(page, name) for page, name in named if name not in known}


def test_names_in_the_documents_exist():
    for path in documents():
        for name in set(re.findall(r"\blp\.([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)", path.read_text())):
            assert attrgetter(name)(lp), (path.name, name)


def documents() -> list[Path]:
    """README and everything in docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(path: Path) -> tuple[str, str]:
    """The ```python blocks of a document, and its ```text blocks, which show their output."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", path.read_text(), flags=re.DOTALL)
    script = "\n".join(body for kind, body in blocks if kind == "python")
    return script, "".join(body for kind, body in blocks if kind == "text")


WITH_CODE = [path for path in documents() if _blocks(path)[0]]


# Python that is not run with its page: the page, the first line of the block, and why
NOT_RUN_WITH_THE_PAGE = {
    ("compressed_decoder.md", "import numpy as np, torch, transformers, largeprompt as lp"): (
        "needs PyTorch; run by tests/models/test_compressed_decoder.py, which has imported it"
    ),
    ("devices.md", "# run.py, started once for each process: python run.py ADDRESS RANK"): (
        "one of two processes; tests/test_devices.py starts both"
    ),
    ("devices.md", "import jax, os"): (
        "a setting for the whole process; run by tests/test_benchmarks.py in its own"
    ),
    ("faq.md", "%env JAX_COMPILATION_CACHE_DIR=/tmp/largeprompt-programs"): "a line of a notebook",
    ("in_context_learner.md", "import numpy as np"): (
        "needs weights; run by tests/models/test_real_weights.py, which fetches them"
    ),
    ("in_context_learner.md", "recording = model.record(X[:200], y[:200], X[200:])"): (
        "goes on with the block before"
    ),
    (
        "real_transformers.md",
        'model, tokenizer = lp.models.load_pretrained("SmolLM2-135M-Instruct.Q4_1.gguf")',
    ): "needs weights; tests/models/test_recording.py does the same with small random models",
    ("sweeps.md", "from dask_jobqueue import SLURMCluster"): "needs a SLURM cluster",
}
_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _is_python(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False


def test_python_in_documents_is_run_or_says_why_not():
    """Blocks marked `python` are run with their page; others are listed above, with the reason."""
    others = set()
    for path in documents():
        text = path.read_text()
        for language, body in _FENCED.findall(text):
            assert language in {"python", "py", "text", "sh"}, (path.name, language)
            assert language != "sh" or not _is_python(body), (path.name, body)
            if language == "py":
                others.add((path.name, body.partition("\n")[0]))
        for block in re.findall(r"(?:^(?: {4}.*)?\n)+", _FENCED.sub("", text), re.MULTILINE):
            indented = textwrap.dedent(block).strip()
            assert not _is_python(indented), (path.name, indented)  # fence it as `python`
    assert others == set(NOT_RUN_WITH_THE_PAGE)


@pytest.fixture(scope="module")
def read(tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Output and error of all documents and examples, run in one new process and empty folder.

    What examples print and draw is kept where the gallery looks for it: the site, built by
    tests/test_site.py, does not run them again.
    """
    jobs = {path.name: (_blocks(path)[0], []) for path in WITH_CODE}
    for path in EXAMPLES:
        jobs[path.name] = (path.read_text(), [str(gallery.kept(path.stem)[0])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.reader"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=tmp_path_factory.mktemp("reader"),
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    for path in EXAMPLES:
        printed, error = found[path.name]
        if not error:
            gallery.kept(path.stem)[1].write_text(printed)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_code_in_documents_runs_and_prints_what_it_shows(path, read):
    """Words are compared exactly, numbers to one unit of the last digit shown."""
    printed, error = read[path.name]
    assert not error
    assert same_text(printed, _blocks(path)[1]), printed


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path, read):
    """Each script answers in a few lines and draws a figure."""
    printed, error = read[path.name]
    assert not error
    assert len(printed.splitlines()) > 3
    assert gallery.kept(path.stem)[0].stat().st_size > 10_000


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
