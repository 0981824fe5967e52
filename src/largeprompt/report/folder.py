"""The folder of a reproduction: one netCDF file a study, written when the study ends, so that nothing finished is ever lost.

reproduce.json      scale and seed
data/NAME.nc        data, checks, verdict, configuration, versions, key, run time
figures/NAME.pdf    and .png
index.html          the report, made from data/ alone
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import xarray as xr

from .. import _checks
from .._files import whole
from ..studies import STUDIES
from ..studies.record import Job, compute, fingerprint

MANIFEST = "reproduce.json"

# The place of every way to run studies: takes jobs, gives each back with its record, or with what went wrong, as it ends.
Runner = Callable[[Sequence[Job]], Iterable[tuple[Job, xr.Dataset | Exception]]]


def one_after_the_other(jobs: Sequence[Job]) -> Iterator[tuple[Job, xr.Dataset | Exception]]:
    """In this process. A study that fails does not stop the others."""
    for job in jobs:
        try:
            found = compute(job)
        except Exception as error:
            yield job, error
        else:
            yield job, found


def open_folder(folder: Path, scale: str, seed: int, resume: bool) -> None:
    """Make the folder ready for results, or refuse: what is there is not ours to replace."""
    manifest = folder / MANIFEST
    wanted = {"scale": scale, "seed": seed}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not folder.is_dir() or not manifest.is_file():
            raise ValueError(
                _checks.message(
                    "the output must be a new or empty folder, or one written by this command",
                    f"{str(folder)!r}, which holds something else",
                    "pass another --out",
                )
            )
        if not resume:
            raise ValueError(
                _checks.message(
                    "existing results are not overwritten",
                    f"{str(folder)!r}, which holds some",
                    "pass --resume to keep them and compute what is missing, or another --out",
                )
            )
        stored = json.loads(manifest.read_text())
        if stored != wanted:
            raise ValueError(
                _checks.message(
                    f"{str(folder)!r} holds results of scale {stored['scale']!r} and seed {stored['seed']}",
                    f"scale {scale!r} and seed {seed}",
                    "pass another --out",
                )
            )
        return
    (folder / "data").mkdir(parents=True, exist_ok=True)
    with whole(manifest) as name:
        Path(name).write_text(json.dumps(wanted) + "\n")


def data_file(folder: Path, study: str) -> Path:
    """Where a study is stored."""
    return folder / "data" / f"{study}.nc"


def store(folder: Path, record: xr.Dataset) -> None:
    """Write one record; a file appears whole or not at all."""
    target = data_file(folder, record.attrs["study"])
    target.parent.mkdir(exist_ok=True)
    with whole(target) as name:
        record.to_netcdf(name, engine="scipy")


def load(folder: Path, study: str) -> xr.Dataset | None:
    """The stored record, or None where there is none that can be read."""
    path = data_file(folder, study)
    if not path.is_file():
        return None
    try:
        with xr.open_dataset(path, engine="scipy") as record:
            found = record.load()
    except Exception:  # a damaged file: readers raise what they please
        return None
    return found if found.attrs.get("study") == study else None


def is_current(folder: Path, job: Job) -> bool:
    """Whether the folder holds this very computation: same configuration, key and code."""
    record = load(folder, job.study)
    return record is not None and record.attrs.get("fingerprint") == fingerprint(job)


def load_all(folder: Path) -> dict[str, xr.Dataset]:
    """Every stored study, in the order of the paper."""
    if not (folder / "data").is_dir():
        raise ValueError(
            _checks.message(
                "a report is made from a folder written by `largeprompt reproduce`",
                f"{str(folder)!r}, which has no folder data",
                "name another folder, or run `largeprompt reproduce` first",
            )
        )
    found = {name: load(folder, name) for name in STUDIES}
    kept = {name: record for name, record in found.items() if record is not None}
    if not kept:
        raise ValueError(
            _checks.message(
                "a report needs at least one stored study",
                f"{str(folder)!r}, which holds none that can be read",
                "run `largeprompt reproduce --resume` on it",
            )
        )
    return kept
