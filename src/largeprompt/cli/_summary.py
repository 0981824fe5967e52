"""Verdicts of studies as the answer of a command."""

from collections.abc import Mapping

from ..reproduce.studies import Findings, find_study
from ._answer import Answer

_COLOUR = {"fails": "bold red", "no result": "bold red", "not testable": "yellow"}


def summary(found: Mapping[str, Findings], lost: Mapping[str, str]) -> tuple[Answer, bool]:
    """Verdicts, every check that does not hold, and whether every statement holds.

    Statements of the paper come first, then those of this project. `lost` maps studies without a
    result to the reason; they do not hold. Without any study the second answer is False.
    """
    ordered = sorted(found, key=lambda name: not find_study(name).of_paper)
    rows = [(name, found[name].verdict.word, found[name].verdict.evidence) for name in ordered]
    rows += [(name, "no result", why) for name, why in lost.items()]
    answer = Answer()
    sources = ["paper" if find_study(row[0]).of_paper else "project" for row in rows]
    answer.column("of the", "of_the", sources)
    answer.column("study", "study", [row[0] for row in rows])
    words = [row[1] for row in rows]
    answer.column("verdict", "verdict", words, style=lambda word: _COLOUR.get(word, "green"))
    answer.column("deciding check", "deciding_check", [row[2] for row in rows])
    checks = [(name, check) for name, findings in found.items() for check in findings.checks]
    for name, check in checks:
        if not check.holds:
            answer.note(f"does not hold: {name}: {check.evidence}")
    kept = sum(check.holds for _, check in checks)
    if lost:
        studies = f"{len(found)} of {len(found) + len(lost)} studies; no result: {', '.join(lost)}"
    else:
        studies = f"{len(found)} {'study' if len(found) == 1 else 'studies'}"
    answer.note(
        f"{kept} of {len(checks)} checks hold, in {studies}.", checks=len(checks), hold=kept
    )
    good = bool(found) and not lost and all(findings.as_expected for findings in found.values())
    return answer, good
