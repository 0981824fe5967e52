"""Run the benchmarks, print and store one table: `python -m benchmarks [SECTION ...]`."""

import inspect
import json
import sys
import time
from datetime import date
from pathlib import Path

from . import attention, concentration, descent, discrete, prompts
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
    "discrete_law": discrete.discrete_law,
    "flow": descent.flow,
    "sgd_step": descent.sgd_step,
    "whole_experiment": descent.whole_experiment,
    "growth": prompts.growth,
}


def main(wanted: list[str]) -> None:
    """Run the sections named, or all; results replace the stored ones of the same section."""
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
    print(as_text(found))
    RESULTS.mkdir(exist_ok=True)
    stored = RESULTS / "cpu.json"
    if wanted and stored.exists():
        found = merged(json.loads(stored.read_text()), found)
    (RESULTS / "cpu.md").write_text(as_text(found))
    stored.write_text(json.dumps(found, indent=1) + "\n")


def merged(before: dict, after: dict) -> dict:
    """A stored run with some sections measured again on the same machine, with the later date."""
    if before["where"] != after["where"]:
        raise SystemExit("the stored run is from another machine or version: run all sections")
    new = {row["section"] for row in after["rows"]}
    rows = [row for row in before["rows"] if row["section"] not in new] + after["rows"]
    order = list(dict.fromkeys(row["section"] for row in before["rows"] + after["rows"]))
    return after | {
        "about": before["about"] | after["about"],
        "rows": sorted(rows, key=lambda row: order.index(row["section"])),
        "growth": after["growth"] or before["growth"],
    }


def as_text(found: dict) -> str:
    """Markdown of a stored run."""
    about = "\n".join(f"- `{name}`: {text}" for name, text in found["about"].items())
    return (
        f"{table_of_rows(found['rows'])}\n\n"
        f"## How cost grows\n\n{table_of_growth(found['growth'])}\n\n"
        f"## Sections\n\n{about}\n\n"
        f"Made by `make bench` on {found['date']}: {found['where']}. Medians over interleaved "
        "rounds; ratios below 1.4 are within the noise of a shared machine.\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
