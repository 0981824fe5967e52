"""The command `largeprompt`: errors of finite prompts, and the heads of real transformers.

Heavy imports happen inside the commands, so that `--help` answers at once.
"""

import io
import os
import signal
import sys
from pathlib import Path

from .._extras import MissingExtra, require


def main() -> None:
    """Entry point of the `largeprompt` command."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the locale is not UTF-8
    keep_compiled_programs()
    try:
        require("typer", extra="cli")
    except MissingExtra as missing:
        sys.exit(f"error: {missing}")
    from .commands import app

    app()


def keep_compiled_programs() -> None:
    """Cache compiled programs in the user's cache folder, unless the user chose otherwise."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "largeprompt" / "programs"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the second: no home folder is known
        return  # no cache: every command compiles everything
    if os.access(folder, os.W_OK):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
