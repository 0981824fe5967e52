"""A folder of finished cells, written atomically: a crash never leaves a partial cell."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from .._message import message
from .cell_file import Damaged as Damaged
from .cell_file import decode

_README = b"The finished cells of a largeprompt sweep: run it again to complete or read them.\n"
_STALE_SECONDS = 3600  # a cell is written at once: after an hour its writer is dead


class Store:
    """Cells by address in one folder, which several processes may share.

    A cell is written to a temporary file in the same folder, flushed to the disk, and renamed, so
    readers see the old state or the new one. Equal addresses mean equal results, so two writers of
    one cell cannot disagree.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.token = uuid.uuid4().hex  # marks the temporary files of this sweep

    def prepare(self) -> None:
        """Create the folder and check that it can be written to; raises `OSError`."""
        with self._explain_os_errors():
            created = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            if created:
                _fsync(self.folder.parent)
        self._publish(_README, "README.txt")
        self._remove_stale()

    def path(self, address: str) -> Path:
        """File of the cell with that address."""
        return self.folder / f"{address}.cell"

    def write(self, address: str, encoded: bytes) -> None:
        """Store a finished cell durably."""
        self._publish(encoded, self.path(address).name)

    def read(self, address: str) -> tuple[xr.Dataset, dict[str, Any]] | None:
        """Data and record of a cell, None if it is not stored; `Damaged` if it has changed."""
        try:
            encoded = self.path(address).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        data, record = decode(encoded)
        if record["address"] != address:
            raise Damaged(f"contains another cell, {record['address']}")
        return data, record

    def _publish(self, encoded: bytes, name: str) -> None:
        temporary = self.folder / f"{name}.{self.token}.{uuid.uuid4().hex}.tmp"
        with self._explain_os_errors():
            try:
                with open(temporary, "xb") as file:
                    file.write(encoded)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _fsync(self.folder)

    @contextlib.contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        """Add to an `OSError` what it means for the sweep; its number stays."""
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
        """Remove the temporary files of workers of this sweep that were stopped."""
        for path in self.folder.glob(f"*.{self.token}.*.tmp"):
            path.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove old temporary files; a live writer's file is younger."""
        for path in self.folder.glob("*.tmp"):
            with contextlib.suppress(FileNotFoundError):  # another process may clean too
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()


def _fsync(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
