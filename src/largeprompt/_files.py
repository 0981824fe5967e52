"""Files that users name: checked before work begins, replaced only when the new one is whole. Imports nothing heavy."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIGURES = (".pdf", ".png", ".svg")


def check_target(path: Path, kind: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a file name with another ending, or in a folder that does not exist."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(
            f"a {kind} file must end in one of {', '.join(suffixes)}; received {path.name!r}. To fix: rename it."
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"the folder of a {kind} must exist; received {str(path.parent)!r}. To fix: create it first."
        )


@contextmanager
def whole(path: Path) -> Iterator[str]:
    """The name of a file to write: it takes the place of `path` when the block ends well, and vanishes otherwise."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield name
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
