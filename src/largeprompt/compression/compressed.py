"""Compressed prompts: kept tokens and one scaled Gaussian for all others.

The Gaussian is stored at the tilt u_0 of the mean query: mass, mean and a factor F of its
covariance there. Its cumulant function at u is log_mass + <mean, w> + |F'w|^2 / 2, w = u - u_0, and
its tilted mean is mean + F F'w, so that attending to it costs as much as attending to rank + 1
tokens.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput, KeyInput
from ..measures import AbstractMeasure, Empirical, KeyValues


class CompressionError(NamedTuple):
    """Squared error of the output over queries, relative to $E|T - mean value|^2$.

    `held_out` says whether the queries took no part in the compression. The numbers are arrays, so
    that measures with other errors share compiled programs.
    """

    mean: Array
    median: Array
    percentile_90: Array
    percentile_99: Array
    queries: int
    held_out: bool


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
        k = self.tilt.shape[-1]
        tilt, factor = np.asarray(self.tilt, np.float64), np.asarray(self.factor, np.float64)
        steps = None if queries is None else np.asarray(queries, np.float64) - tilt
        root, inverse = query_metric(steps, k)
        pulled = root.T @ factor[:k]
        found = low_rank(pulled @ pulled.T, pulled @ factor[k:].T, 0.0, rank, root, inverse)
        return Tail(self.tilt, self.log_mass, self.mean, jnp.asarray(found, self.factor.dtype))


class Compressed(AbstractMeasure):
    """A prompt in few numbers: kept tokens with log weights, and a Gaussian for the others.

    `lp.compress` returns it. `nbytes` is its size, `error` its error on held-out queries.
    """

    keys: Float[Array, "n k"]
    values: Float[Array, "n v"]
    log_weights: Float[Array, " n"] | None  # masses of the atoms; None: 1 each
    tail: Tail | None
    error: CompressionError | None

    def __init__(
        self,
        keys: Float[Array, "n k"],
        values: Float[Array, "n v"],
        log_weights: Float[Array, " n"] | None,
        tail: Tail | None,
        error: CompressionError | None = None,
    ) -> None:
        self.keys, self.values, self.log_weights = keys, values, log_weights
        self.tail, self.error = tail, error

    @property
    def dim(self) -> int:
        return self.keys.shape[-1] + self.values.shape[-1]

    @property
    def n(self) -> int:
        """Number of atoms."""
        return self.keys.shape[-2]

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        arrays = jax.tree.leaves((self.keys, self.values, self.log_weights, self.tail))
        return sum(array.size * array.dtype.itemsize for array in arrays)

    @property
    def dtype(self) -> np.dtype:
        return self.keys.dtype

    def append(self, keys: ArrayInput, values: ArrayInput) -> "Compressed":
        """With new tokens as atoms; the error measured before no longer holds and is dropped."""
        new = KeyValues(keys, values)
        weights = None
        if self.log_weights is not None:
            weights = jnp.concatenate([self.log_weights, jnp.zeros(new.n, self.dtype)])
        return Compressed(
            jnp.concatenate([self.keys, new.keys.astype(self.dtype)]),
            jnp.concatenate([self.values, new.values.astype(self.dtype)]),
            weights,
            self.tail,
        )

    def fold(
        self, index: ArrayInput, rank: int | None = None, queries: ArrayInput | None = None
    ) -> "Compressed":
        """Move the atoms of these indices into the tail, whose rank stays unless given.

        `queries` are tilts of the keys that decide which directions a low rank keeps.
        """
        if self.tail is None:
            raise ValueError(
                _checks.message(
                    "fold moves atoms into the Gaussian tail",
                    "a compressed prompt without one",
                    "compress with rank=0 or more",
                )
            )
        chosen = np.zeros(self.n, bool)
        chosen[np.asarray(index, int)] = True
        k, weights = self.keys.shape[-1], self._masses()
        points = jnp.concatenate([self.keys, self.values], axis=1)
        tail, rank = self.tail, self.tail.rank if rank is None else rank
        for i in np.flatnonzero(chosen):
            log_mass = weights[i] + points[i, :k] @ tail.tilt
            one = Tail(tail.tilt, log_mass, points[i], jnp.zeros((self.dim, 0), self.dtype))
            tail = tail.merge(one)
        kept = np.flatnonzero(~chosen)
        logs = None if self.log_weights is None else self.log_weights[kept]
        tail = tail.truncated(rank, queries) if tail.rank > rank else tail
        return Compressed(self.keys[kept], self.values[kept], logs, tail)

    def merge(self, other: "Compressed") -> "Compressed":
        """The measure of both prompts: all atoms, and one tail for both tails."""
        logs = None
        if self.log_weights is not None or other.log_weights is not None:
            logs = jnp.concatenate([self._masses(), other._masses()])
        tails = [part.tail for part in (self, other) if part.tail is not None]
        tail = tails[0].merge(tails[1]) if len(tails) == 2 else (tails[0] if tails else None)
        keys, values = (
            jnp.concatenate(pair) for pair in ((self.keys, other.keys), (self.values, other.values))
        )
        return Compressed(keys, values, logs, tail)

    def _masses(self) -> Float[Array, " n"]:
        return jnp.zeros(self.n, self.dtype) if self.log_weights is None else self.log_weights

    def _points(self) -> Float[Array, "n d"]:
        return jnp.concatenate([self.keys, self.values], axis=-1)

    def _logits(self, u: Float[Array, " d"]) -> Float[Array, " j"]:
        """Log masses of the atoms and of the tail, tilted by u."""
        k = self.keys.shape[-1]
        scores = jnp.matmul(self.keys, u[:k], precision="highest")
        scores = scores + jnp.matmul(self.values, u[k:], precision="highest") + self._masses()
        if self.tail is None:
            return scores
        return jnp.append(scores, self.tail.log_mgf(u))

    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        u = self._vector(u)
        masses = jax.nn.logsumexp(self._logits(jnp.zeros_like(u)))
        return jax.nn.logsumexp(self._logits(u)) - masses

    def _parts(self, u: Float[Array, " d"]) -> tuple[Array, Array]:
        """Weights and means of the atoms and of the tail."""
        points = self._points()
        if self.tail is not None:
            points = jnp.concatenate([points, self.tail.tilted_mean(u)[None]])
        return jax.nn.softmax(self._logits(u)), points

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        weights, points = self._parts(self._vector(u))
        return jnp.matmul(weights, points, precision="highest")

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        weights, points = self._parts(self._vector(u))
        gaps = points - weights @ points
        cov = jnp.matmul((weights[:, None] * gaps).T, gaps, precision="highest")
        if self.tail is None:
            return cov
        factor = self.tail.factor
        return cov + weights[-1] * jnp.matmul(factor, factor.T, precision="highest")

    def tilt(self, u: ArrayInput) -> "Compressed":
        u = self._vector(u)
        logits, tail = self._logits(u), None
        if self.tail is not None:
            nowhere = jnp.zeros_like(self.tail.tilt)
            tail = Tail(nowhere, logits[-1], self.tail.tilted_mean(u), self.tail.factor)
        return Compressed(self.keys, self.values, logits[: self.n], tail)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        choice, noise = jax.random.split(_checks.key(key))
        n = _checks.count("n", n)
        zero = jnp.zeros(self.dim, self.dtype)
        chosen = jax.random.categorical(choice, self._logits(zero), shape=(n,))
        draws = self._parts(zero)[1][chosen]
        if self.tail is not None:
            normals = jax.random.normal(noise, (n, self.tail.rank), self.dtype)
            moved = jnp.matmul(normals, self.tail.factor.T, precision="highest")
            draws = draws + jnp.where((chosen == self.n)[:, None], moved, 0.0)
        return Empirical(draws)

    def subgaussian_proxy(self) -> Float[Array, ""]:
        """Largest squared distance of a part from the mean, plus the tail's largest variance."""
        weights, points = self._parts(jnp.zeros(self.dim, self.dtype))
        distance = jnp.max(jnp.sum((points - weights @ points) ** 2, axis=-1))
        if self.tail is None or not self.tail.rank:
            return distance
        return distance + jnp.linalg.norm(self.tail.factor, 2) ** 2

    def as_key_values(self) -> KeyValues | None:
        """Keys and values, if there is no tail."""
        if self.tail is not None:
            return None
        return KeyValues(self.keys, self.values, self.log_weights)

    def atoms(self) -> Empirical | None:
        pair = self.as_key_values()
        return None if pair is None else pair.as_prompt()


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
