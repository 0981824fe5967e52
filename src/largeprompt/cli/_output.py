"""Output of all commands: answers, files, and errors and warnings on one line."""

import csv
import json
import math
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from .._extras import MissingExtra, require
from .._files import FIGURES, atomic_write, check_target

if TYPE_CHECKING:
    import xarray as xr

_NARROW = 25  # characters of a column that is not wrapped

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object with all digits, for programs.")
]
AsCsv = Annotated[
    bool, typer.Option("--csv", help="Print comma-separated values with all digits, for programs.")
]


class Column(NamedTuple):
    """A column: its heading for people, its name for programs, its values and their format."""

    heading: str
    name: str
    values: Sequence[Any]
    shown: Callable[[Any], str] = str

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers, which are aligned on the right."""
        return all(isinstance(value, int | float) for value in self.values)


class Answer:
    """A table of results, numbers that belong to all rows, and sentences.

    In a terminal it is a boxed table with its notes; in a pipe the same in plain text. `--json`
    prints {"title", "rows", "facts", "notes"}, `--csv` the rows alone, with notes on standard
    error. Infinite numbers are "inf" in JSON, which has none; NaN is null.
    """

    def __init__(self, title: str = "") -> None:
        self.title = title
        self.columns: list[Column] = []
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []

    def column(
        self, heading: str, name: str, values: Iterable[Any], shown: Callable[[Any], str] = str
    ) -> None:
        """Append a column."""
        self.columns.append(Column(heading, name, [_plain(value) for value in values], shown))

    def note(self, sentence: str, **facts: Any) -> None:
        """Append a sentence, and its numbers for programs."""
        self.notes.append(sentence)
        self.facts |= {name: _plain(value) for name, value in facts.items()}

    def print(self, as_json: bool = False, as_csv: bool = False) -> None:
        """Print for people, or in the form that a program asked for."""
        if as_json:
            typer.echo(json.dumps(self._object(), indent=2, allow_nan=False))
            return
        if as_csv:
            self._print_csv()
        elif self.columns and sys.stdout.isatty():
            self._print_boxed()
        elif self.columns:
            self._print_plain()
        for note in self.notes:
            typer.echo(note, err=as_csv)

    def _object(self) -> dict[str, Any]:
        names = [column.name for column in self.columns]
        rows = zip(*(column.values for column in self.columns), strict=True)
        return {
            "title": self.title,
            "rows": [dict(zip(names, map(_valid_in_json, row), strict=True)) for row in rows],
            "facts": {name: _valid_in_json(value) for name, value in self.facts.items()},
            "notes": self.notes,
        }

    def _print_csv(self) -> None:
        columns = self.columns or [Column(name, name, [v]) for name, v in self.facts.items()]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([column.name for column in columns])
        writer.writerows(zip(*(column.values for column in columns), strict=True))

    def _print_plain(self) -> None:
        if self.title:
            typer.echo(self.title)
        aligned = []
        for column in self.columns:
            cells = [column.heading, *map(column.shown, column.values)]
            width = max(map(len, cells))
            aligned.append([c.rjust(width) if column.is_numeric else c.ljust(width) for c in cells])
        for row in zip(*aligned, strict=True):
            typer.echo("  ".join(row).rstrip())

    def _print_boxed(self) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title) if self.title else None)
        for column in self.columns:
            table.add_column(
                Text(column.heading),
                justify="right" if column.is_numeric else "left",
                no_wrap=max((len(str(value)) for value in column.values), default=0) < _NARROW,
                overflow="fold",
            )
        for row in zip(*(map(column.shown, column.values) for column in self.columns), strict=True):
            table.add_row(*map(Text, row))
        Console().print(table)


def _plain(value: Any) -> Any:
    """Numbers of NumPy and JAX as those of Python."""
    return value.item() if hasattr(value, "item") else value


def _valid_in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def check_form(as_json: bool, as_csv: bool) -> None:
    """Raise if both forms are asked for."""
    if as_json and as_csv:
        raise ValueError("--json and --csv exclude each other; received both")


class OneLineErrors(TyperGroup):
    """Command group that prints user errors on one line and exits with status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; `ValueError`, `OSError` and missing packages are user errors."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default", UserWarning)
                warnings.showwarning = _print_warning
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None
        except (ValueError, OSError, MissingExtra) as cause:
            typer.echo(f"error: {_one_line(cause)}", err=True)
            raise typer.Exit(2) from cause


def _print_warning(message: Warning | str, *_: Any) -> None:
    """A warning without path and line of the code."""
    typer.echo(f"warning: {_one_line(message)}", err=True)


def _one_line(message: object) -> str:
    return str(message).replace("\n", " ")


@contextmanager
def in_options(prefix: str = "") -> Iterator[None]:
    """Leave out how to mend an error of the library in Python."""
    try:
        yield
    except ValueError as cause:
        raise ValueError(prefix + str(cause).partition(" To fix: ")[0]) from cause


def check_targets(out: Path | None, figure: Path | None) -> None:
    """Check before the computation that both files can be written afterwards."""
    if out is not None:
        check_target(out, "data", (".nc",))
    if figure is not None:
        check_target(figure, "figure", FIGURES)
        require("matplotlib", extra="report")


@contextmanager
def written(path: Path) -> Iterator[str]:
    """Yield a name to write to, and say afterwards what was written."""
    existed = path.exists()
    with atomic_write(path) as name:
        yield name
    typer.echo(f"{'replaced' if existed else 'wrote'} {path}", err=True)


def write_netcdf(data: "xr.Dataset", path: Path) -> None:
    """Write a dataset; an existing file is replaced only when the new one is complete."""
    with written(path) as name:
        data.to_netcdf(name, engine="scipy")


def write_figure(path: Path, draw: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Write what `draw(..., ax=ax)` draws."""
    from matplotlib.figure import Figure

    figure = Figure((5.0, 3.8), layout="constrained")
    draw(*arguments, **options, ax=figure.add_subplot())
    with written(path) as name:
        figure.savefig(name, dpi=200)
