"""The tables of first calls, the page of performance, and the documented cache of programs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks import compression, page

ROOT = Path(__file__).parents[1]


def test_page_of_performance_is_made_from_the_stored_runs():
    assert page.PAGE.read_text() == page.page(), "run `python -m benchmarks.page`"


def test_tables_of_compression_are_made_from_the_stored_run():
    stored = json.loads((compression.RESULTS / "compression.json").read_text())
    assert (compression.RESULTS / "compression.md").read_text() == compression.as_text(stored)


def _documented_tables():
    """Tables of errors on the page of compression: rows of label and cells."""
    text = (ROOT / "docs" / "linearise_and_compress.md").read_text()
    text = text[text.index("## What it costs on real heads") :]
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    tables = [
        [[cell.strip() for cell in row.strip("|\n").split("|")] for row in table.splitlines()]
        for table in found
    ]
    return [table for table in tables if table[0][0] == "size in tokens"]


def test_documented_errors_of_compression_are_those_of_the_stored_run():
    """Medians and 90th percentiles, to the last digit that the page shows."""
    stored = json.loads((compression.RESULTS / "compression.json").read_text())
    cases = [
        {"": "decoder later"},
        {"": "decoder"},
        {"encoder": "encoder", "learner": "learner"},
        {f"score deviation {x}": f"synthetic, scores of deviation {x}" for x in (2, 5)},
    ]
    tables, seen = _documented_tables(), 0
    assert len(tables) == len(cases)
    for names, (title, _, *rows) in zip(cases, tables, strict=True):
        case = next(iter(names.values()))
        for label, *cells in rows:
            prefix, _, method = label.rpartition(": ")
            case = names[prefix] if prefix else case
            method = {"literal moments": "moments"}.get(method, method)
            lines = {x["size"]: x for x in stored[case]["lines"] if x["method"] == method}
            for size, cell in zip(title[1:], cells, strict=True):
                values = [lines[int(size)][name] for name in ("median", "percentile_90")]
                for shown, value in zip(cell.split(" / "), values, strict=False):
                    digits = len(shown.partition(".")[2])
                    assert abs(float(shown) - value) <= 0.5001 * 10.0**-digits, (case, method, size)
                    seen += 1
    assert seen == 2 * 5 * (6 + 5 + 8) + 5 * 8


def test_documented_tables_of_compression_are_those_of_the_stored_runs():
    text = (ROOT / "docs" / "linearise_and_compress.md").read_text()
    stored = json.loads(compression.TABLES.read_text())
    assert compression.times_as_text(stored["times"]) in text
    assert compression.gaussian_tokens_as_text(stored["gaussian tokens"]) in text
    errors = json.loads((compression.RESULTS / "compression.json").read_text())
    assert f"{compression.ahead(errors)}\n\n" in text


def test_ahead_names_every_method_with_a_smaller_error():
    def line(method, **errors):
        names = ("median", "mean", "percentile_90", "percentile_99")
        plain = {"method": method, "size": 4, "after_output": None} | dict.fromkeys(names, 1.0)
        return plain | errors

    lines = [
        line("gaussian tail"),
        line("moments", mean=0.5),
        line("random", mean=0.25, median=2.0),
        line("gaussian tail by attention mass", mean=0.1),  # a rule of the same method
    ]
    found = compression.ahead({"case": {"lines": lines}}).splitlines()
    assert found[2:] == ["| case | 4 | mean | 1 | random 0.25, moments 0.5 |"]


_COUNT = """
from benchmarks.fresh_process import Stages
stages = Stages()
stages.listen()
jax.jit(lambda x: x + 1)(1.0)
print(stages.compiled)
"""


def test_documented_lines_keep_compiled_programs(tmp_path):
    """A second process with the lines of docs/devices.md compiles nothing."""
    page = (ROOT / "docs" / "devices.md").read_text()
    block = re.search(r"```py\n(import jax, os\n.*?)```", page, re.DOTALL)
    assert block is not None
    environment = {name: value for name, value in os.environ.items() if "JAX_" not in name}
    compiled = [
        int(
            subprocess.run(
                [sys.executable, "-c", block[1] + _COUNT],
                cwd=ROOT,
                env=environment | {"HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert compiled[0] > 0
    assert compiled[1] == 0
    assert any((tmp_path / ".cache" / "largeprompt" / "programs").iterdir())
