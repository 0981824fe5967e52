"""What a study is, and what it returns. To add one, write a file like the others of this folder:

    def measure(config, key):
        return xr.Dataset(...)              # a pure function of its two arguments: no files, no figures

    def examine(data):
        return [at_most("statement in one line", data.gap.max(), bound), ...]  # of the data alone

    STUDY = Study(
        name="theorem-4.3", title="...", source="Theorem 4.3",
        statement="the claim in words", formula=r"TeX source, shown as MathML",
        method="what is computed, what is exact, what is estimated and with what error",
        unknown="what of the paper's statement could not be known (empty if all is)",
        quick={"lengths": [10, 100]}, full={"lengths": [10, 100, 1000]},    # same keys, plain JSON
        measure=measure, examine=examine,
        notices={"gap": times(3) + power_of("length", 0.1)},   # changes of its numbers it must
        notice context={"time": "drawn in the figure"},                # variables no check rests
        on, and why
    )

and add it to `STUDIES` in `__init__.py`. A figure comes for free if the dataset has variables over a coordinate "length" (a further
dimension gives one curve each; a variable `x_error` becomes the error bars of `x`); for another one, register a function of the
dataset in `report/study_panels.py`.

**Verdicts.** Every number a verdict rests on is a `Check` with bounds written before it is computed. A check has a part:

    claim      the statement itself
    boundary   the statement where it is known to end, here L = 1: stated so that it holds when the claim fails there, as predicted
    control    a case outside the hypotheses, where the conclusion must not hold: without it the study could not see a failure
    accuracy   how well the numbers are known: own error estimates, a second computation, a simulation in standard errors

`examine` sees the variables and coordinates of the dataset and nothing else, so a verdict can be
computed again from a stored result, and the power of a study can be tested: `notices` lists wrong
versions of its numbers (`mutants.py`), and `tests/test_paper.py` asserts that each of them breaks
a check, and that every variable is in `notices` or in `context`.

The default rule `judge`: `not testable` if an accuracy check or a control fails (then nothing is known about the claim) or there is
no claim; `fails` if a claim or a boundary check fails; `holds for L >= 2` if there is a boundary check, `holds` if not. The first
claim is the number quoted with the verdict. A study with a rule of its own passes `judge=`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsFloat

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ... import _checks
from .mutants import Mutant

Part = Literal["claim", "boundary", "control", "accuracy"]
Word = Literal["holds", "holds for L >= 2", "fails", "not testable"]
Config = Mapping[str, Any]
INFINITE = "infinite"  # attribute of a variable that may be infinite: says where and why


class Check(NamedTuple):
    """One statement and what was found. `holds` is computed from `value` and the bounds, never set by hand."""

    statement: str
    value: float
    low: float
    high: float
    part: Part = "claim"

    @property
    def holds(self) -> bool:
        """Whether low <= value <= high; a value that is not finite never holds."""
        return math.isfinite(self.value) and self.low <= self.value <= self.high

    @property
    def criterion(self) -> str:
        """The bounds in words."""
        if self.low == -math.inf:
            return f"at most {self.high:.4g}"
        if self.high == math.inf:
            return f"at least {self.low:.4g}"
        return f"between {self.low:.4g} and {self.high:.4g}"

    @property
    def evidence(self) -> str:
        """Statement, number and criterion in one line."""
        return f"{self.statement}: {self.value:.3g} ({self.criterion})"


def at_most(statement: str, value: SupportsFloat, high: float, part: Part = "claim") -> Check:
    """A statement that an error is small."""
    return Check(statement, float(value), -math.inf, high, part)


def at_least(statement: str, value: SupportsFloat, low: float, part: Part = "claim") -> Check:
    """A statement that an effect is there."""
    return Check(statement, float(value), low, math.inf, part)


def between(
    statement: str, value: SupportsFloat, low: float, high: float, part: Part = "claim"
) -> Check:
    """A statement that a number lies in a band, such as a fitted slope."""
    return Check(statement, float(value), low, high, part)


def power(L: SupportsFloat) -> str:
    """A length as people write it: 1e9."""
    return f"{float(L):.0e}".replace("e+0", "e").replace("e+", "e")


class Verdict(NamedTuple):
    """One of four words, and the number behind it."""

    word: Word
    evidence: str


def judge(checks: Sequence[Check]) -> Verdict:
    """The rule of the docstring above."""
    parts = {
        part: [c for c in checks if c.part == part]
        for part in ("claim", "boundary", "control", "accuracy")
    }
    doubts = [c for c in (*parts["accuracy"], *parts["control"]) if not c.holds]
    if doubts:
        return Verdict("not testable", doubts[0].evidence)
    if not parts["claim"]:
        return Verdict("not testable", "no claim was computed")
    broken = [c for c in (*parts["claim"], *parts["boundary"]) if not c.holds]
    if broken:
        return Verdict("fails", broken[0].evidence)
    first = parts["claim"][0].evidence
    if parts["boundary"]:
        return Verdict("holds for L >= 2", f"{first}; {parts['boundary'][0].evidence}")
    return Verdict("holds", first)


class Findings(NamedTuple):
    """What a study found: labelled data, checks, and the verdict computed from them."""

    data: xr.Dataset
    checks: tuple[Check, ...]
    verdict: Verdict

    @property
    def as_expected(self) -> bool:
        """Whether every check holds and the claim was found to hold: what an exit status of 0 stands for."""
        return self.verdict.word.startswith("holds") and all(check.holds for check in self.checks)


@dataclass(frozen=True)
class Study:
    """A claim or figure of the paper, and the pure function that examines it (see the top of studies/base.py)."""

    name: str
    title: str
    source: str
    statement: str
    formula: str
    method: str
    quick: Config
    full: Config
    measure: Callable[[Config, Key[Array, ""]], xr.Dataset]
    examine: Callable[[xr.Dataset], list[Check]]
    notices: Mapping[str, Sequence[Mutant]] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    judge: Callable[[Sequence[Check]], Verdict] = judge
    unknown: str = ""

    def config(self, scale: str) -> Config:
        """The configuration of a scale, "quick" or "full"."""
        if scale not in ("quick", "full"):
            raise ValueError(
                _checks.message("scale must be 'quick' or 'full'", repr(scale), "name one of them")
            )
        return self.quick if scale == "quick" else self.full

    def run(self, config: Config, key: Key[Array, ""]) -> Findings:
        """Measure, examine and judge."""
        return self.findings(self.measure(config, key))

    def findings(self, data: xr.Dataset) -> Findings:
        """Examine and judge numbers that were measured before, or changed since."""
        checks = tuple(self.examine(data))
        return Findings(data, checks, self.judge(checks))

    def unnoticed(self, data: xr.Dataset) -> list[str]:
        """The mutants of `notices` that leave every check as it was: there should be none."""
        with np.errstate(all="ignore"):  # logarithms of changed numbers need not exist
            return [
                f"{variable} {name}"
                for variable, mutants in self.notices.items()
                for mutant in mutants
                for name, changed in mutant.of(data[variable])
                if self.findings(data.assign({variable: changed})).as_expected
            ]
