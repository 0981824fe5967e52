"""Result of a sweep: the data of its cells, its failures, and one netCDF file of all cells."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from .._files import atomic_write, check_target
from .._message import error, message
from .cell import Cell
from .consolidate import consolidate
from .store import Damaged, Store


@dataclass(frozen=True)
class CellFailure:
    """A cell without a result; `key` is two words or None."""

    address: str
    configuration: Mapping[str, Any]
    key: tuple[int, int] | None
    reason: str
    traceback: str

    def __str__(self) -> str:
        return f"{json.dumps(dict(self.configuration))}: {self.reason}"


class FinishedCell(NamedTuple):
    """One cell of `Sweep.iterate`: its data or its failure; `reused` if it was already stored."""

    configuration: Mapping[str, Any]
    data: xr.Dataset | None
    failure: CellFailure | None
    reused: bool


def finished_cell(
    store: Store, cell: Cell, failure: CellFailure | None, *, reused: bool
) -> FinishedCell:
    """A finished cell, with its data read from the store."""
    data = None if failure is not None else read_cell(store, cell.address)[0]
    return FinishedCell(json.loads(cell.configuration), data, failure, reused)


def read_cell(store: Store, address: str) -> tuple[xr.Dataset, dict[str, Any]]:
    """Data and record of a cell that the sweep has stored."""
    try:
        found = store.read(address)
    except Damaged as cause:
        raise ValueError(_changed(store.path(address), str(cause))) from cause
    if found is None:
        raise ValueError(_changed(store.path(address), "no such file"))
    return found


@dataclass(frozen=True)
class SweepResult:
    """Result of `Sweep.run`: the data of the cells and the failures.

    `computed` and `reused` count the cells computed by this run and those that were already stored.
    `damaged` lists stored cells that had changed on disk and were computed again.
    """

    cells: tuple[Cell, ...]
    store: Store
    failures: tuple[CellFailure, ...]
    damaged: tuple[str, ...]
    computed: int
    reused: int

    @property
    def complete(self) -> bool:
        """Whether every cell has a result."""
        return not self.failures

    @cached_property
    def _found(self) -> list[tuple[xr.Dataset, dict[str, Any]] | None]:
        failed = {failure.address for failure in self.failures}
        return [
            None if cell.address in failed else read_cell(self.store, cell.address)
            for cell in self.cells
        ]

    @property
    def datasets(self) -> list[xr.Dataset | None]:
        """Data of each cell in the order of the configurations, None for a failure."""
        return [found and found[0] for found in self._found]

    def consolidate(self, *, allow_missing: bool = False) -> xr.Dataset:
        """All cells and their records as one dataset (layout: `docs/sweeps.md`).

        Raises if a cell failed, unless `allow_missing` is set: the dataset then leaves it out.
        """
        missing = sum(found is None for found in self._found)
        if missing and (not allow_missing or missing == len(self.cells)):
            raise error(
                "a consolidated file must contain every cell",
                f"{len(self.cells) - missing} of {len(self.cells)} cells",
                "see .failures and run the sweep again, or pass allow_missing=True",
            )
        return consolidate(
            [found for found in self._found if found is not None],
            missing=missing,
            failures=[str(failure) for failure in self.failures],
        )

    def write(self, path: str | os.PathLike[str], *, allow_missing: bool = False) -> None:
        """Write `consolidate()` atomically to a netCDF file."""
        target = Path(path)
        check_target(target, "data", (".nc",))
        data = self.consolidate(allow_missing=allow_missing)
        with atomic_write(target) as name:
            data.to_netcdf(name, engine="scipy")


def _changed(path: Path, what: str) -> str:
    rule = "the stored cells must stay as the sweep left them until they are read"
    return message(rule, f"{what}: {path}", "run the sweep again, it computes what is missing")
