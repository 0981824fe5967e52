"""Kernels for the CPU in C++, called as foreign functions of XLA and run on its threads.

They are compiled when the package is installed, if there is a compiler (setup.py). XLA passes over the tokens of a prompt several
times, and hands work to its threads several times in each; a kernel passes once. Without the kernels everything works, in XLA alone, more
slowly; `available` says which it is, and must be asked before the others are called. float32 only.
"""

import ctypes
from functools import cache
from importlib import util

import jax
import jax.numpy as jnp
from jax import ffi
from jaxtyping import Array, Float, UInt32

_SHORTEST = 64  # tokens that fill the lanes
_NARROW = 32  # coordinates up to which many queries are faster here than as XLA's matrix products
_FEW = 4  # queries for which all widths are
_TARGETS = ("largeprompt_tilted_moments", "largeprompt_weighted_sums")


@cache
def available() -> bool:
    """Whether the kernels are compiled and this JAX runs them; registers them with it."""
    found = util.find_spec(f"{__name__}.kernels")
    if found is None or found.origin is None:
        return False
    try:
        cpu = jax.local_devices(backend="cpu")[0]  # a refusal on its start would stop JAX
        library = ctypes.CDLL(found.origin)
        for name in _TARGETS:
            ffi.register_ffi_target(name, ffi.pycapsule(getattr(library, name)), platform="cpu")
        # what was compiled for another interface of foreign functions JAX may refuse here, or only when it is called
        with jax.ensure_compile_time_eval(), jax.default_device(cpu):
            one = jnp.ones((1, 1), jnp.float32)
            return bool(tilted_moments(one, None, one)[1][0, 0] == 1)
    except (OSError, AttributeError, RuntimeError):
        return False


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
    logs = jnp.zeros(0) if log_weights is None else log_weights
    log_normaliser, mean = call(points, logs.astype(jnp.float32), tilts)
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
