"""Attention on a mixture of Gaussians: a family of affine maps, gated by the query."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from .. import _checks
from .._typing import Array, ArrayInput
from ..attention import AbstractHead
from ..attention.head import one_head
from ..measures import AbstractMeasure
from .compressed import Compressed
from .linearised import check_dimension


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


def experts(head: AbstractHead, mu: AbstractMeasure) -> Experts:
    """The affine maps and gates of attention on a mixture of Gaussians and points, of slope 0.

    Prompts and compressed prompts are such mixtures: every token is an expert.

    Component j, N(m_j, G_j) of weight pi_j, has the map $V m_j + V G_j U z$ (Lemma 2.1) and the
    gate $softmax_j(log pi_j + psi_j(U z))$.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Mixture([1, 1], [lp.Dirac([1.0]), lp.Dirac([-1.0])])
    >>> found = lp.compression.experts(lp.Head(U=jnp.eye(1), V=jnp.eye(1)), mu)
    >>> print(found(jnp.array([0.5])).round(4), found.intercepts.ravel())
    [0.4621] [ 1. -1.]
    """
    head = one_head(head)
    check_dimension("mu", mu, head.dim)
    parts = _parts(mu, jnp.zeros((), mu.dtype))
    logs, means, covs = (jnp.concatenate(arrays) for arrays in zip(*parts, strict=True))
    U, V, means, covs, logs = _checks.same_dtype(head.U, head.V, means, covs, logs)
    pulled = jnp.matmul(covs, U, precision="highest")
    return Experts(
        jnp.matmul(V, pulled, precision="highest"),
        jnp.matmul(means, V.T, precision="highest"),
        logs,
        jnp.matmul(means, U, precision="highest"),
        jnp.matmul(U.T, pulled, precision="highest"),
    )


_Parts = list[tuple[Array, Array, Array]]  # log weights (j,), means (j, d), covariances (j, d, d)


def _parts(mu: AbstractMeasure, log_weight: Array) -> _Parts:
    """The Gaussians and points that mu is a mixture of."""
    if (normal := mu.as_gaussian()) is not None:
        return [(log_weight[None], normal.centre[None], normal.covariance[None])]
    if (atoms := mu.atoms()) is not None:
        return [_points(log_weight + jnp.log(atoms.weights), atoms.points)]
    if isinstance(mu, Compressed) and mu.tail is not None:
        nowhere = jnp.zeros(mu.dim, mu.dtype)
        logs = log_weight + jax.nn.log_softmax(mu._logits(nowhere))
        points = jnp.concatenate([mu.keys, mu.values], axis=-1)
        cov = jnp.matmul(mu.tail.factor, mu.tail.factor.T, precision="highest")
        tail = (logs[-1:], mu.tail.tilted_mean(nowhere)[None], cov[None])
        return [_points(logs[:-1], points), tail]
    weights, components = mu.mixture()
    if len(components) == 1:
        raise _checks.error(
            "mu must be a mixture of Gaussians and points",
            f"a {type(mu).__name__}",
            "linearise(head, mu, nu) has one affine map for every measure",
        )
    logs = log_weight + jnp.log(weights.astype(log_weight.dtype))
    pairs = zip(logs, components, strict=True)
    return [found for log, part in pairs for found in _parts(part, log)]


def _points(logs: Array, points: Array) -> tuple[Array, Array, Array]:
    n, d = points.shape
    return logs, points, jnp.zeros((n, d, d), points.dtype)
