"""Run the benchmarks, print one table, and keep it: `python -m benchmarks [SECTION ...]`."""

import inspect
import json
import sys
import time
from datetime import date
from pathlib import Path

from . import attention, concentration, descent, prompts
from .rows import Growth, Row, table_of_growth, table_of_rows
from .timing import machine

RESULTS = Path(__file__).parent / "results"
SECTIONS = {
    "one_query": attention.one_query,
    "many_queries": attention.many_queries,
    "participation": prompts.participation_speed,
    "exact_curve": prompts.exact_curve,
    "sampling": prompts.sampling,
    "average_curve": concentration.average_curve,
    "flow": descent.flow,
    "sgd_step": descent.sgd_step,
    "whole_experiment": descent.whole_experiment,
    "growth": prompts.growth,
}


def main(wanted: list[str]) -> None:
    """The sections named, or all of them; only a run of all is kept."""
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        raise SystemExit(f"unknown sections {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    found: dict = {
        "where": machine(),
        "date": str(date.today()),
        "about": {},
        "rows": [],
        "growth": [],
    }
    for name in wanted or SECTIONS:
        start = time.perf_counter()
        about = " ".join((inspect.getdoc(SECTIONS[name]) or "").split())
        found["about"][name] = about
        for line in SECTIONS[name]():
            kind = "rows" if isinstance(line, Row) else "growth"
            assert isinstance(line, (Row, Growth))
            found[kind].append(line.stored())
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    text = as_text(found)
    print(text)
    if not wanted:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "cpu.md").write_text(text)
        (RESULTS / "cpu.json").write_text(json.dumps(found, indent=1) + "\n")


def as_text(found: dict) -> str:
    """Markdown of a run, from what is stored of it."""
    about = "\n".join(f"- `{name}`: {text}" for name, text in found["about"].items())
    return (
        f"{table_of_rows(found['rows'])}\n\n## How cost grows\n\n{table_of_growth(found['growth'])}\n\n## Sections\n\n{about}\n\n"
        f"Made by `make bench` on {found['date']}: {found['where']}. Medians over interleaved rounds; ratios below 1.4 are within the "
        "noise of a shared machine.\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
