"""Cells done, rate and time left, on a terminal; nothing in a pipe."""

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Row
from rich.text import Text


class _Rate(ProgressColumn):
    """Cells a second, or seconds a cell when they are slow."""

    def render(self, task: Row) -> Text:
        speed = task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f} cells/s" if speed >= 1 else f"{1 / speed:.1f} s/cell")


@contextmanager
def progress(what: str, total: int, done: int, failures: Sized) -> Iterator[Callable[[], None]]:
    """A function to call after each cell; `done` of `total` cells were there before."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task(what, total=total, completed=done)

        def advance() -> None:
            label = f"{what} ({len(failures)} failed)" if failures else what
            bar.update(row, advance=1, description=label)

        yield advance
