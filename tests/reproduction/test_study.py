"""Verdicts follow from checks; mutants change the numbers, and reveal checks that cannot fail."""

import math

import numpy as np
import pytest
import xarray as xr

from reproduction.mutants import plus, power_of, times
from reproduction.study import Check, Study, Verdict, at_least, at_most, between, judge

GOOD, BAD = at_most("good", 0.0, 1.0), at_most("bad", 2.0, 1.0)


def test_check_holds_between_its_bounds():
    assert at_most("", 1.0, 1.0).holds
    assert not at_most("", 1.1, 1.0).holds
    assert not at_least("", 0.9, 1.0).holds
    assert between("", 0.5, 0.0, 1.0).holds
    assert not between("", -0.5, 0.0, 1.0).holds
    for value in (math.nan, math.inf, -math.inf):
        assert not Check("", value, -math.inf, math.inf).holds


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([], "not testable"),
        ([GOOD._replace(part="accuracy")], "not testable"),
        ([GOOD], "holds"),
        ([GOOD, BAD], "fails"),
        ([GOOD, GOOD._replace(part="boundary")], "holds for L >= 2"),
        ([GOOD, BAD._replace(part="boundary")], "fails"),
        ([BAD, GOOD._replace(part="boundary")], "fails"),
        ([GOOD, BAD._replace(part="control")], "not testable"),
        ([BAD, BAD._replace(part="accuracy")], "not testable"),
        ([GOOD, GOOD._replace(part="control"), GOOD._replace(part="accuracy")], "holds"),
    ],
)
def test_judge_follows_the_rule(checks, word):
    assert judge(checks).word == word


def test_judge_quotes_the_check_that_decides():
    assert judge([GOOD, BAD]) == Verdict("fails", "bad: 2 (at most 1)")
    assert judge([GOOD, GOOD]) == Verdict("holds", "good: 0 (at most 1)")


DATA = xr.Dataset(
    {"error": (("law", "length"), [[1.0, 0.1], [2.0, 0.2]]), "unused": 3.0},
    {"law": ["a", "b"], "length": [10.0, 100.0]},
)


def test_times_plus_and_power_of_change_the_whole_variable():
    (factor,), (offset,), (slope,) = times(3), plus(0.5), power_of("length", 0.5)
    error = DATA.error
    for mutant, expected in (
        (factor, 3 * error),
        (offset, error + 0.5),
        (slope, error * np.sqrt(error.length)),
    ):
        ((_, changed),) = mutant.of(error)
        np.testing.assert_allclose(changed, expected, rtol=1e-15)


def test_times_each_changes_one_slice_at_a_time():
    (mutant,) = times(3, each="law")
    names, changed = zip(*mutant.of(DATA.error), strict=True)
    assert names == ("times 3 at law = a", "times 3 at law = b")
    np.testing.assert_allclose(changed[0], [[3.0, 0.3], [2.0, 0.2]], rtol=1e-15)
    np.testing.assert_allclose(changed[1], [[1.0, 0.1], [6.0, 0.6]], rtol=1e-15)


def _study(bound: float, **options) -> Study:
    return Study(
        *("made-up", "", "", "", "x", ""),
        *({"n": 3}, {"n": 4}),
        measure=lambda config, key: DATA,
        examine=lambda data: [at_most("last error", data.error[:, -1].max(), bound)],
        **options,
    )


def test_config_is_of_one_of_two_scales():
    assert _study(1.0).config("full") == {"n": 4}
    with pytest.raises(ValueError, match="scale must be 'quick' or 'full'; received 'huge'"):
        _study(1.0).config("huge")


def test_unnoticed_lists_the_mutants_that_break_no_check():
    mutants = {"error": times(3, each="law") + plus(-0.5), "unused": times(3)}
    sharp, loose = (_study(bound, notices=mutants) for bound in (0.25, 100.0))
    assert sharp.unnoticed(DATA) == ["error plus -0.5", "unused times 3"]
    assert len(loose.unnoticed(DATA)) == 4
