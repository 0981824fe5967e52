"""Settings of JAX and NumPy for the commands.

They are environment variables that both read when they start, so that processes a command starts
have the same.
"""

import os
import sys
from pathlib import Path

from .._compiler_options import quick_to_compile


def keep_compiled_programs() -> None:
    """Cache compiled programs in the user's cache folder, unless the user chose otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "largeprompt" / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # no cache: every command compiles everything
    if os.access(folder, os.W_OK):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def hint_at_first_run() -> None:
    """Say on a terminal, as long as the cache is empty, what the first run does and keeps."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder is None or not sys.stderr.isatty():
        return
    path = Path(folder)
    if not path.is_dir() or not any(path.iterdir()):
        print(
            f"first run: compiling takes seconds (a minute for `reproduce`); programs are kept in "
            f"{folder}, so that later runs start at once",
            file=sys.stderr,
        )


def compile_quickly() -> None:
    """Choose compiler options for commands that compile more than they compute.

    They have no effect once JAX has started. The study of section 6, which trains, takes 34 s of
    one core by XLA's own options, 27 s by these, and 72 s at optimisation level 0.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for name, value in quick_to_compile().items():
        if name not in flags:
            flags = f"{flags} --{name}={str(value).lower()}"
    os.environ["XLA_FLAGS"] = flags.strip()


def one_thread_for_matrices() -> None:
    """One thread for NumPy's matrix products, unless the user chose otherwise.

    Those of the studies are small: several threads wait for each other, and for busy cores, longer
    than they compute. No effect once NumPy is imported.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
