"""Studies that take no time, for the tests of everything around studies."""

from collections.abc import Callable

import xarray as xr

from largeprompt.reproduce.studies import Check, Study

_TEXTS = ("title", "source", "statement", "method")


def fake_study(
    measure: Callable[..., xr.Dataset],
    examine: Callable[[xr.Dataset], list[Check]],
    name: str = "fake",
    **options,
) -> Study:
    """A study with made-up texts and settings."""
    return Study(
        name=name,
        formula="x",
        quick={"n": 3},
        full={"n": 4},
        measure=measure,
        examine=examine,
        **dict.fromkeys(_TEXTS, "made up"),
        **options,
    )
