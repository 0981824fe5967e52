"""Kernels for the CPU in C++, called as foreign functions of XLA and run on its threads.

They are compiled when the package is installed, if there is a compiler (setup.py). XLA passes over the tokens of a prompt several
times, and hands work to its threads several times in each: one pass in one kernel is two to seven times faster. Without the kernels
everything works, in XLA alone; `available` says which it is. float32 only.
"""

import ctypes
import re
from functools import cache
from importlib import util
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
from jax import ffi
from jaxtyping import Array, Float, UInt32

_SHORTEST = 64  # tokens that fill the lanes
_NARROW = 32  # coordinates up to which many queries are faster here than as XLA's matrix products
_FEW = 4  # queries for which all widths are
_TARGETS = ("largeprompt_tilted_moments", "largeprompt_weighted_sums")


@cache
def available() -> bool:
    """Whether the kernels are compiled for this JAX; registers them with it."""
    found = util.find_spec(f"{__name__}.kernels")
    if found is None or found.origin is None:
        return False
    library = ctypes.CDLL(found.origin)
    # JAX runs what was compiled for its own interface of foreign functions or an earlier one, and is silent about a later one
    built = (library.largeprompt_interface_major(), library.largeprompt_interface_minor())
    if built > _interface():
        return False
    for name in _TARGETS:
        ffi.register_ffi_target(name, ffi.pycapsule(getattr(library, name)), platform="cpu")
    return True


def _interface() -> tuple[int, ...]:
    """The version of this JAX's interface of foreign functions."""
    header = Path(jaxlib.__file__).with_name("include") / "xla/ffi/api/c_api.h"
    text = header.read_text() if header.exists() else ""
    found = [re.search(rf"define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    return tuple(int(number[1]) if number else -1 for number in found)


def fits(points: Float[Array, "n d"], tilts: Float[Array, "q d"]) -> bool:
    """Whether `tilted_moments` is there and faster than XLA."""
    (n, d), q = points.shape, len(tilts)
    singles = points.dtype == tilts.dtype == jnp.float32
    return singles and n >= _SHORTEST and (d <= _NARROW or q <= _FEW) and available()


def tilted_moments(
    points: Float[Array, "n d"], log_weights: Float[Array, " n"] | None, tilts: Float[Array, "q d"]
) -> tuple[Float[Array, " q"], Float[Array, "q d"]]:
    """The log normaliser and the mean of weighted points at every tilt, in one pass."""
    q, d = tilts.shape
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((q,), (q, d))]
    # tilts of a batch with one prompt are a longer list of tilts: nothing is copied
    call = ffi.ffi_call(_TARGETS[0], results, vmap_method="expand_dims")
    logs = jnp.zeros(0, jnp.float32) if log_weights is None else log_weights
    log_normaliser, mean = call(points, logs, tilts)
    return log_normaliser, mean


def weighted_sums(
    key: UInt32[Array, " 2"],
    prompts: UInt32[Array, " n"],
    L: UInt32[Array, " n"],
    scales: Float[Array, "kinds n"],
    widths: tuple[int, int],
) -> tuple[Float[Array, "n first"], Float[Array, "n second"]]:
    """Sums over the tokens of sampled prompts: of two scores a counter (one scale), or of a score and a value (three)."""
    results = [jax.ShapeDtypeStruct((len(prompts), width), jnp.float32) for width in widths]
    call = ffi.ffi_call(_TARGETS[1], results, vmap_method="broadcast_all")
    first, second = call(key, prompts, L, scales)
    return first, second
