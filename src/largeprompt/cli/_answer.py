"""What a command answers: a table with notes, printed for people or for programs."""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import typer

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object with all digits, for programs.")
]
AsCsv = Annotated[
    bool, typer.Option("--csv", help="Print comma-separated values with all digits, for programs.")
]

_NARROW = 25  # characters of a column that is not wrapped


class Column(NamedTuple):
    """A column: its heading for people, its name for programs, its values and their format."""

    heading: str
    name: str
    values: Sequence[Any]
    shown: Callable[[Any], str] = str
    style: Callable[[Any], str] | None = None  # of rich, on a terminal

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers, which are aligned on the right."""
        return all(isinstance(value, int | float) for value in self.values)

    def cells(self) -> list[tuple[str, str]]:
        """(text, style) of each value."""
        return [
            (self.shown(value), self.style(value) if self.style else "") for value in self.values
        ]


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
        self,
        heading: str,
        name: str,
        values: Iterable[Any],
        shown: Callable[[Any], str] = str,
        style: Callable[[Any], str] | None = None,
    ) -> None:
        """Append a column."""
        found = [_plain(value) for value in values]
        self.columns.append(Column(heading, name, found, shown, style))

    def note(self, sentence: str, **facts: Any) -> None:
        """Append a sentence, and its numbers for programs."""
        self.notes.append(sentence)
        self.facts |= {name: _plain(value) for name, value in facts.items()}

    def print(self, *, as_json: bool = False, as_csv: bool = False) -> None:
        """Print for people, or in the form that a program asked for."""
        if as_json:
            typer.echo(json.dumps(self._object(), indent=2, allow_nan=False))
        elif as_csv:
            self._print_csv()
        else:
            self._print_text()

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
        for note in self.notes:
            typer.echo(note, err=True)

    def _print_text(self) -> None:
        if self.columns and sys.stdout.isatty():
            self._print_boxed()
        elif self.columns:
            self._print_plain()
        for note in self.notes:
            typer.echo(note)

    def _print_plain(self) -> None:
        if self.title:
            typer.echo(self.title)
        lines = [
            [column.heading, *(column.shown(value) for value in column.values)]
            for column in self.columns
        ]
        aligned = [
            [cell.rjust(width) if column.is_numeric else cell.ljust(width) for cell in cells]
            for column, cells in zip(self.columns, lines, strict=True)
            for width in [max(map(len, cells))]
        ]
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
        for row in zip(*(column.cells() for column in self.columns), strict=True):
            table.add_row(*(Text(*cell) for cell in row))
        Console().print(table)


def check_form(as_json: bool, as_csv: bool) -> None:
    """Raise if both forms are asked for."""
    if as_json and as_csv:
        raise ValueError("--json and --csv exclude each other; received both")


def _plain(value: Any) -> Any:
    """Numbers of NumPy and JAX as those of Python."""
    return value.item() if hasattr(value, "item") else value


def _valid_in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
