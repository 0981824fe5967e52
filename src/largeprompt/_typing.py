"""Types of user input, which `_checks` validates and turns into arrays."""

from collections.abc import Sequence

from jaxtyping import Array, ArrayLike, Key, UInt32

ArrayInput = ArrayLike | Sequence
KeyInput = Key[Array, ""] | UInt32[Array, "words"]
