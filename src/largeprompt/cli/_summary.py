"""Verdicts as a table in the terminal."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..reproduce.studies import Findings, find_study

_COLOUR = {"fails": "bold red", "not testable": "yellow"}


def print_summary(found: Mapping[str, Findings], lost: Mapping[str, str]) -> bool:
    """Print verdicts and every check that does not hold; returns whether every statement holds.

    Statements of the paper come first, then those of this project.
    `lost` maps studies without a result to the reason; they do not hold. Without any study the
    answer is False.
    """
    table = Table()
    table.add_column("study", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("deciding check", overflow="fold")
    for of_paper in (True, False):
        for name, findings in found.items():
            if find_study(name).of_paper is of_paper:
                word = findings.verdict.word
                table.add_row(
                    escape(name),
                    f"[{_COLOUR.get(word, 'green')}]{word}[/]",
                    escape(findings.verdict.evidence),
                )
        table.add_section()  # statements of the paper above, those of this project below
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
        studies = f"{len(found)} {'study' if len(found) == 1 else 'studies'}"
    console.print(escape(f"{kept} of {len(checks)} checks hold, in {studies}."), highlight=False)
    return bool(found) and not lost and all(findings.as_expected for findings in found.values())
