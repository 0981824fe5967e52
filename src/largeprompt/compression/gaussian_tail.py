"""One scaled Gaussian of tokens (k, v) in place of many tokens.

It is stored at the tilt u_0 of the mean query: mass, mean and a factor F of its covariance there.
Its cumulant function at u is log_mass + <mean, w> + |F'w|^2 / 2, w = u - u_0, and its tilted mean
is mean + F F'w, so that attending to it costs as much as attending to rank + 1 tokens.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._typing import Array, ArrayInput


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

    def truncated(
        self, rank: int, queries: ArrayInput | None = None, gap: float | None = None
    ) -> "Tail":
        """The Gaussian of lower rank that serves these tilts of the keys best.

        Without queries all directions of the keys count alike. `gap` is the squared distance
        between the output of the tail and that of the whole measure: errors of the mass of the tail
        count in proportion. `Compressed.truncated` measures it. By default it is the variance of
        the output of the tail over the queries, as far as it is linear.
        """
        k, rank = self.tilt.shape[-1], _checks.count("rank", rank, least=0)
        tilt, factor = np.asarray(self.tilt, np.float64), np.asarray(self.factor, np.float64)
        steps = None
        if queries is not None:
            z = _checks.shaped("queries", _checks.finite("queries", queries), ("q", k))
            steps = np.asarray(z, np.float64) - tilt
        root, inverse = query_metric(steps, k)
        pulled = root.T @ factor[:k]
        cross = pulled @ factor[k:].T
        if gap is None:
            gap = float(np.sum(cross**2))
        gap = _checks.number("gap", gap, "pass a squared distance", least=0.0)
        found = low_rank(pulled @ pulled.T, cross, gap, rank, inverse)
        return Tail(self.tilt, self.log_mass, self.mean, jnp.asarray(found, self.factor.dtype))


def tail_of_tokens(points: np.ndarray, log_masses: np.ndarray, tilt: Array) -> Tail | None:
    """The Gaussian with mass, mean and covariance of tokens (n, d) at a tilt of the keys.

    None if they have no mass.
    """
    scores = log_masses + points[:, : len(tilt)] @ np.asarray(tilt, np.float64)
    top = scores.max(initial=-np.inf)
    if top == -np.inf:
        return None
    weights = np.exp(scores - top)
    total = float(weights.sum())
    weights /= total
    mean = weights @ points
    columns = (np.sqrt(weights)[:, None] * (points - mean)).T
    if len(weights) > len(mean):  # the same covariance in as many columns as dimensions
        columns = np.linalg.qr(columns.T)[1].T
    arrays = (np.asarray(top + np.log(total)), mean, columns)
    return Tail(tilt, *(jax.device_put(array.astype(tilt.dtype)) for array in arrays))


def query_metric(steps: np.ndarray | None, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A root R of the second moment of the steps w, and its inverse transpose.

    A hundredth of the mean variance is added in every direction.
    """
    if steps is None:
        return np.eye(k), np.eye(k)
    moment = steps.T @ steps / len(steps)
    root = np.linalg.cholesky(moment + 0.01 * max(float(np.trace(moment)) / k, 1e-300) * np.eye(k))
    return root, np.linalg.inv(root).T


def low_rank(
    key_cov: np.ndarray,
    cross: np.ndarray,
    gap: float,
    rank: int,
    inverse: np.ndarray,
) -> np.ndarray:
    """Factor (d, r) of a covariance of tokens (k, v) along its `best_axes`."""
    axes = best_axes(key_cov, cross, gap, rank)
    return factor_of(axes.T @ key_cov @ axes, cross.T @ axes, inverse @ axes)


def best_axes(key_cov: np.ndarray, cross: np.ndarray, gap: float, rank: int) -> np.ndarray:
    """Directions g, (k, r), that serve steps w = R g of the query, g white, best.

    **Arguments:** `key_cov` = R'Cov(k, k)R, `cross` = R'Cov(k, v), `gap` the squared distance of
    the outputs that an error in the mass of the tail confuses. The directions are those of largest
    E|Cov(v, k) w|^2 + gap E(w'Cov(k, k)w - its mean)^2 / 4.
    """
    _, axes = np.linalg.eigh(cross @ cross.T + gap * key_cov @ key_cov / 2)
    return axes[:, ::-1][:, :rank]


def factor_of(curvature: np.ndarray, slopes: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """F with F_k F_k' = W Q W' and F_v F_k' = B W', for directions W, curvature Q, slopes B."""
    values, axes = np.linalg.eigh(curvature)
    kept = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
    roots = np.sqrt(values[kept])
    of_keys, of_values = directions @ (axes[:, kept] * roots), slopes @ (axes[:, kept] / roots)
    return np.concatenate([of_keys, of_values])
