"""Verdicts as a table in the terminal."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..reproduce.studies import Findings

_COLOUR = {"fails": "bold red", "not testable": "yellow"}


def print_summary(found: Mapping[str, Findings], lost: Mapping[str, str]) -> bool:
    """Print the table and every check that does not hold; True if all is as stated.

    `lost` maps studies that were asked for and have no result to the reason: none of them holds.
    Without any study the answer is False.
    """
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
    for name, why in lost.items():
        table.add_row(escape(name), "[bold red]no result[/]", escape(why))
    console = Console()
    console.print(table)
    checks = [(name, check) for name, findings in found.items() for check in findings.checks]
    for name, check in checks:
        if not check.holds:
            console.print(f"[bold red]does not hold[/] {escape(f'{name}: {check.evidence}')}")
    kept = sum(check.holds for _, check in checks)
    if lost:
        studies = f"{len(found)} of {len(found) + len(lost)} studies; no result: {', '.join(lost)}"
    else:
        studies = f"{len(found)} studies"
    console.print(escape(f"{kept} of {len(checks)} checks hold, in {studies}."), highlight=False)
    return bool(found) and not lost and all(findings.as_expected for findings in found.values())
