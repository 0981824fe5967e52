"""64-bit mode for the length of a cell, without loading JAX for cells that do not use it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_VARIABLE = "JAX_ENABLE_X64"
_before_jax = threading.Lock()


@contextmanager
def float64() -> Iterator[None]:
    """JAX in 64-bit mode, since exact numbers are float64; the mode of the rest of the process is left alone."""
    with ExitStack() as stack:
        if "jax" not in sys.modules:
            stack.enter_context(_before_jax)  # another thread may have loaded it when we hold this
        if "jax" not in sys.modules:
            stack.enter_context(_by_environment())
        else:
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield


@contextmanager
def _by_environment() -> Iterator[None]:
    """For a function that imports JAX when it is called: JAX then takes its mode, for the whole process, from here."""
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
