"""Studies on other processes and machines, through a sweep."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import xarray as xr

from ..studies.record import Job
from ..sweep import Sweep
from .folder import Runner


def by_sweep(folder: Path, workers: int | None, cluster: str | None) -> Runner:
    """A runner on `workers` processes of this machine or on the Dask cluster at `cluster`.

    Every finished study is kept in `folder`/cells as soon as it ends, so a run that dies loses only what was being computed.
    """

    def run(jobs: Sequence[Job]) -> Iterator[tuple[Job, xr.Dataset | Exception]]:
        if not jobs:
            return
        sweep = Sweep("largeprompt.studies.record:cell", [job._asdict() for job in jobs])
        result = sweep.run(folder / "cells", workers=workers, cluster=cluster)
        failed = {failure.configuration["study"]: failure for failure in result.failures}
        for job, found in zip(jobs, result.datasets, strict=True):
            if found is None:
                yield job, RuntimeError(failed[job.study].traceback)
            else:
                yield job, found

    return run
