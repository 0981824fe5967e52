"""An attention head: the matrices U of the scores and V of the output."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput


class Head(eqx.Module):
    """A head with score <x, U z> for token x and query z, and read-out V x.

    No 1/sqrt(d) is applied; it is part of U. Boursier & Boyer use U = K'Q; for the usual scaling of
    transformers pass `scale` to `from_kqv`.

    **Arguments:** `U` of shape (d, d), `V` of shape (m, d).

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.ones((1, 2)))
    >>> (head.dim, head.out_dim)
    (2, 1)
    """

    U: Float[Array, "d d"]
    V: Float[Array, "m d"]

    def __init__(self, U: ArrayInput, V: ArrayInput):
        U, V = _checks.same_dtype(_checks.finite("U", U), _checks.finite("V", V))
        if U.ndim != 2 or U.shape[0] != U.shape[1] or U.shape[0] == 0:
            raise ValueError(
                _checks.message(
                    "U must be a square (d, d) matrix",
                    f"shape {U.shape}",
                    "pass U = K.T @ Q, or use Head.from_kqv(K, Q, V)",
                )
            )
        self.U, self.V = U, _checks.shaped("V", V, ("m", U.shape[0]))

    @classmethod
    def from_kqv(
        cls, K: ArrayInput, Q: ArrayInput, V: ArrayInput, scale: ArrayInput = 1.0
    ) -> "Head":
        """The head with U = scale K'Q, for K and Q of shape (k, d) with any head dimension k.

        Gradients with respect to K and Q go through this call.
        """
        K = _checks.shaped("K", _checks.finite("K", K), ("k", "d"))
        Q = _checks.shaped("Q", _checks.finite("Q", Q), K.shape)
        scale = _checks.shaped("scale", _checks.finite("scale", scale), ())
        K, Q, scale = _checks.same_dtype(K, Q, scale.astype(K.dtype))
        return cls(U=scale * jnp.matmul(K.T, Q, precision="highest"), V=V)

    def reading_tokens(self) -> "Head":
        """The head with the same scores whose output is the mean token: V is the identity."""
        return Head(U=self.U, V=np.eye(self.dim, dtype=self.V.dtype))

    @property
    def dim(self) -> int:
        """Dimension d of tokens and queries."""
        return self.U.shape[-1]

    @property
    def out_dim(self) -> int:
        """Dimension m of the output."""
        return self.V.shape[-2]
