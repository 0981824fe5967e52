"""Studies on other processes and machines, through a sweep."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ...sweep import Sweep
from ..studies.record import Job
from .folder import Finished, Runner


def by_sweep(folder: Path, workers: int | None, cluster: str | None) -> Runner:
    """A runner on `workers` processes of this machine or on the Dask cluster at `cluster`.

    Every finished study is kept in `folder`/cells as soon as it ends, so a run that dies loses only what was being computed.
    """

    def run(jobs: Sequence[Job]) -> Finished:
        if not jobs:
            return
        sweep = Sweep("largeprompt.reproduce.studies.record:cell", [job._asdict() for job in jobs])
        cells = sweep.iterate(folder / "cells", workers=workers, cluster=cluster)
        with closing(cells):
            for cell in cells:
                found = cell.data if cell.failure is None else RuntimeError(cell.failure.traceback)
                assert found is not None  # for the type checker: a cell has data or a failure
                yield Job(**cell.configuration), found, cell.reused

    return run
