"""First calls as a user meets them: each in a new process, beside a first call of diffrax."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from statistics import median

from .fresh_process import CASES, YARDSTICK
from .rows import FirstCall

Measured = dict[str, float]

# Times of first calls as multiples of the yardstick's.
GOALS = {
    "output_error": 0.25,
    "concentration_curve": 0.5,
    "task.risk": 0.25,
    "task.minimiser": 0.75,
    "descend": 0.75,
    "gradient_flow": 1.5,
}
COMPILES_NOTHING = "gradient_flow, another L"


def first_calls(rounds: int = 3) -> Iterator[FirstCall]:
    """First calls in new processes: d = 5, covariance 0.5^|i-j|, noise 0.1, L = 100.

    The yardstick is the first call of `diffrax.diffeqsolve` with Kvaerno5 on Robertson's problem
    (three dimensions, stiff, tolerances 1e-8), measured before and after every call; a ratio is to
    the mean of these two. It has a row, whose ratio differs from 1 by noise.

    "Import" loads everything that computes, "arguments" makes head, measure and task. "Run" is what
    is left of the call after tracing, lowering and compiling. "Grown" is how much the peak memory
    grows during the call: the arrays are small, so this is the compiler's. The last columns repeat
    the call in a new process with a cache on disk that other processes have filled. "gradient_flow,
    another L" is the second flow of its process.
    """
    without: dict[str, list[Measured]] = {name: [] for name in CASES}
    filled: dict[str, list[Measured]] = {name: [] for name in CASES}
    ratios: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            in_a_new_process(name, folder)  # fills the cache
        for _ in range(rounds):
            before = in_a_new_process(YARDSTICK)
            for name in CASES:
                found = in_a_new_process(name)
                without[name].append(found)
                filled[name].append(in_a_new_process(name, folder))
                after = in_a_new_process(YARDSTICK)
                ratios[name].append(2 * found["total"] / (before["total"] + after["total"]))
                before = after
    for name in CASES:
        yield FirstCall(
            name,
            _medians(without[name]),
            _medians(filled[name]),
            median(ratios[name]),
            rounds,
            GOALS.get(name),
            name == COMPILES_NOTHING,
        )


def in_a_new_process(name: str, cache: str | None = None) -> Measured:
    """What `fresh_process` measures, with JAX's defaults and only the given cache."""
    environment = {
        variable: value
        for variable, value in os.environ.items()
        if not variable.startswith("JAX_") and variable != "XLA_FLAGS"
    }
    command = [sys.executable, "-m", "benchmarks.fresh_process", name, *([cache] if cache else [])]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)


def _medians(found: list[Measured]) -> Measured:
    return {what: median(one[what] for one in found) for what in found[0]}
