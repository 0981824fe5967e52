"""The progress bar of every long computation.

It is drawn on standard error if that is a terminal and `rich` is installed; otherwise nothing is
printed. A computation inside another one has no bar: two bars would overwrite each other.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[..., None]
_quiet = False  # a bar is drawn already, or this process draws none


def draw_no_bars() -> None:
    """Draw no bars in this process: for workers, which share the terminal of their driver."""
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
    """Show a bar and yield `advance(steps=1, label=None)`, which moves it and can rename it.

    **Arguments:**

    - `label`: text before the bar.
    - `total`: number of steps, or None if it is unknown: the bar then only shows that work goes on.
    - `done`: steps taken before, for example by an interrupted run.
    - `unit`: name of a step in the plural, to show the rate; empty for no rate.
    - `shown`: False for no bar.
    """
    global _quiet
    drawn = shown and not _quiet and sys.stderr.isatty()
    bar = _rich_bar(unit) if drawn else None
    if bar is None:
        yield lambda steps=1, label=None: None
        return
    _quiet = True
    try:
        with bar:
            row = bar.add_task(label, total=total, completed=done)

            def advance(steps: int = 1, label: str | None = None) -> None:
                bar.update(row, advance=steps, description=label)

            yield advance
    finally:
        _quiet = False


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
