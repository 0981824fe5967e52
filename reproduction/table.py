"""Verdicts in words and as a table, for people and for programs."""

import csv
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

from .study import Findings, Study

_GAP = 2


def conclusion(found: Mapping[str, tuple[Study, Findings]], lost: Mapping[str, str]) -> list[str]:
    """What holds, in sentences: the statements of the paper, those of this project, the checks.

    Restrictions are named: statements that hold from two tokens on, or for a part of the cases.
    """
    lines = []
    for title, of_paper in (("The paper", True), ("This project", False)):
        here = [pair for pair in found.values() if pair[0].of_paper == of_paper]
        if not here:
            continue
        held = [pair for pair in here if pair[1].as_expected]
        limited = [(study, _limit(study, findings)) for study, findings in held]
        limited = [(study, limit) for study, limit in limited if limit]
        words = f"{title}: {len(held)} of {len(here)} statements hold"
        if limited:
            words += f", {len(limited)} of them with a restriction: "
            words += "; ".join(f"{study.source} {limit}" for study, limit in limited)
        bad = [study.source for study, findings in here if not findings.as_expected]
        lines.append(words + (f". Not: {'; '.join(bad)}." if bad else "."))
    checks = [check for _, findings in found.values() for check in findings.checks]
    kept = sum(check.holds for check in checks)
    lines.append(f"{kept} of {len(checks)} checks hold.")
    if lost:
        lines.append(f"No result: {', '.join(lost)}.")
    return lines


def _limit(study: Study, findings: Findings) -> str:
    """For which part of its cases a statement holds; empty if for all."""
    boundary = "(for L >= 2 only)" if findings.verdict.word == "holds for L >= 2" else ""
    return " ".join(filter(None, [boundary, f"({study.restriction})" if study.restriction else ""]))


def show(
    found: Mapping[str, tuple[Study, Findings]],
    lost: Mapping[str, str],
    *,
    as_json: bool = False,
    as_csv: bool = False,
) -> None:
    """Print the table with its sentences, the paper's statements first."""
    ordered = sorted(found, key=lambda name: not found[name][0].of_paper)
    rows = [_row(name, *found[name]) for name in ordered]
    rows += [("", name, "no result", why) for name, why in lost.items()]
    broken = [
        f"does not hold: {name}: {check.evidence}"
        for name, (_, findings) in found.items()
        for check in findings.checks
        if not check.holds
    ]
    notes = [*broken, *conclusion(found, lost)]
    columns = ("of the", "study", "verdict", "deciding check")
    names = [column.replace(" ", "_") for column in columns]
    if as_json:
        table = [dict(zip(names, row, strict=True)) for row in rows]
        checks = [check for _, findings in found.values() for check in findings.checks]
        counts = {"checks": len(checks), "hold": sum(check.holds for check in checks)}
        print(json.dumps({"rows": table, **counts, "notes": notes}, indent=2))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([names, *rows])
        print(*notes, sep="\n", file=sys.stderr)
    else:
        print_columns([columns, *rows])
        print(*notes, sep="\n")


def _row(name: str, study: Study, findings: Findings) -> tuple[str, ...]:
    verdict = findings.verdict
    return ("paper" if study.of_paper else "project", name, verdict.word, verdict.evidence)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print a table; on a terminal the last column is wrapped."""
    *widths, _ = (max(map(len, column)) + _GAP for column in zip(*rows, strict=True))
    room = shutil.get_terminal_size().columns - sum(widths) if sys.stdout.isatty() else 10**6
    for row in rows:
        begin = "".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        last = textwrap.wrap(row[-1], max(room, 20)) or [""]
        print(
            "\n".join([begin + last[0], *(" " * sum(widths) + line for line in last[1:])]).rstrip()
        )
