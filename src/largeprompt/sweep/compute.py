"""Compute one cell, in any process: run its function in 64-bit mode and encode the result."""

import json
import platform
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import xarray as xr

from .. import __version__
from .._message import message
from ._precision import x64_mode
from .cell import Cell
from .cell_file import encode
from .cell_function import function_version, load
from .store import Store

_LONGEST_TEXT = 6000  # characters; so short a message passes between processes in one piece


@dataclass(frozen=True)
class Outcome:
    """A computed cell: its encoded result unless stored already, or the reason of a failure."""

    cell: Cell
    encoded: bytes | None = None
    reason: str = ""
    traceback: str = ""


def compute(cell: Cell) -> Outcome:
    """Compute a cell. Exceptions other than an interruption become part of the outcome."""
    try:
        return Outcome(cell, _encoded_result(cell))
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
        return Outcome(cell, None, reason, traceback.format_exc()[-_LONGEST_TEXT:])


def compute_and_store(cell: Cell, store: Store) -> Outcome:
    """Compute and store a cell. Raises if it cannot be stored: the next one could not be either."""
    outcome = compute(cell)
    if outcome.encoded is not None:
        store.write(cell.address, outcome.encoded)
    return replace(outcome, encoded=None)


def _encoded_result(cell: Cell) -> bytes:
    function = load(cell.function)
    version = function_version(function, cell.configuration)
    if version != cell.code:
        raise RuntimeError(
            message(
                "a worker must run the code of the process that started the sweep",
                f"code {version} instead of {cell.code}",
                "install the same version on both, or restart the workers after a source change",
            )
        )
    begin = time.perf_counter()
    with x64_mode():
        data = _dataset(function(json.loads(cell.configuration), _key(cell)))
    return encode(data, _record(cell, time.perf_counter() - begin))


def _key(cell: Cell) -> Any:
    """The JAX key of a cell; a cell without one does not import JAX."""
    if cell.key is None:
        return None
    import jax
    import jax.numpy as jnp

    return jax.random.wrap_key_data(jnp.array(cell.key, jnp.uint32), impl="threefry2x32")


def _dataset(result: Any) -> xr.Dataset:
    if isinstance(result, xr.Dataset):
        return result.drop_encoding().as_numpy()
    if isinstance(result, Mapping):
        arrays = {str(name): np.asarray(value) for name, value in result.items()}
        return xr.Dataset(
            {
                name: ([f"{name}_{axis}" for axis in range(array.ndim)], array)
                for name, array in arrays.items()
            }
        )
    raise TypeError(
        message(
            "a cell function must return an xarray.Dataset or a dict of arrays",
            type(result).__name__,
            "name what it returns: {'value': array}",
        )
    )


def _record(cell: Cell, seconds: float) -> dict[str, Any]:
    """How the cell was made. The version of JAX is recorded only if the cell imported it."""
    jax = sys.modules.get("jax")
    return {
        "address": cell.address,
        "function": cell.function,
        "code": cell.code,
        "configuration": cell.configuration,
        "key": json.dumps(cell.key),
        "seconds": seconds,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "largeprompt": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "jax": jax.__version__ if jax else "",
        "backend": jax.default_backend() if jax else "",
    }
