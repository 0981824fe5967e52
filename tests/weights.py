"""Weights of real models for tests: those that `largeprompt models fetch` stored."""

import os
from pathlib import Path

import pytest

from largeprompt.models import weights_path

REQUIRED = "LARGEPROMPT_WEIGHTS_REQUIRED"  # if set, missing weights fail the tests


def fetched(name: str) -> Path:
    """Path of the weights. Without them the test is skipped, or fails if they are required."""
    try:
        return weights_path(name)
    except FileNotFoundError as error:
        if os.environ.get(REQUIRED):
            pytest.fail(str(error))
        pytest.skip(str(error))
