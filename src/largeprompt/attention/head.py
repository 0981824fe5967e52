"""Attention heads: the matrices U of the scores and V of the output; several heads as one."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from .. import _checks
from .._arrays import in_dtype, matmul
from .._typing import Array, ArrayInput


class AbstractHead(eqx.Module):
    """One head, or several that attend to the same tokens and whose outputs are added."""

    U: eqx.AbstractVar[Any]
    V: eqx.AbstractVar[Any]
    heads: eqx.AbstractVar["tuple[Head, ...]"]

    @abstractmethod
    def reading_tokens(self) -> "AbstractHead":
        """The same scores, with the mean token of every head, one after the other, as output."""

    @property
    def dim(self) -> int:
        """Dimension d of tokens."""
        return self.heads[0].U.shape[-2]

    @property
    def query_dim(self) -> int:
        """Dimension k of queries."""
        return self.heads[0].U.shape[-1]

    @property
    def out_dim(self) -> int:
        """Dimension m of the output."""
        return self.heads[0].V.shape[-2]


class Head(AbstractHead):
    """A head with score $<x, U z>$ for token x and query z, and read-out V x.

    No 1/sqrt(d) is applied; it is part of U. Boursier & Boyer use $U = K'Q$; for the usual scaling
    of transformers pass `scale` to `from_kqv`.

    **Arguments:** `U` of shape (d, k) for tokens of dimension d and queries of dimension k, which
    are often the same; `V` of shape (m, d). Python and NumPy numbers stay in NumPy, in float64
    unless they are float32.

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
            raise _checks.error(
                "U must be a matrix of shape (d, k), d for tokens and k for queries",
                f"shape {U.shape}",
                "pass U = K.T @ Q, or use Head.from_kqv(K, Q, V)",
            )
        self.U, self.V = U, _checks.shaped("V", V, ("m", U.shape[0]))

    @classmethod
    def from_kqv(
        cls, K: ArrayInput, Q: ArrayInput, V: ArrayInput, scale: ArrayInput = 1.0
    ) -> "Head":
        """The head with $U = scale K'Q$, for K of shape (h, d) and Q of shape (h, k), any h.

        Gradients with respect to K and Q go through this call.
        """
        K = _checks.shaped("K", _checks.finite("K", K), ("h", "d"))
        Q = _checks.shaped("Q", _checks.finite("Q", Q), (K.shape[0], "k"))
        scale = _checks.shaped("scale", _checks.finite("scale", scale), ())
        K, Q, scale = _checks.same_dtype(K, Q, in_dtype(scale, K.dtype))
        return cls(U=scale * matmul(K.T, Q), V=V)

    @property
    def heads(self) -> "tuple[Head, ...]":
        """The head itself, alone."""
        return (self,)

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


class MultiHead(AbstractHead):
    """Several heads on one prompt: $T(z) = sum_h T_h(z)$, accepted wherever a head is.

    The weights of all heads come from the same tokens, so their errors are correlated: those of
    opposite heads (U, V) and (-U, -V) mostly cancel. What is defined for one head only, such as
    `lp.assumption_3_3`, raises; pass it one of `.heads`.

    **Arguments:** `heads`, a non-empty sequence of heads with equal d and equal m.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> eye, mu = jnp.eye(2), lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> pair = lp.MultiHead([lp.Head(U=s * eye, V=s * eye / 2) for s in (1, -1)])
    >>> heads = lp.Head(U=eye, V=eye), pair  # the same limit
    >>> print([round(float(lp.output_error(head, mu, jnp.ones(2), 100)), 3) for head in heads])
    [0.163, 0.084]
    """

    heads: tuple[Head, ...]

    def __init__(self, heads: Sequence[AbstractHead]):
        self.heads = flat_heads("heads", heads)

    @property
    def U(self) -> Any:
        """U of the only head; raises if there are several."""
        return self._only("U").U

    @property
    def V(self) -> Any:
        """V of the only head; raises if there are several."""
        return self._only("V").V

    def _only(self, name: str) -> Head:
        if len(self.heads) == 1:
            return self.heads[0]
        raise _checks.error(
            f"what reads {name} is defined for one head",
            f"a MultiHead of {len(self.heads)} heads",
            "pass one of its .heads",
        )

    def reading_tokens(self) -> "MultiHead":
        """Heads with the same scores, whose output is the mean tokens of all heads in a row."""
        rows = np.eye(self.dim * len(self.heads)).reshape(len(self.heads), self.dim, -1)
        pairs = zip(self.heads, rows, strict=True)
        return MultiHead([Head(U=one.U, V=row.T.astype(one.V.dtype)) for one, row in pairs])


def flat_heads(name: str, heads: Any) -> tuple[Head, ...]:
    """The single heads of a sequence, which must have V of one shape."""
    rule = f"{name} must be a non-empty sequence of heads"
    fix = "pass for example [lp.Head(U=U, V=V), lp.Head(U=-U, V=-V)]"
    heads = _checks.instances(heads, AbstractHead, rule, fix)
    flat = tuple(one for head in heads for one in head.heads)
    if len({(head.V.shape, head.U.shape) for head in flat}) > 1:
        raise _checks.error(
            f"{name} must all have U and V of the same shape",
            f"V of shapes {[head.V.shape for head in flat]}, "
            f"U of shapes {[head.U.shape for head in flat]}",
            "give every head the same d and m",
        )
    return flat


def one_head(head: Any) -> Head:
    """The head, or the only one of a `MultiHead`."""
    heads = head.heads if isinstance(head, AbstractHead) else ()
    if len(heads) != 1:
        several = f"a {type(head).__name__} of {len(heads)} heads"
        raise _checks.error(
            "head must be one Head",
            several if heads else f"a {type(head).__name__}",
            "pass one of its .heads" if heads else "pass lp.Head(U=U, V=V)",
        )
    return heads[0]
