"""The folder of a reproduction.

data/NAME.nc        the result of a study: numbers, checks, verdict, configuration, versions, key
data/NAME.missing   why a study that was asked for has no result
figures/NAME.pdf    and .png
index.html          the page, made from data/ alone
cells/              what was computed, for `--resume`; may be deleted

No file lists others, so runs of different studies in one folder do not disturb each other.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import xarray as xr

CELLS = "cells"
_ATTRIBUTES = {  # of every result
    *("study", "file", "code", "scale", "seed", "key", "configuration", "seconds", "date"),
    *("largeprompt", "python", "jax", "numpy", "backend", "verdict", "evidence"),
}
_OURS = {"data", "figures", "index.html", CELLS}


class Stored(NamedTuple):
    """Results of a folder, and for studies without one the reason; with the file of each study."""

    records: dict[str, xr.Dataset]
    lost: dict[str, str]
    files: dict[str, Path]

    def of(self, name: str) -> str:
        """Attribute that all results share."""
        return next((str(record.attrs[name]) for record in self.records.values()), "")


@contextmanager
def atomic(path: Path) -> Iterator[str]:
    """Yield a temporary path, renamed to `path` on success and deleted on error."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield name
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def data_name(study: str) -> str:
    """File of a result, in the folder of a reproduction."""
    return f"data/{study}.nc"


def prepare(folder: Path, scale: str, seed: int, files: Mapping[str, Path], resume: bool) -> None:
    """Create the folder, or check that it can be resumed; nothing of another origin is replaced.

    Studies without a result get a file that says so, until they have one.
    """
    found = {path.name for path in folder.glob("*") if not path.name.startswith(".")}
    if not found <= _OURS:
        raise ValueError(
            "the output must be a new or empty folder, or one written by this command; received "
            f"{str(folder)!r}, which holds {sorted(found - _OURS)[0]!r}. To fix: pass another --out"
        )
    stored = stored_names(folder)
    if stored and not resume:
        raise ValueError(
            f"existing results are not overwritten; received {str(folder)!r}, which holds some. "
            "To fix: pass --resume to keep them and compute what is missing, or another --out"
        )
    for name in stored:
        record = read(folder, name)
        if record is not None and not _is_of(record, scale, seed):
            raise ValueError(
                f"{str(folder)!r} holds results of scale {record.attrs.get('scale')!r} and seed "
                f"{record.attrs.get('seed')}; received scale {scale!r} and seed {seed}. To fix: "
                "pass another --out"
            )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name in set(files) - set(stored):
        _missing(folder, name).write_text("it was asked for, and not computed\n")


def _is_of(record: xr.Dataset, scale: str, seed: int) -> bool:
    return (record.attrs.get("scale"), record.attrs.get("seed")) == (scale, str(seed))


def _missing(folder: Path, name: str) -> Path:
    return folder / "data" / f"{name}.missing"


def stored_names(folder: Path) -> list[str]:
    """Studies that have a file of results, which may be damaged."""
    return sorted(path.stem for path in folder.glob("data/*.nc") if path.name[0] != ".")


def read(folder: Path, name: str) -> xr.Dataset | None:
    """The result of a study, None if there is no whole file of it."""
    try:
        record = xr.load_dataset(folder / data_name(name), engine="scipy", decode_timedelta=False)
    except Exception:  # many classes, depending on what is damaged
        return None
    if not set(record.attrs) >= _ATTRIBUTES:
        return None
    for variable in record.variables:  # netCDF has big-endian numbers and no text
        dtype = record[variable].dtype
        kind = str if dtype.kind == "O" else dtype.newbyteorder("=")
        record[variable] = record[variable].astype(kind)
    return record


def write(folder: Path, name: str, record: xr.Dataset) -> None:
    """Store a result; the reason why it was missing goes."""
    with atomic(folder / data_name(name)) as target:
        record.to_netcdf(target, engine="scipy")
    _missing(folder, name).unlink(missing_ok=True)


def fail(folder: Path, name: str, reason: str) -> None:
    """Note why a study has no result; an older one, of other code, goes."""
    (folder / data_name(name)).unlink(missing_ok=True)
    _missing(folder, name).write_text(f"it could not be computed: {reason}\n", encoding="utf-8")


def load_all(
    folder: Path,
    files: Mapping[str, Path],
    asked: Iterable[str] = (),
    kind: tuple[str, int] | None = None,
) -> Stored:
    """Results of the studies of `files`, in their order, and why others have none.

    `asked` names those that must have one, `kind` the scale and the seed that all must have.
    """
    reasons = {path.stem: path for path in folder.glob("data/*.missing")}
    if not folder.joinpath("data").is_dir():
        raise ValueError(
            "a report is made from a folder written by `python -m reproduction`; received "
            f"{str(folder)!r}. To fix: name another folder"
        )
    names = {*stored_names(folder), *reasons, *asked}
    records, lost = {}, {}
    for name in sorted(names, key=lambda name: (name not in files, [*files, name].index(name))):
        record = read(folder, name)
        if name not in files:
            lost[name] = "not a study of this version; name its file with --study"
        elif record is not None and record.attrs.get("study") != name:
            lost[name] = f"its file holds the result of {record.attrs.get('study')!r}"
        elif record is not None and kind is not None and not _is_of(record, *kind):
            lost[name] = "its file holds a result of another scale or seed"
        elif record is not None:
            records[name] = record
        elif (folder / data_name(name)).exists():
            lost[name] = "its file is damaged"
        else:
            known = reasons.get(name)
            lost[name] = known.read_text(encoding="utf-8").strip() if known else "it was deleted"
    kinds = {(record.attrs["scale"], record.attrs["seed"]) for record in records.values()}
    if len(kinds) > 1:
        shown = ", ".join(f"{scale} {seed}" for scale, seed in sorted(kinds))
        raise ValueError(
            f"results of one folder must have one scale and one seed; received {shown}"
        )
    return Stored(records, lost, dict(files))
