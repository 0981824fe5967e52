"""The command in this process, and made-up studies that take no time."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from reproduction import catalogue
from reproduction.__main__ import main

_STUDY = """
import time, os
import numpy as np, xarray as xr
from reproduction.mutants import times
from reproduction.panels import Panel, Series
from reproduction.study import INFINITE, Study, at_least, at_most


def measure(config, key):
    {before}
    gap = xr.Variable("step", [0.1, {value}, np.nan], {{INFINITE: "at the last step"}})
    return xr.Dataset({{"gap": gap}}, {{"step": [1, 2, 3]}})


def examine(data):
    return [
        at_most("a [made-up] statement", data.gap[0], {bound}),
        at_least("≥", 1.0, 0.0, "control"),
    ]


def panels(data):
    return [Panel([Series("gap", data.step.values, data.gap.values, 0)], "step", "gap")]


STUDY = Study(
    name="{name}", title="made up", source="Claim {name}", statement="made up", formula="x",
    method="made up", quick={{"n": 3}}, full={{"n": 4}}, measure=measure, examine=examine, {options}
)
"""


class Here(Executor):
    """Computes at once, in this process."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        """The finished future of a call."""
        future: Future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def study_file(
    folder: Path, name: str, *, value: Any = 0.01, bound: Any = 0.5, before: str = "", options=""
) -> str:
    """Write the file of a made-up study; what was there before is forgotten."""
    path = folder / f"{name}.py"
    path.write_text(
        _STUDY.format(
            name=name, value=value, bound=bound, before=before or "pass", options=options
        ),
        encoding="utf-8",
    )
    for cached in (catalogue.load, catalogue.version):
        cached.cache_clear()
    return str(path)


def run(*arguments: Any) -> int:
    """The exit status of the command, which computes in this process."""
    try:
        return main([str(argument) for argument in arguments], Here())
    except SystemExit as ended:  # wrong options
        return int(ended.code or 0)


def named(files: Sequence[str]) -> list[str]:
    """Options that name studies."""
    return [word for file in files for word in ("--study", file)]
