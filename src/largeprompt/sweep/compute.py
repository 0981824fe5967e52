"""What happens to one cell, in whichever process: run the function in 64-bit mode, refuse what is not finite, encode."""

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
from ._acceptable import refuse_changed, refuse_empty, refuse_non_finite
from ._precision import float64
from .cell import Cell
from .code import function_version, load
from .content import decode, encode
from .store import Store

_LONGEST_TEXT = 6000  # characters: so small a message between processes is sent whole or not at all


@dataclass(frozen=True)
class Outcome:
    """A computed cell: its bytes unless they are stored already, or the reason why there is none."""

    cell: Cell
    content: bytes | None = None
    reason: str = ""
    traceback: str = ""


def compute(cell: Cell) -> Outcome:
    """The outcome of a cell. An exception in it is an outcome too; only an interruption passes through."""
    try:
        return Outcome(cell, _content(cell))
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
        return Outcome(cell, None, reason, traceback.format_exc()[-_LONGEST_TEXT:])


def compute_and_store(cell: Cell, store: Store) -> Outcome:
    """The same, stored where it was computed. A cell that cannot be stored raises: the next one could not be either."""
    outcome = compute(cell)
    if outcome.content is not None:
        store.write(cell.address, outcome.content)
    return replace(outcome, content=None)


def _content(cell: Cell) -> bytes:
    function = load(cell.function)
    if function_version(function) != cell.code:
        raise RuntimeError(
            message(
                "a worker must run the code of the process that started the sweep",
                f"code {function_version(function)} instead of {cell.code}",
                "install the same version on both, or restart the workers after a change of the sources",
            )
        )
    begin = time.perf_counter()
    with float64():
        data = _dataset(function(json.loads(cell.configuration), _key(cell)))
    record = _record(cell, time.perf_counter() - begin)
    refuse_empty(data)
    content = encode(data, record)
    kept, _ = decode(content)
    refuse_changed(data, kept)
    refuse_non_finite(kept)
    return content


def _key(cell: Cell) -> Any:
    """The cell's key as JAX wants it; a cell without one does not load JAX."""
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
    """How the cell was made. JAX is named only if the cell loaded it."""
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
