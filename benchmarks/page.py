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


# measured apart from the stored run, whose peer for many queries is one call for the whole prompt
PARTS = """
### Many queries beside attention in parts

One call of PyTorch's or cuDNN's attention for 1,000 queries and one head leaves most of the GPU
idle. Split into parts, whose outputs are merged by their log-sum-exp, the prompt fills it. This
table was not measured in the run above, but apart on one NVIDIA H200 with jax 0.11.2 and torch
2.11: L = 2^20, 1,024 queries, d = 64, errors relative to float64. `python benchmarks/gpu.py` now
has both peers in its rows of many queries, each with its error.

| who | TFLOP/s | error |
|---|---|---|
| ours, bfloat16 (weights in two terms, 2^-17) | 186 | 2e-5 |
| cuDNN through JAX, bfloat16, one call | 29 | 2.4e-3 |
| cuDNN through JAX, bfloat16, 64 parts | 378 | 1.6e-3 |
| torch flash, bfloat16, 32 parts | 282 | 1.6e-3 |
| ours, float32 | 22 | 3e-6 |
| torch memory-efficient, float32, 64 parts | 33.6 | 5e-7 |

Our kernel is the slower one here in both types; in bfloat16 its errors are a hundred times smaller.
"""


def page() -> str:
    """The whole page."""
    cpu, gpu = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("cpu", "gpu")
    )
    return f"{HEAD}\n{as_text(cpu)}\n## One GPU\n\n{gpu_text(gpu)}{PARTS}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
