"""Write docs/performance.md from the stored runs: `python -m benchmarks.page`."""

import json
from pathlib import Path

from .__main__ import RESULTS, as_text
from .gpu import as_text as gpu_text

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

HEAD = """# Performance

`python -m benchmarks.page` generates this page from stored runs. To measure again, run `make bench`
on a CPU (installs the peers of the extra `peers`, takes about half an hour, writes
`benchmarks/results/cpu.json`), and `python benchmarks/gpu.py --record` on a machine with a GPU
(needs this repository and jax; times torch if it is installed). `python -m benchmarks NAME ...`
measures single sections and keeps the others.

Times are medians over rounds in which the contestants take turns, with the fastest and the slowest
in brackets. Ratios below 1.4 are within the noise of a shared machine. A first call compiles; its
time has its own section, and a column in the others. How to keep compiled programs between
sessions: [devices.md](devices.md#compiled-programs).
"""


def page() -> str:
    """The whole page."""
    cpu, gpu = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("cpu", "gpu"))
    return f"{HEAD}\n{as_text(cpu)}\n## One GPU\n\n{gpu_text(gpu)}"


if __name__ == "__main__":
    PAGE.write_text(page())
