"""Checks as a table in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .base import Check


def show(checks: Sequence[Check]) -> bool:
    """Print the table; True if every statement holds and there is at least one."""
    table = Table()
    table.add_column("statement")
    table.add_column("computed", justify="right")
    table.add_column("criterion")
    table.add_column("verdict")
    for check in checks:
        verdict = "[green]holds[/]" if check.holds else "[bold red]fails[/]"
        table.add_row(escape(check.statement), f"{check.value:.3g}", check.criterion, verdict)
    console = Console()
    console.print(table)
    failed = sum(not check.holds for check in checks)
    console.print(f"{len(checks) - failed} of {len(checks)} statements hold.")
    return bool(checks) and not failed
