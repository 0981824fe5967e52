"""64-bit mode while a cell runs, without importing JAX for cells that do not use it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_VARIABLE = "JAX_ENABLE_X64"
_importing_jax = threading.Lock()


@contextmanager
def x64_mode() -> Iterator[None]:
    """Put JAX into 64-bit mode, and restore the mode of the process afterwards."""
    with ExitStack() as stack:
        if "jax" not in sys.modules:
            stack.enter_context(_importing_jax)  # another thread may import it while we wait
        if "jax" not in sys.modules:
            stack.enter_context(_x64_by_environment())
        else:
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield


@contextmanager
def _x64_by_environment() -> Iterator[None]:
    """64-bit mode for a function that imports JAX: it reads its mode from the environment."""
    before = os.environ.pop(_VARIABLE, None)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before
        if "jax" in sys.modules:
            import jax

            on = before is not None and before.lower() in ("1", "y", "yes", "t", "true", "on")
            jax.config.update("jax_enable_x64", on)
