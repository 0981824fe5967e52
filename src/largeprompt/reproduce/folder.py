"""The folder of a reproduction.

reproduce.json      scale, seed, and for each study asked for the address of its result
cells/              the results: the store of a sweep, with a checksum in every file
data/NAME.nc        the same results for other programs, written with the report
figures/NAME.pdf    and .png
index.html          the report, made from cells/ alone
derived.json        what the files in data/ and figures/ were made from, and their checksums

The address of a result is a hash of study, scale, seed and code. A result is reused only if all of
them are the same, and a file that was damaged or exchanged is not read.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import xarray as xr

from .._files import atomic_write
from .._message import error
from ..sweep import Sweep
from ..sweep.store import Damaged, Store
from . import studies
from .derived_files import DerivedFiles
from .record import Job

MANIFEST = "reproduce.json"
CELLS = "cells"
_FUNCTION = "largeprompt.reproduce.record:cell"
_MADE_BY = ("python", "jax", "numpy", "backend", "date")  # kept by the sweep


class Manifest(NamedTuple):
    """What a folder was made for: `studies` maps names to addresses of results."""

    scale: str
    seed: int
    studies: dict[str, str]


class Stored(NamedTuple):
    """Results of a folder: usable records, and for the other studies why there is none."""

    manifest: Manifest
    records: dict[str, xr.Dataset]
    lost: dict[str, str]


def open_folder(
    folder: Path, scale: str, seed: int, names: Iterable[str], resume: bool
) -> tuple[Sweep | None, list[str]]:
    """Create the folder, or check that it can be resumed; nothing of another origin is replaced.

    Returns the sweep that computes the studies of `names` without a result into `folder / CELLS`,
    None if all have one, and one line for every result that is kept or replaced.
    """
    before = _earlier_results(folder, scale, seed, resume)
    jobs = {name: Job(name, scale, seed) for name in names}
    wanted = {
        name: cell.address for name, cell in zip(jobs, _sweep(jobs.values()).cells, strict=True)
    }
    states = {
        name: _state(folder, name, address, before.get(name)) for name, address in wanted.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / MANIFEST) as name:
        manifest = Manifest(scale, seed, {**before, **wanted})
        Path(name).write_text(json.dumps(manifest._asdict()) + "\n")
    missing = [job for name, job in jobs.items() if states[name].is_missing]
    notes = [state.note for state in states.values() if state.note]
    return _sweep(missing) if missing else None, notes


def _sweep(jobs: Iterable[Job]) -> Sweep:
    return Sweep(_FUNCTION, [job._asdict() for job in jobs])


def _earlier_results(folder: Path, scale: str, seed: int, resume: bool) -> dict[str, str]:
    """Addresses of the results that the folder has, if they may be continued."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return {}
    if not (folder / MANIFEST).is_file():
        raise error(
            "the output must be a new or empty folder, or one written by this command",
            f"{str(folder)!r}, which holds something else",
            "pass another --out",
        )
    stored = read_manifest(folder)
    if not stored_names(folder):
        return {}
    if not resume:
        raise error(
            "existing results are not overwritten",
            f"{str(folder)!r}, which holds some",
            "pass --resume to keep them and compute what is missing, or another --out",
        )
    if (stored.scale, stored.seed) != (scale, seed):
        raise error(
            f"{str(folder)!r} holds results of scale {stored.scale!r} and seed {stored.seed}",
            f"scale {scale!r} and seed {seed}",
            "pass another --out",
        )
    return stored.studies


class _State(NamedTuple):
    """Whether the result of a study is missing, and a line about the one that is stored, if any."""

    is_missing: bool
    note: str


def _state(folder: Path, name: str, address: str, before: str | None) -> _State:
    """State of the result of a study; a damaged one is removed."""
    try:
        if load(folder, address) is not None:
            return _State(False, f"kept      {name}: same configuration, key and code")
    except Damaged as cause:
        _store(folder).path(address).unlink()
        return _State(True, f"replacing {name}: damaged, {cause}")
    changed = before not in (None, address)
    return _State(True, f"replacing {name}: computed by other code" if changed else "")


def read_manifest(folder: Path) -> Manifest:
    """Read what the folder was made for."""
    path = folder / MANIFEST
    if not path.is_file():
        raise error(
            "a report is made from a folder written by `largeprompt reproduce`",
            f"{str(folder)!r}, which has no {MANIFEST}",
            "name another folder, or run `largeprompt reproduce` first",
        )
    with suppress(ValueError, TypeError, AttributeError):  # not JSON, not text, or other fields
        found = Manifest(**json.loads(path.read_bytes()))
        texts = [found.scale, *found.studies, *found.studies.values()]
        if isinstance(found.seed, int) and all(isinstance(text, str) for text in texts):
            return found
    raise error(
        f"{MANIFEST} must hold the scale, the seed and the studies of a reproduction",
        f"{str(path)!r}, which is damaged or of another version",
        "run `largeprompt reproduce` with another --out",
    )


def _store(folder: Path) -> Store:
    return Store(folder / CELLS)


def load(folder: Path, address: str) -> xr.Dataset | None:
    """Read a result, or None; raises `Damaged` if one bit differs from what was written."""
    try:
        found = _store(folder).read(address)
    except OSError as cause:
        raise Damaged(str(cause)) from cause
    if found is None:
        return None
    data, made = found
    return data.assign_attrs(code_version=made["code"], **{name: made[name] for name in _MADE_BY})


def stored_names(folder: Path) -> list[str]:
    """Studies whose results are stored. No result is read: this also works in the middle of an
    import that was interrupted.
    """
    addresses = read_manifest(folder).studies
    return [name for name, address in addresses.items() if _store(folder).path(address).exists()]


def load_all(folder: Path) -> Stored:
    """Results of the studies the folder was made for, in the paper's order."""
    manifest = read_manifest(folder)
    records, lost = {}, {}
    order = {name: place for place, name in enumerate(studies.every_study())}
    for name in sorted(manifest.studies, key=lambda name: order.get(name, len(order))):
        try:
            record = load(folder, manifest.studies[name])
        except Damaged as cause:
            lost[name] = f"damaged: {cause}"
            continue
        if name not in order:
            lost[name] = "not a study of this version"
        elif record is None:
            lost[name] = "missing: no result is stored"
        else:
            records[name] = record
    return Stored(manifest, records, lost)


def data_name(study: str) -> str:
    """File of a result for other programs, in the folder of a reproduction."""
    return f"data/{study}.nc"


def export(folder: Path, stored: Stored) -> None:
    """Write each result to data/NAME.nc unless it is there already.

    Also removes results that no study of a complete folder uses.
    """
    (folder / "data").mkdir(exist_ok=True)
    files = DerivedFiles(folder)
    for name, record in stored.records.items():
        address, file = stored.manifest.studies[name], data_name(name)
        if files.up_to_date(address, [file]):
            continue
        with atomic_write(folder / file) as target:
            record.to_netcdf(target, engine="scipy")
        files.made(address, [file])
    if not stored.lost:
        used = {_store(folder).path(address) for address in stored.manifest.studies.values()}
        for path in (folder / CELLS).glob(f"*{next(iter(used)).suffix}"):
            if path not in used:
                path.unlink()
