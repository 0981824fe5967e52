"""Processes that tests start need no Dask: xarray would import it, half of the time they take."""

import sys
from typing import Any


def hide_dask() -> None:
    """As if Dask were not installed, in a process that has not imported it yet."""
    modules: dict[str, Any] = sys.modules
    modules.setdefault("dask", None)
    modules.setdefault("distributed", None)
