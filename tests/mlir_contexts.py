"""One MLIR context for many programs, which halves the time that JAX takes to lower them."""

from itertools import count
from typing import Any

from jax._src.interpreters import mlir

_PROGRAMS = 500  # constants live as long as their context


def share_mlir_contexts() -> None:
    """Lower many programs in one context, where JAX makes a new one for each.

    A new one takes 5 ms and a megabyte that stays.
    """
    new, current, used = getattr(mlir, "make_ir_context", None), [], count()
    if new is None:  # a private name of JAX: without it, tests only take longer
        return

    def shared() -> Any:
        if next(used) % _PROGRAMS == 0:
            current[:] = [new()]
        return current[0]

    mlir.make_ir_context = shared
