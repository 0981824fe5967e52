"""Provenance of a result: source digest, versions, configuration and key.

Importing this module does not import JAX, because a sweep also reads the digest in processes that
compute nothing.
"""

import dataclasses
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from . import __version__

PACKAGE = Path(__file__).parent
_SOURCE = (".py", ".cc", ".h")
_SHOWING = ("cli/", "plots.py")  # show results and compute none
_MOST_NUMBERS = 4096  # larger arrays are described, not listed


@cache
def source_digest() -> str:
    """SHA-256 of the package's version and of every source file that computes results."""
    found = hashlib.sha256(__version__.encode())
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in _SOURCE):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(_SHOWING):
            found.update(f"\n{name}\n".encode() + path.read_bytes())
    return found.hexdigest()


def code_version(own_source: bytes = b"") -> str:
    """Version of the package and 12 digits of a digest of its sources and of `own_source`.

    Two results with the same code version were computed by the same code. `own_source` is the
    source of a user's function outside the package.
    """
    digest = hashlib.sha256(source_digest().encode() + own_source).hexdigest()
    return f"{__version__}+{digest[:12]}"


def versions(key: Any) -> dict[str, Any]:
    """Versions, backend, precision and key, as netCDF attributes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    found: dict[str, Any] = {"largeprompt": __version__, "jax": jax.__version__}
    found["backend"], found["dtype"] = jax.default_backend(), "float64"
    if key is not None:
        data = (
            key if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.key_data(key)
        )
        found["key"] = json.dumps(np.asarray(data).tolist())
    return found


def describe(thing: Any) -> Any:
    """A module as names and lists, for JSON."""
    import equinox as eqx
    import jax
    import numpy as np

    if isinstance(thing, eqx.Module):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"type": type(thing).__name__, **fields}
    if isinstance(thing, (list, tuple)):
        return [describe(part) for part in thing]
    if isinstance(thing, (jax.Array, np.ndarray)):
        if thing.size > _MOST_NUMBERS:
            return f"{thing.dtype} array of shape {thing.shape}"
        return np.asarray(thing, np.float64).tolist()
    return thing if isinstance(thing, (str, int, float, bool, type(None))) else repr(thing)
