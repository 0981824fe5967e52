"""One scaled Gaussian of tokens (k, v) in place of many tokens.

It is stored at the tilt u_0 of the mean query: mass, mean and a factor F of its covariance there.
Its cumulant function at u is log_mass + <mean, w> + |F'w|^2 / 2, w = u - u_0, and its tilted mean
is mean + F F'w, so that attending to it costs as much as attending to rank + 1 tokens.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput


class Tail(eqx.Module):
    """A scaled Gaussian of tokens (k, v), stored at a tilt of the keys."""

    tilt: Float[Array, " k"]
    log_mass: Float[Array, ""]
    mean: Float[Array, " d"]
    factor: Float[Array, "d r"]

    @property
    def rank(self) -> int:
        """Number of columns of the factor."""
        return self.factor.shape[-1]

    def _from_tilt(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        k = self.tilt.shape[-1]
        return jnp.concatenate([u[:k] - self.tilt, u[k:]])

    def log_mgf(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The logarithm of the integral of e^{<u, x>}."""
        w = self._from_tilt(u)
        return self.log_mass + self.mean @ w + jnp.sum((w @ self.factor) ** 2) / 2

    def tilted_mean(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """Mean of the Gaussian tilted by u."""
        return self.mean + self.factor @ (self._from_tilt(u) @ self.factor)

    def moved_to(self, tilt: ArrayInput) -> "Tail":
        """The same measure stored at another tilt of the keys."""
        tilt = _checks.shaped("tilt", _checks.finite("tilt", tilt), self.tilt.shape)
        tilt = tilt.astype(self.tilt.dtype)
        u = jnp.concatenate([tilt, jnp.zeros(len(self.mean) - len(tilt), tilt.dtype)])
        return Tail(tilt, self.log_mgf(u), self.tilted_mean(u), self.factor)

    def merge(self, other: "Tail") -> "Tail":
        """The Gaussian with mass, mean and covariance of both, at the tilt of the first.

        Associative for tails at one tilt. The ranks add up, plus one for the distance of the
        means; `truncated` reduces them.
        """
        other = other.moved_to(self.tilt)
        top = jnp.logaddexp(self.log_mass, other.log_mass)
        first, second = jnp.exp(self.log_mass - top), jnp.exp(other.log_mass - top)
        gap = jnp.sqrt(first * second) * (other.mean - self.mean)
        columns = [
            jnp.sqrt(first) * self.factor,
            jnp.sqrt(second) * other.factor,
            gap[:, None],
        ]
        mean = self.mean + second * (other.mean - self.mean)
        return Tail(self.tilt, top, mean, jnp.concatenate(columns, axis=1))

    def truncated(self, rank: int, queries: ArrayInput | None = None) -> "Tail":
        """The Gaussian of lower rank that serves these tilts of the keys best.

        Without queries all directions of the keys count alike.
        """
        k, rank = self.tilt.shape[-1], _checks.count("rank", rank, least=0)
        tilt, factor = np.asarray(self.tilt, np.float64), np.asarray(self.factor, np.float64)
        steps = None
        if queries is not None:
            z = _checks.shaped("queries", _checks.finite("queries", queries), ("q", k))
            steps = np.asarray(z, np.float64) - tilt
        root, inverse = query_metric(steps, k)
        pulled = root.T @ factor[:k]
        found = low_rank(pulled @ pulled.T, pulled @ factor[k:].T, 0.0, rank, root, inverse)
        return Tail(self.tilt, self.log_mass, self.mean, jnp.asarray(found, self.factor.dtype))


def query_metric(steps: np.ndarray | None, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A root R of the second moment of the steps w, and its inverse transpose.

    A hundredth of the mean variance is added in every direction.
    """
    if steps is None:
        return np.eye(k), np.eye(k)
    values, axes = np.linalg.eigh(steps.T @ steps / len(steps))
    values = np.maximum(values, 0.0) + 0.01 * max(float(values.mean()), 1e-300)
    return axes * np.sqrt(values), axes / np.sqrt(values)


def low_rank(
    key_cov: np.ndarray,
    cross: np.ndarray,
    gap: float,
    rank: int,
    root: np.ndarray,
    inverse: np.ndarray,
) -> np.ndarray:
    """Factor (d, r) of a covariance of tokens (k, v) that serves steps w = R g, g white, best.

    **Arguments:** `key_cov` = R'Cov(k, k)R, `cross` = R'Cov(k, v), `gap` the squared distance of
    the outputs that an error in the mass of the tail confuses. The directions are those of largest
    E|Cov(v, k) w|^2 + gap E(w'Cov(k, k)w - its mean)^2 / 4.
    """
    _, axes = np.linalg.eigh(cross @ cross.T + gap * key_cov @ key_cov / 2)
    axes = axes[:, ::-1][:, :rank]
    return factor_of(axes.T @ key_cov @ axes, cross.T @ axes, inverse @ axes)


def factor_of(curvature: np.ndarray, slopes: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """F with F_k F_k' = W Q W' and F_v F_k' = B W', for directions W, curvature Q, slopes B."""
    values, axes = np.linalg.eigh(curvature)
    kept = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
    roots = np.sqrt(values[kept])
    of_keys, of_values = directions @ (axes[:, kept] * roots), slopes @ (axes[:, kept] / roots)
    return np.concatenate([of_keys, of_values])
