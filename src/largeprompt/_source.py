"""Which code computed something: a digest of the package's own source. Imports nothing heavy."""

import hashlib
from functools import cache
from pathlib import Path

from . import __version__

PACKAGE = Path(__file__).parent
_SOURCE = (".py", ".cc", ".h")


@cache
def source_digest(*without: str) -> str:
    """Digest of the version and of every source file, less those of the rooms named: what is shown or distributed changes no number."""
    found = hashlib.sha256(__version__.encode())
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in _SOURCE):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in without:
            found.update(f"\n{name.as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()
