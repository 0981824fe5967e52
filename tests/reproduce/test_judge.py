"""Verdicts follow from checks by the rule in studies/study.py."""

import math

import pytest

from largeprompt.reproduce.studies.study import Check, Verdict, at_least, at_most, between, judge

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
