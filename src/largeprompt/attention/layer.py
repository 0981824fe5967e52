"""Layers of heads, which map a measure to a measure and can be composed."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput
from ..measures import AbstractMeasure, Gaussian
from .head import AbstractHead, Head, flat_heads
from .softmax import attend


class Layer(eqx.Module):
    """The map $z -> z + sum_h T_h[mu](z)$ applied to all tokens of mu: the push-forward of mu.

    The push-forward of a Gaussian is Gaussian, since the map is affine (Castin et al. 2025): with
    $B = I + sum_h V_h G U_h$, the mean becomes $B m + sum_h V_h m$ and the covariance $B G B'$. The
    atoms of a prompt or another finite law are mapped one by one and keep their weights. Several
    layers are composed by `for layer in layers: mu = layer(mu)`.

    **Arguments:** `heads`, a sequence of heads with equal d and equal m, or a `MultiHead`; with
    `residual=True` (the default) m must equal d.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> layer = lp.Layer([lp.Head(U=jnp.eye(1), V=jnp.eye(1))])
    >>> print(layer(lp.Gaussian(jnp.zeros(1), jnp.eye(1))).cov())
    [[4.]]
    """

    heads: tuple[Head, ...]
    residual: bool = eqx.field(static=True)

    def __init__(self, heads: Sequence[AbstractHead] | AbstractHead, residual: bool = True):
        heads = flat_heads("heads", heads)
        if any(head.query_dim != head.dim for head in heads):
            raise _checks.error(
                "the queries of a layer are its tokens, so every U must be square",
                f"U of shape {[head.U.shape for head in heads]}",
                "call attend(head, measure, z) with queries of their own dimension",
            )
        if residual and heads[0].out_dim != heads[0].dim:
            raise _checks.error(
                "a residual layer needs outputs of the same dimension as the tokens",
                f"V of shape {heads[0].V.shape}",
                "make V of shape (d, d), or pass residual=False",
            )
        self.heads, self.residual = heads, residual

    def apply(self, measure: AbstractMeasure, z: ArrayInput) -> Float[Array, "*batch m"]:
        """The layer's map at the queries z, with tokens of law `measure`."""
        total = sum((attend(head, measure, z) for head in self.heads), start=jnp.zeros(()))
        return jnp.asarray(z) + total if self.residual else total

    def __call__(self, measure: AbstractMeasure) -> AbstractMeasure:
        gaussian = measure.as_gaussian()
        if gaussian is not None:
            return measure.affine(*self._affine_map(gaussian))
        pushed = measure.push_forward(lambda points: self.apply(measure, points))
        if pushed is None:
            raise _checks.error(
                "a layer pushes Gaussian measures and measures with finitely many atoms",
                type(measure).__name__,
                "push samples instead: layer(measure.sample(key, n))",
            )
        return pushed

    def _affine_map(self, mu: Gaussian) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
        """Matrix B and vector b of the layer's map z -> B z + b for Gaussian tokens."""
        B = float(self.residual) * jnp.eye(*self.heads[0].V.shape, dtype=mu.dtype)
        for head in self.heads:
            B = B + jnp.matmul(
                jnp.matmul(head.V, mu.covariance, precision="highest"), head.U, precision="highest"
            )
        b = jnp.matmul(sum(head.V for head in self.heads), mu.centre, precision="highest")
        return B, b
