"""C++ kernels for the CPU, called through XLA's foreign function interface on its threads.

They are compiled when the package is installed, if there is a compiler (setup.py). A kernel reads
the tokens of a prompt once, XLA several times. Without the kernels everything runs in XLA, more
slowly. Call `available()` first; the other functions assume that it returned True. float32 only.
"""

import ctypes
from functools import cache
from importlib import util

import jax
import jax.numpy as jnp
import numpy as np
from jax import ffi
from jaxtyping import Array, Float, UInt32

_SHORTEST = 64  # fewest tokens, which fill the lanes
_NARROW = 64  # most coordinates of key and value for which many queries are faster than in XLA
_FEW = 4  # most queries for which the kernel is faster at every width
_SHARED = 8  # the same for keys and values of whole vectors, which four queries read together
_VECTOR = 16  # coordinates of the widest vector
_TARGETS = ("largeprompt_tilted_moments", "largeprompt_weighted_sums")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None if there are none that can be loaded."""
    found = util.find_spec(f"{__name__}.kernels")
    try:
        return None if found is None or found.origin is None else ctypes.CDLL(found.origin)
    except OSError:
        return None


@cache
def available() -> bool:
    """Register the kernels with JAX; False if they are not compiled or do not run."""
    kernels = library()
    if kernels is None:
        return False
    try:
        # start the backend first: it would fail to start with a target that it rejects
        cpu = jax.local_devices(backend="cpu")[0]
        for name in _TARGETS:
            ffi.register_ffi_target(name, ffi.pycapsule(getattr(kernels, name)), platform="cpu")
        # kernels compiled for another version of the interface fail here or at the first call
        with jax.ensure_compile_time_eval(), jax.default_device(cpu):
            one = np.ones((1, 1), np.float32)
            mean = jax.jit(lambda a: tilted_moments(a, a, None, a)[1])(one)
            return bool(np.asarray(mean) == 1)
    except (AttributeError, RuntimeError):
        return False


def fits(
    keys: Float[Array, "n k"], values: Float[Array, "n v"], tilts: Float[Array, "q k"]
) -> bool:
    """Whether `tilted_moments` is available for these arrays and faster than XLA."""
    n, width, q = len(keys), keys.shape[1] + values.shape[1], len(tilts)
    singles = keys.dtype == values.dtype == tilts.dtype == jnp.float32
    whole = keys.shape[1] % _VECTOR == values.shape[1] % _VECTOR == 0
    few = q <= (_SHARED if whole else _FEW)
    return singles and n >= _SHORTEST and (width <= _NARROW or few) and available()


def tilted_moments(
    keys: Float[Array, "n k"],
    values: Float[Array, "n v"],
    log_weights: Float[Array, " n"] | None,
    tilts: Float[Array, "q k"],
) -> tuple[Float[Array, " q"], Float[Array, "q v"]]:
    """Log normaliser and mean value of weighted tokens at every tilt of the keys, in one pass.

    Pass one array twice if the tokens are both keys and values: it is read once.
    """
    shapes = (len(tilts),), (len(tilts), values.shape[1])
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    # a batch of tilts with one prompt becomes a longer list of tilts: nothing is copied
    call = ffi.ffi_call(_TARGETS[0], results, vmap_method="expand_dims")
    logs = np.zeros(0, np.float32) if log_weights is None else log_weights
    log_normaliser, mean = call(keys, values, logs.astype(jnp.float32), tilts)
    return log_normaliser, mean


def weighted_sums(
    key: UInt32[Array, " 2"],
    prompts: UInt32[Array, " n"],
    L: UInt32[Array, " n"],
    scales: Float[Array, "kinds n"],
    widths: tuple[int, int],
) -> tuple[Float[Array, "n first"], Float[Array, "n second"]]:
    """Sums over the tokens of sampled prompts.

    With one row of scales each counter draws two tokens by their scores; with three rows it draws
    one token by its score and its value.
    """
    results = [jax.ShapeDtypeStruct((len(prompts), width), jnp.float32) for width in widths]
    call = ffi.ffi_call(_TARGETS[1], results, vmap_method="broadcast_all")
    first, second = call(key, prompts, L, scales)
    return first, second
