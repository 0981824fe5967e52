"""A folder of finished cells: each is there whole or not at all, whatever dies while it is written."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from .._message import message
from .content import Damaged, decode

_README = b"The finished cells of a largeprompt sweep: run it again to complete or read them.\n"
_STALE_SECONDS = 3600  # a cell is written in one go: an hour later its writer is dead


class Store:
    """Cells by address in one folder, which several processes may share.

    A cell is written to a temporary file of the same folder, forced to the disk, and renamed: readers see the old state or
    the new one. Equal addresses mean equal results, so that two writers of one cell cannot disagree.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.token = uuid.uuid4().hex  # of this sweep and its workers, in the names of their files

    def prepare(self) -> None:
        """Make the folder ready to be written to, or raise `OSError` before anything is computed."""
        with self._explained():
            created = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            if created:
                _force(self.folder.parent)
        self._publish(_README, "README.txt")
        self._remove_stale()

    def path(self, address: str) -> Path:
        """Where the cell of that address is, or will be."""
        return self.folder / f"{address}.cell"

    def write(self, address: str, content: bytes) -> None:
        """Store a finished cell; when this returns it is on the disk."""
        self._publish(content, self.path(address).name)

    def read(self, address: str) -> tuple[xr.Dataset, dict[str, Any]] | None:
        """The data of a cell and the record of their making, None if it is not there; `Damaged` if it is not whole."""
        try:
            content = self.path(address).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        data, record = decode(content)
        if record["address"] != address:
            raise Damaged(f"holds another cell, {record['address']}")
        return data, record

    def _publish(self, content: bytes, name: str) -> None:
        temporary = self.folder / f"{name}.{self.token}.{uuid.uuid4().hex}.tmp"
        with self._explained():
            try:
                with open(temporary, "xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _force(self.folder)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """An `OSError` with its number kept, that says what became of the sweep."""
        try:
            yield
        except OSError as error:
            text = message(
                "finished cells must be stored in a folder that can be written to",
                f"{error.strerror} for {str(self.folder)!r}",
                "free space or choose another folder, and run again: what is stored there is kept",
            )
            raise OSError(error.errno, text) from error

    def remove_unfinished(self) -> None:
        """Remove files that workers of this sweep were writing when they were stopped."""
        for path in self.folder.glob(f"*.{self.token}.*.tmp"):
            path.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove what writers left behind that were killed; a live writer's file is younger."""
        for path in self.folder.glob("*.tmp"):
            with contextlib.suppress(FileNotFoundError):  # another process may clean too
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()


def _force(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
