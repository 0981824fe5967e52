"""One cell of a sweep: function, configuration, key and code version, as plain values.

Plain values are the same in every process, in a hash and in a file.
"""

import hashlib
import json
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._message import error

KeyWords = tuple[int, int]  # of a threefry key


@dataclass(frozen=True)
class Cell:
    """Everything that the result of a cell depends on."""

    function: str  # "package.module:function"
    code: str  # code version of that function
    configuration: str  # JSON, see `canonical`
    key: KeyWords | None

    @property
    def address(self) -> str:
        """Hash of all fields: the name of the stored cell."""
        parts = [self.function, self.code, self.configuration, self.key]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def canonical(configuration: Any) -> str:
    """JSON text of a configuration, equal for equal ones; infinite numbers are allowed."""
    if not isinstance(configuration, Mapping):
        raise error(
            "a configuration must be a dict of plain values",
            type(configuration).__name__,
            "pass one dict for each cell, for example {'sigma': 1.0, 'L': 100}",
        )
    return json.dumps(_plain(configuration, "configuration"), sort_keys=True)


def _plain(value: Any, where: str) -> Any:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # a NumPy or JAX scalar
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not math.isnan(value):
        return float(value)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(part, f"{where}[{name!r}]") for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part, f"{where}[{i}]") for i, part in enumerate(value)]
    raise error(
        "a configuration must have plain values: numbers, text, booleans, None, lists, dicts",
        f"{'NaN' if isinstance(value, numbers.Real) else type(value).__name__} at {where}",
        "pass array.tolist() for an array, and build other objects in the cell function",
    )


def key_words(key: Any) -> KeyWords | None:
    """The two 32-bit words of a key; an integer n stands for `jax.random.key(n)`."""
    if key is None:
        return None
    if isinstance(key, numbers.Integral) and not isinstance(key, bool) and 0 <= int(key) < 2**63:
        return int(key) >> 32, int(key) & 0xFFFFFFFF
    words = _key_data(key)
    if getattr(words, "dtype", None) == "uint32" and words.shape == (2,):
        return int(words[0]), int(words[1])
    raise error(
        "a key must be an integer in [0, 2^63), one threefry key of JAX, or None",
        repr(key) if words is None else f"{words.dtype} words of shape {words.shape}",
        "pass for example 7 or jax.random.key(7); split a batch of keys into single ones",
    )


def _key_data(key: Any) -> Any:
    """The words of a JAX key, typed or raw; None for anything that is not an array."""
    if not hasattr(key, "dtype"):
        return None
    import jax  # already loaded by the code that made the key
    import jax.numpy as jnp

    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


def derived_key(seed: int, configuration: str) -> KeyWords:
    """A key that depends on the seed and on the configuration of the cell alone."""
    digest = hashlib.sha256(f"{seed}\n{configuration}".encode()).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")
