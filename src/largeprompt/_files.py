"""Output files named by users: checked before work begins, and written atomically.

Imports nothing heavy.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._message import error

FIGURES = (".pdf", ".png", ".svg")


def check_target(path: Path, kind: str, suffixes: tuple[str, ...]) -> None:
    """Raise if `path` has another suffix, or if its folder does not exist."""
    if path.suffix.lower() not in suffixes:
        raise error(
            f"a {kind} file must end in one of {', '.join(suffixes)}", repr(path.name), "rename it"
        )
    if not path.parent.is_dir():
        raise error(
            f"the folder of a {kind} file must exist", repr(str(path.parent)), "create it first"
        )


@contextmanager
def atomic_write(path: Path) -> Iterator[str]:
    """Yield a temporary path, renamed to `path` on success and deleted on error."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield name
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
