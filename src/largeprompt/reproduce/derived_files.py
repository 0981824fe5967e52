"""Files made from results, such as figures: which are up to date.

`derived.json` has for each file what it was made from and its checksum. A file that is missing, was
altered, or was made from something else is out of date.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._files import atomic_write

RECORD = "derived.json"


class DerivedFiles:
    """The files of a folder that were made from results; `source` says from what."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = self._read()

    def _read(self) -> dict[str, Any]:
        """What is recorded; nothing if that is missing or damaged: then all is made again."""
        with suppress(OSError, ValueError):
            found = json.loads((self.folder / RECORD).read_bytes())
            if isinstance(found, dict):
                return found
        return {}

    def up_to_date(self, source: str, names: Iterable[str]) -> bool:
        """Whether all these files were made from `source` and are as they were written."""
        return all(self._made.get(name) == [source, self._checksum(name)] for name in names)

    def made(self, source: str, names: Iterable[str]) -> None:
        """Record that these files were made from `source`."""
        self._made |= {name: [source, self._checksum(name)] for name in names}
        self._write()

    def remove_others(self, names: Iterable[str]) -> None:
        """Remove files that were made before and are not among `names`: they are out of date."""
        others = set(self._made) - set(names)
        for name in others:
            (self.folder / name).unlink(missing_ok=True)
            del self._made[name]
        if others:
            self._write()

    def _checksum(self, name: str) -> str:
        path = self.folder / name
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"

    def _write(self) -> None:
        with atomic_write(self.folder / RECORD) as target:
            Path(target).write_text(json.dumps(self._made, indent=1, sort_keys=True) + "\n")
