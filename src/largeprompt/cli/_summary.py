"""Verdicts as a table in the terminal."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..studies.base import Findings

_COLOUR = {"fails": "bold red", "not testable": "yellow"}


def print_summary(found: Mapping[str, Findings]) -> bool:
    """Print the table and every check that does not hold; True if all is as stated and there is at least one study."""
    table = Table()
    table.add_column("study", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("the number behind it", overflow="fold")
    for name, findings in found.items():
        word = findings.verdict.word
        table.add_row(
            escape(name),
            f"[{_COLOUR.get(word, 'green')}]{word}[/]",
            escape(findings.verdict.evidence),
        )
    console = Console()
    console.print(table)
    checks = [(name, check) for name, findings in found.items() for check in findings.checks]
    for name, check in checks:
        if not check.holds:
            console.print(f"[bold red]does not hold[/] {escape(f'{name}: {check.evidence}')}")
    kept = sum(check.holds for _, check in checks)
    console.print(f"{kept} of {len(checks)} checks hold, in {len(found)} studies.")
    return bool(found) and all(findings.as_expected for findings in found.values())
