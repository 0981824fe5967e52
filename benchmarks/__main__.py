"""Run the benchmarks, print and store their tables: `python -m benchmarks [SECTION ...]`."""

import importlib
import inspect
import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

from .rows import TABLES
from .timing import machine

RESULTS = Path(__file__).parent / "results"


class Section(NamedTuple):
    """A heading of the page, and the module whose function has the name of the section.

    Modules are imported when they run: some need the peers of the extra `peers`.
    """

    title: str
    module: str


SECTIONS = {
    "first_calls": Section("First calls", "first_calls"),
    "one_query": Section("One query over many tokens", "attention"),
    "many_queries": Section("Many queries over many tokens", "attention"),
    "keys_and_values": Section("Keys and values in two arrays", "attention"),
    "participation": Section("Participation moments", "prompts"),
    "exact_curve": Section("Exact error at a query", "prompts"),
    "sampling": Section("Sampling prompts", "prompts"),
    "average_curve": Section("Error averaged over queries", "concentration"),
    "two_heads": Section("Two heads on one prompt", "many_heads"),
    "discrete_law": Section("Law of 20,000 tokens", "discrete"),
    "gaussian_mixture": Section("Gaussian mixtures", "mixtures"),
    "flow": Section("Gradient flow", "descent"),
    "sgd_step": Section("One SGD step", "descent"),
    "whole_experiment": Section("The published experiment", "descent"),
    "growth": Section("How cost grows", "prompts"),
}


def main(wanted: list[str]) -> None:
    """Run the sections named, or all; each replaces its stored results as soon as it ends."""
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        raise SystemExit(f"unknown sections {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    for name in wanted or SECTIONS:
        start = time.perf_counter()
        section = run(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        print(as_text({name: section}))
        store(name, section)


def run(name: str) -> dict:
    """Measure a section: its lines, and what describes them."""
    module = importlib.import_module(f".{SECTIONS[name].module}", __package__)
    function = getattr(module, name)
    lines = list(function())
    return {
        "about": inspect.getdoc(function),
        "where": machine(),
        "date": str(date.today()),
        "kind": type(lines[0]).__name__,
        "lines": [line.stored() for line in lines],
    }


def store(name: str, section: dict) -> None:
    """Replace one section of the stored run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "cpu.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found[name] = section
    ordered = {name: found[name] for name in SECTIONS if name in found}
    path.write_text(json.dumps(ordered, indent=1) + "\n")
    (RESULTS / "cpu.md").write_text(as_text(ordered))


def as_text(found: dict) -> str:
    """Markdown of stored sections."""
    return "\n".join(
        f"## {SECTIONS[name].title}\n\n"
        f"{section['about']}\n\n"
        f"{TABLES[section['kind']](section['lines'])}\n\n"
        f"`python -m benchmarks {name}`, {section['date']}, {section['where']}.\n"
        for name, section in found.items()
    )


if __name__ == "__main__":
    main(sys.argv[1:])
