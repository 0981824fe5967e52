"""Run the benchmarks, print their tables, and keep each in benchmarks/results."""

import inspect
import sys
from datetime import date
from pathlib import Path

from . import attention, concentration, descent, prompts
from .timing import machine

RESULTS = Path(__file__).parent / "results"
SECTIONS = {
    "one_query": ("One query over L tokens, d = 64, float32", attention.one_query),
    "many_queries": ("1,000 queries over 1e6 tokens, d = 8, float32", attention.many_queries),
    "participation": ("Participation moments", prompts.participation_speed),
    "exact_curve": ("Exact error curve beside Monte Carlo", prompts.exact_curve),
    "sampling": (
        "Sampling exact in law beside full-dimensional sampling, float32",
        prompts.sampling,
    ),
    "average_curve": ("Error curves averaged over queries", concentration.average_curve),
    "sgd_step": ("One SGD step of the published experiment", descent.sgd_step),
    "whole_experiment": ("The published experiment, whole", descent.whole_experiment),
    "cost": ("Cost against the length of the prompt", prompts.cost_against_length),
}


def main(wanted: list[str]) -> None:
    """The sections named, or all of them."""
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        raise SystemExit(f"unknown sections {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    RESULTS.mkdir(exist_ok=True)
    for name in wanted or SECTIONS:
        title, section = SECTIONS[name]
        made = (
            f"Made by `python -m benchmarks {name}` on {date.today()}: {machine()}. Medians over interleaved rounds; ratios below "
            "1.4 are within the noise of a shared machine."
        )
        text = f"# {title}\n\n{inspect.getdoc(section)}\n\n{section()}\n\n{made}\n"
        print(text, flush=True)
        (RESULTS / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
