"""Write docs/performance.md from the stored runs: `python -m benchmarks.page`."""

import json
from pathlib import Path

from .__main__ import RESULTS, as_text
from .gpu import as_text as gpu_text

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

HEAD = """# Performance

`python -m benchmarks.page` generates this page from two stored runs. To measure again, run
`make bench` on a CPU (installs the peers of the extra `peers`, takes less than ten minutes, writes
`benchmarks/results/cpu.json`), and `python benchmarks/gpu.py --record` on a machine with a GPU
(needs this repository and jax; times torch if it is installed). Times are medians, with the fastest
and the slowest in brackets; the first call, which compiles, has its own column.
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
