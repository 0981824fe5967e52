"""How the commands compile: what is kept between runs, and what is left out where compiling takes longer than computing.

Both are environment variables, read when JAX starts, so that the processes a command starts compile in the same way.
"""

import os
from importlib.metadata import version
from pathlib import Path

# The newer emitter of XLA's CPU compiler takes two thirds longer to compile; what it makes is faster only where prompts are sampled.
_OLD_EMITTER = "--xla_cpu_use_fusion_emitters=false"
# Versions of jaxlib that have the flag; 0.11 does not, and XLA aborts on a flag it does not know.
_KNOWN_BY = "0.10."


def keep_compiled_programs() -> None:
    """Let JAX keep what it compiles between commands, in the user's cache folder, unless the user chose otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "largeprompt" / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # nowhere to write: everything is compiled again
    if os.access(folder, os.W_OK):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def compile_quickly() -> None:
    """For commands that compile longer than they compute; without effect once JAX has started, and on other devices than CPUs."""
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith(_KNOWN_BY) and "xla_cpu_use_fusion_emitters" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_OLD_EMITTER}".strip()
