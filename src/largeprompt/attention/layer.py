"""Layers of heads, which map a measure to a measure and can be composed."""

from collections.abc import Sequence

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values, library, matmul
from .._float64 import is_traced
from .._typing import Array, ArrayInput
from ..measures import AbstractMeasure, Gaussian, sandwich
from .head import AbstractHead, Head, MultiHead, flat_heads
from .softmax import attend


class Layer(eqx.Module):
    """The map $z -> z + sum_h T_h[mu](z)$ applied to all tokens of mu: the push-forward of mu.

    The push-forward of a Gaussian is Gaussian, since the map is affine (Castin et al. 2025): with
    $B = I + sum_h V_h G U_h$, the mean becomes $B m + sum_h V_h m$ and the covariance $B G B'$. The
    atoms of a prompt or another finite law are mapped one by one and keep their weights. Several
    layers are composed by `for layer in layers: mu = layer(mu)`.

    Heads and measures made from Python or NumPy numbers are composed in float64.

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

    @_checks.accepts()
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
        total = attend(MultiHead(self.heads), measure, z)
        return _checks.float_array("z", z) + total if self.residual else total

    @_checks.accepts(measure=AbstractMeasure)
    def __call__(self, measure: AbstractMeasure) -> AbstractMeasure:
        gaussian = measure.as_gaussian()
        if gaussian is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                B, b = self._affine_map(gaussian)
                image = sandwich(B, gaussian.covariance)
            return measure.affine(_finite(B, gaussian, B, b, image), b)
        pushed = measure.push_forward(lambda points: self.apply(measure, points))
        if pushed is None:
            raise _checks.error(
                "a layer pushes Gaussian measures and measures with finitely many atoms",
                type(measure).__name__,
                "push samples instead: layer(measure.sample(key, n))",
            )
        return pushed

    def _affine_map(self, mu: Gaussian) -> tuple[Float[Values, "m d"], Float[Values, " m"]]:
        """Matrix B and vector b of the layer's map z -> B z + b for Gaussian tokens."""
        B = float(self.residual) * np.eye(*self.heads[0].V.shape, dtype=mu.stored_dtype)
        for head in self.heads:
            B = B + matmul(matmul(head.V, mu.covariance), head.U)
        return B, matmul(sum(head.V for head in self.heads), mu.centre)


def _finite(value: Array, mu: Gaussian, *images: Array) -> Array:
    """Return `value`, or raise if what a layer makes of mu is NaN or infinite."""
    xp = library(images)
    bad = xp.any(xp.stack([~xp.all(xp.isfinite(image)) for image in images]))
    size = "" if is_traced(mu) else f" of {np.max(np.abs(np.asarray(mu.covariance))):.3g}"
    return _checks.require(
        value,
        bad,
        rule="the covariance of the tokens must stay finite through a layer",
        received=f"one that overflows in this layer, whose tokens have entries{size} before it",
        fix="scale U or V down, or compose fewer layers",
    )
