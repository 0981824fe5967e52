"""Makes each mistake in a process where no type checker stands before our checks."""

import json

import jax

from . import MISTAKES


def _raised(call) -> str | None:
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


jax.config.update("jax_enable_x64", True)
print(json.dumps({name: _raised(call) for name, (call, _) in MISTAKES.items()}))
