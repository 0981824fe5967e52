"""Interleaved timings: contestants take turns, so that a slow machine affects all of them."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

Contestant = Callable[[], object]


class Timing(NamedTuple):
    """Seconds per call: median and extremes over the rounds, and the first call, which compiles."""

    median: float
    fastest: float
    slowest: float
    first: float

    def scaled(self, factor: float) -> "Timing":
        """For another amount of work; the first call, which compiles, stays."""
        median, fastest, slowest = (factor * t for t in self[:3])
        return Timing(median, fastest, slowest, self.first)


def race(contestants: Mapping[str, Contestant], *, rounds: int = 9, seconds: float = 0.2) -> dict:
    """Time every contestant in turn, `rounds` times, each turn about `seconds` long."""
    first, repeats = {}, {}
    for name, call in contestants.items():
        first[name] = _seconds(call, 1)
        once = min(_seconds(call, 1), _seconds(call, 1))
        repeats[name] = max(1, min(1000, round(seconds / max(once, 1e-7))))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            samples[name].append(_seconds(call, repeats[name]))
    return {
        name: Timing(statistics.median(times), min(times), max(times), first[name])
        for name, times in samples.items()
    }


def _seconds(call: Contestant, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def machine() -> str:
    """Where and with what the numbers were measured."""
    names = ("jax", "jaxlib", "numpy", "diffrax", "torch", "largeprompt")
    versions = ", ".join(f"{name} {version(name)}" for name in names if find_spec(name))
    processor = platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            processor = next(line.split(":")[1].strip() for line in info if "model name" in line)
    except (OSError, StopIteration):
        pass

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor}, {cores} cores; Python {platform.python_version()}, {versions}"
