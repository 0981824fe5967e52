"""Run the benchmarks, print their tables, and keep them in benchmarks/results.md."""

import sys
from datetime import date
from pathlib import Path

from . import attention, prompts
from .timing import machine

SECTIONS = {
    "One query over L tokens, d = 64, float32": attention.one_query,
    "1,000 queries over 1e6 tokens, d = 8, float32": attention.many_queries,
    "Participation moments": prompts.participation_speed,
    "Exact error curve beside Monte Carlo": prompts.exact_curve,
    "Sampling exact in law beside full-dimensional sampling, float32": prompts.sampling,
    "Cost against the length of the prompt": prompts.cost_against_length,
}


def main() -> None:
    """Every section in turn, or those whose titles hold a word of the command line."""
    wanted = sys.argv[1:]
    parts = [
        "# Benchmark results",
        f"Made by `make bench` on {date.today()}: {machine()}. Medians over interleaved rounds; ratios below 1.4 are within the noise "
        "of a shared machine.",
    ]
    for title, section in SECTIONS.items():
        if wanted and not any(word in title for word in wanted):
            continue
        parts.append(f"## {title}\n\n{section.__doc__}\n\n{section()}")
        print(parts[-1], end="\n\n", flush=True)
    if not wanted:
        (Path(__file__).parent / "results.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
