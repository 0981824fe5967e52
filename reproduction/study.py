"""What a study is and what it returns. To add one, write one file with:

    import largeprompt as lp

    def measure(config, key):
        return xr.Dataset(...)  # a pure function of its arguments: no files, no figures

    def examine(data):
        return [at_most("statement in one line", data.gap.max(), bound), ...]

    def panels(data):
        return [Panel([Series("gap", data.length.values, data.gap.values, 0)], LENGTH, "gap")]

    STUDY = Study(
        name="theorem-4.3",
        title="...",
        source="Theorem 4.3",
        place=4.3,  # in the order of the page; studies without a place come last
        of_paper=True,  # False, the default, for a statement of this project
        statement="the claim in words",
        formula=r"TeX, shown as MathML",
        restriction="for which part of its cases the statement holds (may be left out)",
        method="what is computed, what is exact, what is estimated and with what error",
        unknown="what we do not know about the paper's statement (may be left out)",
        quick={"lengths": [10, 100]},  # plain JSON; the same keys at both scales
        full={"lengths": [10, 100, 1000]},
        measure=measure,
        examine=examine,
        panels=panels,  # variables over "length" are drawn without it
        caption="what the figure shows, in one or two sentences",
        notices={"gap": times(3) + power_of("length", 0.1)},  # wrong numbers it must detect
        context={"time": "drawn in the figure"},  # variables that no check uses, and why
        broken=broken,  # replaces a part of the library by a wrong one that it must detect
    )

`python -m reproduction --study path/to/file.py` runs it with table, figures and page. In the folder
`studies` it is part of the default run, unless it needs fetched `weights` of models: such studies
run if they are named. Nothing else lists studies.

**Verdicts.** Every number a verdict depends on is a `Check`, whose bounds are written down before
the number is computed. A check has a part:

    claim      the statement itself
    boundary   a case where the claim is known to fail, here L = 1; holds if it fails there
    control    a case outside the hypotheses, where the conclusion must fail
    accuracy   how well the numbers are known: error estimates, a second computation, a simulation

`examine` uses the variables and coordinates of the dataset and nothing else, so that the power of a
study can be tested: `notices` lists wrong versions of its numbers (`mutants.py`), `broken(patch)`
breaks the library by `patch(owner, name, wrong)`, such as `patch(lp, "attend", wrong)`, and
`tests/test_paper.py` asserts that each of them changes the verdict (broken code with the settings
`fewer` in place of those of the quick scale), and that every variable is in `notices` or `context`.

The rule `judge`: `not testable` if an accuracy check or a control fails, or there is no claim;
`fails` if a claim or a boundary check fails; `holds for L >= 2` if there is a boundary check;
`holds` otherwise. The first claim is quoted with the verdict. A study can pass another rule as
`judge=`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsFloat

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from .mutants import Mutant
from .panels import Panel, default_panels

Part = Literal["claim", "boundary", "control", "accuracy"]
Word = Literal["holds", "holds for L >= 2", "fails", "not testable"]
Config = Mapping[str, Any]
Patch = Callable[[Any, str, Any], object]  # (owner, name, replacement), as `monkeypatch.setattr`
INFINITE = "infinite"  # attribute of a variable that may be infinite or NaN: where, and why


class Check(NamedTuple):
    """One statement, the number found and its bounds. `holds` is computed, never set."""

    statement: str
    value: float
    low: float
    high: float
    part: Part = "claim"

    @property
    def holds(self) -> bool:
        """Whether low <= value <= high. A value that is not finite does not hold."""
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
    """Check that a number, such as an error, is small."""
    return Check(statement, float(value), -math.inf, high, part)


def at_least(statement: str, value: SupportsFloat, low: float, part: Part = "claim") -> Check:
    """Check that a number, such as an effect, is large."""
    return Check(statement, float(value), low, math.inf, part)


def between(
    statement: str, value: SupportsFloat, low: float, high: float, part: Part = "claim"
) -> Check:
    """Check that a number, such as a slope, lies in an interval."""
    return Check(statement, float(value), low, high, part)


def near_simulation(statement: str, exact: xr.DataArray, data: xr.Dataset) -> list[Check]:
    """Check an exact number against `simulated` within five standard errors, which are small."""
    distance = (data.simulated - exact) / data.simulated_error
    relative = data.simulated_error / data.simulated
    return [
        between(
            f"{statement} against simulation, in standard errors", distance, -5.0, 5.0, "accuracy"
        ),
        at_most("that simulation: relative standard error", relative, 0.05, "accuracy"),
    ]


def power(L: SupportsFloat) -> str:
    """Write a length in powers of ten, as in 1e9."""
    return f"{float(L):.0e}".replace("e+0", "e").replace("e+", "e")


class Verdict(NamedTuple):
    """One of four words, and the check that decided it."""

    word: Word
    evidence: str


def judge(checks: Sequence[Check]) -> Verdict:
    """Derive the verdict from the checks, by the rule at the top of this file."""
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
    """What a study found: data, checks, and the verdict derived from them."""

    data: xr.Dataset
    checks: tuple[Check, ...]
    verdict: Verdict

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is that the claim holds, and every check holds."""
        return self.verdict.word.startswith("holds") and all(check.holds for check in self.checks)


@dataclass(frozen=True)
class Study:
    """A claim or figure of the paper and the functions that test it; see the top of this file."""

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
    panels: Callable[[xr.Dataset], list[Panel]] = default_panels
    caption: str = "The numbers of this study against prompt length."
    notices: Mapping[str, Sequence[Mutant]] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    broken: Callable[[Patch], None] | None = None
    fewer: Config = field(default_factory=dict)
    judge: Callable[[Sequence[Check]], Verdict] = judge
    restriction: str = ""
    unknown: str = ""
    of_paper: bool = False
    place: float = math.inf
    weights: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the name, which is part of file names and of addresses on the page."""
        if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", self.name):
            raise ValueError(
                "the name of a study must be lowercase letters and digits, joined by '-' or '.'; "
                f"received {self.name!r}"
            )

    def config(self, scale: str) -> Config:
        """Configuration of a scale, "quick" or "full"."""
        if scale not in ("quick", "full"):
            raise ValueError(f"scale must be 'quick' or 'full'; received {scale!r}")
        return self.quick if scale == "quick" else self.full

    def run(self, config: Config, key: Key[Array, ""]) -> Findings:
        """Measure, examine and judge."""
        return self.findings(self.measure(config, key))

    def findings(self, data: xr.Dataset) -> Findings:
        """Examine and judge data that were measured before."""
        checks = tuple(self.examine(data))
        return Findings(data, checks, self.judge(checks))

    def unnoticed(self, data: xr.Dataset) -> list[str]:
        """Mutants of `notices` that break no check; there should be none."""
        with np.errstate(all="ignore"):  # logarithms of changed numbers need not exist
            return [
                f"{variable} {name}"
                for variable, mutants in self.notices.items()
                for mutant in mutants
                for name, changed in mutant.of(data[variable])
                if self.findings(data.assign({variable: changed})).as_expected
            ]
