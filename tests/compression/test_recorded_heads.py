"""Compressed prompts of real heads: recordings in benchmarks/data, queries after the prompt."""

from typing import get_args

import numpy as np
import pytest
from benchmarks import compression
from benchmarks.record_heads import DATA

from largeprompt.compression.compress import Choose
from largeprompt.models import Recording

SIZE = 65


def _errors(cases, **rule):
    return np.array([case.error(SIZE, rule).relative for case in cases])


@pytest.fixture(scope="module")
def decoder():
    """One head for each of three texts and three layers."""
    cases = compression.decoder(Recording.load(DATA / "decoder.npz"), later=True)
    return list(cases)[::2]


@pytest.mark.slow
def test_compress_of_decoder_heads_beats_the_most_attended_tokens(decoder):
    """Medians of all rules, and the default's 90th percentile, on three unseen texts."""
    most = _errors(decoder, method="most attended")
    found = {rule: _errors(decoder, choose=rule) for rule in get_args(Choose)}
    assert len(most) == 9
    for rule, errors in found.items():
        assert np.median(errors) < np.median(most) / 8, rule
    assert np.percentile(found["leverage"], 90) < np.percentile(most, 90) / 8
    assert np.median(found["leverage"]) <= np.median(found["attention mass"])
    assert np.mean(found["leverage"]) <= np.mean(found["attention mass"])


@pytest.mark.parametrize("model", ["encoder", "learner"])
def test_compress_of_other_heads_beats_the_most_attended_tokens(model):
    cases = list(getattr(compression, model)(Recording.load(DATA / f"{model}.npz")))
    most = np.median(_errors(cases, method="most attended"))
    for rule in get_args(Choose):
        assert np.median(_errors(cases, choose=rule)) < most / 3, rule


def test_recordings_for_tests_are_small():
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 4e6
