"""Programs that run a few times only, and should be compiled quickly."""

import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ._compiler_options import quick_to_compile
from ._float64 import is_traced


def compiled_quickly(function: Callable) -> Callable:
    """`eqx.filter_jit` with the options of `quick_to_compile` on a CPU.

    XLA takes options for whole programs only: within another one the function is traced as it is.
    """

    @cache
    def program() -> Callable:
        options = quick_to_compile() if jax.default_backend() == "cpu" else {}
        chosen = os.environ.get("XLA_FLAGS", "")  # by the user
        options = {name: value for name, value in options.items() if name not in chosen}
        # equinox passes options that it does not document on to `jax.jit`
        jit: Any = eqx.filter_jit
        return jit(function, compiler_options=options)

    @wraps(function)
    def wrapped(*args: Any) -> Any:
        within = is_traced(args, jax.device_put(np.float32(0)))  # JAX traces it within a program
        return function(*args) if within else program()(*args)

    return wrapped
