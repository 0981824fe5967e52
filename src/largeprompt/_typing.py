"""Types of user input, which `_checks` validates and turns into arrays, and of arrays."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import ArrayLike, Key, UInt32

# known numbers stay in NumPy until JAX traces them or puts them on a device
if TYPE_CHECKING:
    Array = jax.Array
else:
    Array = jax.Array | np.ndarray | np.generic

ArrayInput = ArrayLike | Sequence
if TYPE_CHECKING:
    Vector = Any
else:
    Vector = ArrayInput  # input that a method receives as an array: its class has validated it
KeyInput = Key[jax.Array, ""] | UInt32[jax.Array, "words"]
