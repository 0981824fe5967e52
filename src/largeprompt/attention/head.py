"""An attention head: the matrices U of the scores and V of the output."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput


class Head(eqx.Module):
    """A head with score <x, U z> for token x and query z, and read-out V x.

    No 1/sqrt(d) is applied; it is part of U. Boursier & Boyer use U = K'Q; for the usual scaling of
    transformers pass `scale` to `from_kqv`.

    **Arguments:** `U` of shape (d, k) for tokens of dimension d and queries of dimension k, which
    are often the same; `V` of shape (m, d).

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.ones((1, 2)))
    >>> (head.dim, head.out_dim)
    (2, 1)
    """

    U: Float[Array, "d k"]
    V: Float[Array, "m d"]

    def __init__(self, U: ArrayInput, V: ArrayInput):
        U, V = _checks.same_dtype(_checks.finite("U", U), _checks.finite("V", V))
        if U.ndim != 2 or 0 in U.shape:
            raise ValueError(
                _checks.message(
                    "U must be a matrix of shape (d, k), d for tokens and k for queries",
                    f"shape {U.shape}",
                    "pass U = K.T @ Q, or use Head.from_kqv(K, Q, V)",
                )
            )
        self.U, self.V = U, _checks.shaped("V", V, ("m", U.shape[0]))

    @classmethod
    def from_kqv(
        cls, K: ArrayInput, Q: ArrayInput, V: ArrayInput, scale: ArrayInput = 1.0
    ) -> "Head":
        """The head with U = scale K'Q, for K of shape (h, d) and Q of shape (h, k), any h.

        Gradients with respect to K and Q go through this call.
        """
        K = _checks.shaped("K", _checks.finite("K", K), ("h", "d"))
        Q = _checks.shaped("Q", _checks.finite("Q", Q), (K.shape[0], "k"))
        scale = _checks.shaped("scale", _checks.finite("scale", scale), ())
        K, Q, scale = _checks.same_dtype(K, Q, scale.astype(K.dtype))
        return cls(U=scale * jnp.matmul(K.T, Q, precision="highest"), V=V)

    @classmethod
    def key_value(cls, d_k: int, d_v: int, scale: ArrayInput = 1.0) -> "Head":
        """The head of tokens x = (k, v) with score scale <k, z> and read-out v, as transformers
        store them: queries of dimension d_k, outputs of dimension d_v.

        `KeyValues(keys, values)` is a prompt of such tokens.

        >>> import largeprompt as lp
        >>> head = lp.Head.key_value(64, 32)
        >>> (head.query_dim, head.dim, head.out_dim)
        (64, 96, 32)
        """
        d_k, d_v = _checks.count("d_k", d_k), _checks.count("d_v", d_v)
        scale = _checks.shaped("scale", _checks.finite("scale", scale), ())
        U = np.eye(d_k + d_v, d_k, dtype=scale.dtype)
        V = np.eye(d_v, d_k + d_v, k=d_k, dtype=scale.dtype)
        return cls(U=scale * U, V=V)

    def splits_at(self, d_k: int) -> bool:
        """Whether scores use only the first d_k coordinates of a token and outputs only the others.

        False if the matrices are traced, so that their entries are unknown.
        """
        if isinstance(self.U, Tracer) or isinstance(self.V, Tracer):
            return False
        return not (np.any(np.asarray(self.U)[d_k:]) or np.any(np.asarray(self.V)[:, :d_k]))

    def reading_tokens(self) -> "Head":
        """The head with the same scores whose output is the mean token: V is the identity."""
        return Head(U=self.U, V=np.eye(self.dim, dtype=self.V.dtype))

    @property
    def dim(self) -> int:
        """Dimension d of tokens."""
        return self.U.shape[-2]

    @property
    def query_dim(self) -> int:
        """Dimension k of queries."""
        return self.U.shape[-1]

    @property
    def out_dim(self) -> int:
        """Dimension m of the output."""
        return self.V.shape[-2]
