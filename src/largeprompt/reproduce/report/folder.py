"""The folder of a reproduction: one netCDF file a study, written when the study ends, so that nothing finished is ever lost.

reproduce.json      scale, seed, and the studies asked for
data/NAME.nc        data, checks, verdict, configuration, versions, key, run time, checksum
figures/NAME.pdf    and .png
index.html          the report, made from data/ alone
"""

import hashlib
import io
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import xarray as xr

from ... import _checks
from ..._files import whole
from ..studies import STUDIES
from ..studies.record import Job, compute, fingerprint

MANIFEST = "reproduce.json"

_BLANK = "0" * 64
_CHECKSUM = (
    "SHA-256 of this file with these digits set to 0: "  # the attribute "checksum" begins so
)

# What a runner yields as each study ends: the job, its record or the exception, and whether the
# record was found stored
Finished = Generator[tuple[Job, xr.Dataset | Exception, bool], None, None]
Runner = Callable[[Sequence[Job]], Finished]


def one_after_the_other(jobs: Sequence[Job]) -> Finished:
    """In this process. A study that fails does not stop the others."""
    for job in jobs:
        try:
            found = compute(job)
        except Exception as error:
            yield job, error, False
        else:
            yield job, found, False


class Damaged(Exception):
    """A stored study that is not what was written, or not what its name says."""


class Manifest(NamedTuple):
    """What a folder was made for."""

    scale: str
    seed: int
    studies: list[str]


class Stored(NamedTuple):
    """The content of a folder: the usable records, and why the other studies have none."""

    manifest: Manifest
    records: dict[str, xr.Dataset]
    lost: dict[str, str]


def open_folder(folder: Path, scale: str, seed: int, resume: bool, studies: Iterable[str]) -> None:
    """Make the folder ready for results of `studies`, or raise: no other file is replaced."""
    asked = list(studies)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not folder.is_dir() or not (folder / MANIFEST).is_file():
            raise ValueError(
                _checks.message(
                    "the output must be a new or empty folder, or one written by this command",
                    f"{str(folder)!r}, which holds something else",
                    "pass another --out",
                )
            )
        if any((folder / "data").glob("*.nc")) or (folder / "cells").exists():
            if not resume:
                raise ValueError(
                    _checks.message(
                        "existing results are not overwritten",
                        f"{str(folder)!r}, which holds some",
                        "pass --resume to keep them and compute what is missing, or another --out",
                    )
                )
            stored = read_manifest(folder)
            if (stored.scale, stored.seed) != (scale, seed):
                raise ValueError(
                    _checks.message(
                        f"{str(folder)!r} holds results of scale {stored.scale!r} "
                        f"and seed {stored.seed}",
                        f"scale {scale!r} and seed {seed}",
                        "pass another --out",
                    )
                )
            asked = [*stored.studies, *asked]
    (folder / "data").mkdir(parents=True, exist_ok=True)
    wanted = Manifest(scale, seed, list(dict.fromkeys(asked)))
    with whole(folder / MANIFEST) as name:
        Path(name).write_text(json.dumps(wanted._asdict()) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """What the folder was made for."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(
            _checks.message(
                "a report is made from a folder written by `largeprompt reproduce`",
                f"{str(folder)!r}, which has no {MANIFEST}",
                "name another folder, or run `largeprompt reproduce` first",
            )
        )
    with suppress(ValueError, TypeError):  # not JSON, not text, or other fields
        found = Manifest(**json.loads(path.read_bytes()))
        names = isinstance(found.studies, list) and all(isinstance(n, str) for n in found.studies)
        if isinstance(found.scale, str) and isinstance(found.seed, int) and names:
            return found
    raise ValueError(
        _checks.message(
            f"{MANIFEST} must hold the scale, the seed and the studies of a reproduction",
            f"{str(path)!r}, which is damaged or of another version",
            "run `largeprompt reproduce` with another --out",
        )
    )


def data_file(folder: Path, study: str) -> Path:
    """Where a study is stored."""
    return folder / "data" / f"{study}.nc"


def store(folder: Path, record: xr.Dataset) -> None:
    """Write one record and its checksum as one file, which appears whole or not at all."""
    target = data_file(folder, record.attrs["study"])
    target.parent.mkdir(exist_ok=True)
    unsigned = record.assign_attrs(checksum=_CHECKSUM + _BLANK)
    blank = bytes(unsigned.to_netcdf(engine="scipy"))
    marked = (_CHECKSUM + _BLANK).encode()
    assert blank.count(marked) == 1
    content = blank.replace(marked, (_CHECKSUM + hashlib.sha256(blank).hexdigest()).encode())
    with whole(target) as name:
        Path(name).write_bytes(content)


def load(folder: Path, study: str) -> xr.Dataset | None:
    """The stored record, or None; raises `Damaged` if one bit differs from what was written."""
    try:
        content = data_file(folder, study).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(str(error)) from error
    before, mark, after = content.partition(_CHECKSUM.encode())
    if not mark:
        raise Damaged("it has no checksum")
    digits, rest = after[: len(_BLANK)], after[len(_BLANK) :]
    blank = before + mark + _BLANK.encode() + rest
    if hashlib.sha256(blank).hexdigest().encode() != digits:
        raise Damaged("its checksum does not match")
    with xr.open_dataset(io.BytesIO(content), engine="scipy") as record:
        found = record.load()
    if found.attrs.get("study") != study:
        raise Damaged(f"it holds the study {found.attrs.get('study')!r}")
    return found


def is_current(folder: Path, job: Job) -> bool:
    """Whether the folder holds this computation, of the same configuration, key and code.

    Raises `Damaged` if the stored record is not what was written.
    """
    record = load(folder, job.study)
    return record is not None and record.attrs.get("fingerprint") == fingerprint(job)


def load_all(folder: Path) -> Stored:
    """The studies the folder was made for, in the paper's order: their records, or why none."""
    manifest = read_manifest(folder)
    records, lost = {}, {}
    order = {name: place for place, name in enumerate(STUDIES)}
    for name in sorted(manifest.studies, key=lambda name: order.get(name, len(order))):
        try:
            record = load(folder, name)
        except Damaged as error:
            lost[name] = f"damaged: {error}"
            continue
        if name not in STUDIES:
            lost[name] = "not a study of this version"
        elif record is None:
            lost[name] = "missing: no result is stored"
        elif (record.attrs["scale"], record.attrs["seed"]) != (manifest.scale, str(manifest.seed)):
            lost[name] = "computed at another scale or from another seed"
        else:
            records[name] = record
    return Stored(manifest, records, lost)
