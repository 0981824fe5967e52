"""Attention on a mixture of Gaussians: a family of affine maps, gated by the query."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput
from ..attention import Head
from ..measures import AbstractMeasure, Gaussian


class Experts(eqx.Module):
    """The map $z -> sum_j gate_j(z) (A_j z + b_j)$, equal to attention on the mixture.

    The gates are $softmax_j(c_j + <l_j, z> + z'Q_j z / 2)$.
    """

    slopes: Float[Array, "j m k"]
    intercepts: Float[Array, "j m"]
    gate_constants: Float[Array, " j"]
    gate_slopes: Float[Array, "j k"]
    gate_curvatures: Float[Array, "j k k"]

    def gates(self, z: ArrayInput) -> Float[Array, "*batch j"]:
        """Weights of the experts at the queries z of shape (..., k)."""
        z = _checks.finite("z", z)
        linear = jnp.einsum("...k,jk->...j", z, self.gate_slopes, precision="highest")
        square = jnp.einsum("...k,jkl,...l->...j", z, self.gate_curvatures, z, precision="highest")
        return jax.nn.softmax(self.gate_constants + linear + square / 2)

    def __call__(self, z: ArrayInput) -> Float[Array, "*batch m"]:
        z = _checks.finite("z", z)
        outputs = jnp.einsum("jmk,...k->...jm", self.slopes, z, precision="highest")
        return jnp.einsum("...j,...jm->...m", self.gates(z), outputs + self.intercepts)


def experts(head: Head, mu: AbstractMeasure) -> Experts:
    """The affine maps and gates of attention on a mixture of Gaussians; point masses have slope 0.

    Component j, N(m_j, G_j) of weight pi_j, has the map $V m_j + V G_j U z$ (Lemma 2.1) and the
    gate $softmax_j(log pi_j + psi_j(U z))$.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Mixture([1, 1], [lp.Dirac([1.0]), lp.Dirac([-1.0])])
    >>> found = lp.compression.experts(lp.Head(U=jnp.eye(1), V=jnp.eye(1)), mu)
    >>> print(found(jnp.array([0.5])).round(4), found.intercepts.ravel())
    [0.4621] [ 1. -1.]
    """
    if mu.dim != head.dim:
        raise ValueError(
            _checks.message(
                f"mu must have the dimension of the head's tokens, {head.dim}",
                f"a {type(mu).__name__} of dimension {mu.dim}",
                "map it with mu.affine(A), or change the head",
            )
        )
    logs, normals = zip(*_normals(mu, jnp.zeros((), mu.dtype)), strict=True)
    means = jnp.stack([normal.centre for normal in normals])
    covs = jnp.stack([normal.covariance for normal in normals])
    U, V, means, covs, logs = _checks.same_dtype(head.U, head.V, means, covs, jnp.stack(logs))
    pulled = jnp.matmul(covs, U, precision="highest")
    return Experts(
        jnp.matmul(V, pulled, precision="highest"),
        jnp.matmul(means, V.T, precision="highest"),
        logs,
        jnp.matmul(means, U, precision="highest"),
        jnp.matmul(U.T, pulled, precision="highest"),
    )


def _normals(mu: AbstractMeasure, log_weight: Array) -> list[tuple[Array, Gaussian]]:
    """The Gaussians that mu is a mixture of, and their log weights."""
    normal = mu.as_gaussian()
    if normal is not None:
        return [(log_weight, normal)]
    weights, components = mu.mixture()
    if len(components) == 1:
        raise ValueError(
            _checks.message(
                "experts are the Gaussian components of a mixture",
                f"a {type(mu).__name__}",
                "linearise(head, mu, nu) has one affine map for every measure",
            )
        )
    logs = log_weight + jnp.log(weights.astype(log_weight.dtype))
    pairs = zip(logs, components, strict=True)
    return [found for log, part in pairs for found in _normals(part, log)]
