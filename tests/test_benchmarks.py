"""The tables of first calls, the page of performance, and the documented cache of programs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import compression, page
from benchmarks.first_calls import COMPILES_NOTHING, GOALS
from benchmarks.fresh_process import CASES, YARDSTICK, Stages, covered
from benchmarks.rows import FirstCall

ROOT = Path(__file__).parents[1]


def test_covered_counts_overlaps_once():
    assert covered([(0.0, 2.0), (5.0, 6.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0


def test_stages_add_up_to_the_total():
    """Tracing inside lowering counts as lowering, and what is left of the total has run."""
    stages = Stages()
    stages.spans = {
        "trace": [(0.0, 2.0), (2.5, 3.0)],
        "lower": [(2.0, 4.0)],
        "compile": [(4.0, 9.0)],
    }
    assert stages.seconds(10.0) == {"compile": 5.0, "lower": 2.0, "trace": 2.0, "run": 1.0}


def test_goals_are_for_cases_that_are_measured():
    assert {*GOALS, COMPILES_NOTHING, YARDSTICK} <= set(CASES)


@pytest.mark.parametrize(
    ("ratio", "compiled", "goal", "compiles_nothing", "reached"),
    [
        (0.2, 5, 0.25, False, True),
        (0.3, 5, 0.25, False, False),
        (0.3, 5, None, False, None),
        (0.3, 0, None, True, True),
        (0.3, 1, None, True, False),
    ],
)
def test_first_call_reaches_its_goal(ratio, compiled, goal, compiles_nothing, reached):
    call = FirstCall("call", {"compiled": compiled}, {}, ratio, 1, goal, compiles_nothing)
    assert call.reached is reached


def test_page_of_performance_is_made_from_the_stored_runs():
    assert page.PAGE.read_text() == page.page(), "run `python -m benchmarks.page`"


def test_tables_of_compression_are_made_from_the_stored_run():
    stored = json.loads((compression.RESULTS / "compression.json").read_text())
    assert (compression.RESULTS / "compression.md").read_text() == compression.as_text(stored)


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
