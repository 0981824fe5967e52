"""Mutants change the numbers as their name says, and reveal checks that cannot fail."""

import numpy as np
import xarray as xr

from largeprompt.reproduce.studies import Study, at_most
from largeprompt.reproduce.studies.mutants import plus, power_of, times

from .fake_studies import fake_study

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
    return fake_study(
        lambda config, key: DATA,
        lambda data: [at_most("last error", data.error[:, -1].max(), bound)],
        **options,
    )


def test_unnoticed_lists_the_mutants_that_break_no_check():
    mutants = {"error": times(3, each="law") + plus(-0.5), "unused": times(3)}
    sharp, loose = (_study(bound, notices=mutants) for bound in (0.25, 100.0))
    assert sharp.unnoticed(DATA) == ["error plus -0.5", "unused times 3"]
    assert len(loose.unnoticed(DATA)) == 4
