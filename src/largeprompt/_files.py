"""Output files named by users: checked before work begins, and written atomically.

Imports nothing heavy.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._message import error

FIGURES = (".pdf", ".png", ".svg")


def check_target(path: Path, kind: str, suffixes: tuple[str, ...]) -> None:
    """Raise if `path` has another suffix, is a folder, or is in a folder that cannot be written."""
    if path.suffix.lower() not in suffixes:
        raise error(
            f"a {kind} file must end in one of {', '.join(suffixes)}", repr(path.name), "rename it"
        )
    if not path.parent.is_dir():
        raise error(
            f"the folder of a {kind} file must exist", repr(str(path.parent)), "create it first"
        )
    if path.is_dir() or not os.access(path.resolve().parent, os.W_OK):
        raise error(f"a {kind} file must be one that can be written", repr(str(path)))


@contextmanager
def atomic_write(path: Path) -> Iterator[str]:
    """Yield a temporary path, renamed to `path` on success and deleted on error.

    A file that is replaced keeps its permissions, and a link keeps pointing to it.
    """
    target = Path(path).resolve()
    temporary = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    temporary.open("xb").close()  # with the permissions of a new file
    try:
        if target.exists():
            shutil.copymode(target, temporary)
        yield str(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
