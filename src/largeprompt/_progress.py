"""The progress of every long computation, from two seconds on.

On a terminal it is a bar, if `rich` is installed; elsewhere, for example in a pipe or a notebook, a
line every few seconds. Both are on standard error. A computation inside another one shows nothing:
two bars would overwrite each other.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

Advance = Callable[..., None]
_AFTER = 2.0  # seconds until a bar is shown
_EVERY = 5.0  # seconds between lines
_quiet = False  # progress is shown already, or this process shows none


def draw_no_bars() -> None:
    """Show no progress in this process: for workers, which share the terminal of their driver."""
    global _quiet
    _quiet = True


@contextmanager
def progress_bar(
    label: str,
    total: int | None = None,
    *,
    done: int = 0,
    unit: str = "",
    shown: bool = True,
) -> Iterator[Advance]:
    """Show progress and yield `advance(steps=1, label=None)`, which moves it and can rename it.

    **Arguments:**

    - `label`: text before the bar.
    - `total`: number of steps, or None if it is unknown: the bar then only shows that work goes on.
    - `done`: steps taken before, for example by an interrupted run.
    - `unit`: name of a step in the plural, to show the rate; empty for no rate.
    - `shown`: False for no progress.
    """
    global _quiet
    if _quiet or not shown:
        yield lambda steps=1, label=None: None
        return
    bar = _rich_bar(unit) if sys.stderr.isatty() else None
    _quiet = True
    try:
        if bar is None:
            yield _lines(label, total, done, unit)
            return
        row = bar.add_task(label, total=total, completed=done)
        start = Timer(_AFTER, bar.start)
        start.daemon = True
        start.start()
        try:
            yield lambda steps=1, label=None: bar.update(row, advance=steps, description=label)
        finally:
            start.cancel()
            start.join()  # otherwise a bar that starts just now would never stop
            if bar.live.is_started:
                bar.stop()
    finally:
        _quiet = False


def _lines(label: str, total: int | None, done: int, unit: str) -> Advance:
    """Print a line when progress is made, if the last one is some seconds old."""
    last = time.monotonic()

    def advance(steps: int = 1, label: str | None = None) -> None:
        nonlocal done, last, name
        done, name = done + steps, label or name
        if (now := time.monotonic()) - last >= _EVERY:
            last = now
            of_all = "" if total is None else f" of {total}"
            print(f"{name}: {done}{of_all} {unit}".rstrip(), file=sys.stderr, flush=True)

    name = label
    return advance


def _rich_bar(unit: str):
    """The bar that all computations share; None if `rich` is not installed."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text
    except ImportError:
        return None

    class Rate(ProgressColumn):
        """Steps a second, or seconds a step if they are slow."""

        def render(self, task: Task) -> Text:
            speed = task.speed
            if not unit or not speed:
                return Text("")
            one = unit.removesuffix("s")
            return Text(f"{speed:.1f} {unit}/s" if speed >= 1 else f"{1 / speed:.1f} s/{one}")

    class Count(MofNCompleteColumn):
        """Steps done of all steps; nothing if their number is unknown."""

        def render(self, task: Task) -> Text:
            return Text("") if task.total is None else super().render(task)

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        Count(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=Console(stderr=True),
        transient=True,
    )
