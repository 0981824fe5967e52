"""Write docs/performance.md from the stored runs: `python -m benchmarks.page`."""

import json
from pathlib import Path

from .__main__ import RESULTS, as_text
from .gpu import as_text as gpu_text

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

HEAD = """# Performance

This page is made by `python -m benchmarks.page` from two stored runs; nothing in it is typed. To measure again: `make bench` on a CPU
(it installs the peers of the optional extra `peers`, takes less than ten minutes and keeps `benchmarks/results/cpu.json`), and
`python benchmarks/gpu.py --record` on a machine with a GPU (it needs this repository and jax; torch is timed where it is installed).
Times are medians with the fastest and the slowest in brackets; the first call, which compiles, stands apart.
"""


def page() -> str:
    """The whole page."""
    cpu, gpu = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("cpu", "gpu"))
    return (
        f"{HEAD}\n## CPU\n\n{as_text(cpu)}\n## One GPU\n\n{gpu_text(gpu)}".replace(
            "\n## How", "\n### How"
        )
        .replace("\n## Sections", "\n### Sections")
        .replace("\n## Checked", "\n### Checked")
    )


if __name__ == "__main__":
    PAGE.write_text(page())
