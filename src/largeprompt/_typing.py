"""Types of what users hand in; `_checks` turns them into arrays, or says the rule, what came and the fix."""

from collections.abc import Sequence

from jaxtyping import Array, ArrayLike, Key, UInt32

ArrayInput = ArrayLike | Sequence
KeyInput = Key[Array, ""] | UInt32[Array, "words"]
