"""Compressed prompts: kept tokens and one scaled Gaussian for all others."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._float64 import is_traced
from .._typing import Array, ArrayInput, KeyInput, Vector
from ..measures import AbstractMeasure, Empirical, KeyValues
from .draft import Draft, DraftTail, outputs_and_weights, seen_tail
from .gaussian_tail import Tail, tail_of_tokens


class CompressionError(NamedTuple):
    """Squared error of the output, relative to $E|T - mean value|^2$, on queries held out.

    `standard_error` is that of `mean` for independent queries like the ones held out. The numbers
    are NumPy scalars, arrays to JAX, so that measures with other errors share compiled programs.
    """

    mean: np.floating
    standard_error: np.floating
    median: np.floating
    percentile_90: np.floating
    percentile_99: np.floating
    queries: int

    @classmethod
    def of(cls, errors: np.ndarray, deviations: np.ndarray) -> "CompressionError":
        """Statistics of errors and deviations, both relative to the mean deviation."""
        q, mean = len(errors), errors.mean()
        # delta method for the ratio of two means
        error = np.std(errors - (mean if np.isfinite(mean) else 0.0) * deviations, ddof=1)
        # the same as `np.percentile`, in a quarter of the time
        percentiles = np.interp([0.5, 0.9, 0.99], np.linspace(0.0, 1.0, q), np.sort(errors))
        return cls(mean, error / np.sqrt(q), *percentiles, queries=q)

    def __repr__(self) -> str:
        return f"{self.mean:.2g} +- {self.standard_error:.1g} on {self.queries} queries held out"


class Compressed(AbstractMeasure):
    """A prompt in few numbers: kept tokens with log weights, and a Gaussian for the others.

    `lp.compress` returns it. `nbytes` is its size, `error` its error on held-out queries, None if
    there were too few.
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

    def __repr__(self) -> str:
        if is_traced(self) or not eqx.is_array(self.keys):
            return eqx.tree_pformat(self)
        tail = "no tail" if self.tail is None else f"Gaussian tail of rank {self.tail.rank}"
        return (
            f"Compressed({self.n} atoms, {tail}, {self.nbytes} bytes, "
            f"error {'unknown' if self.error is None else self.error})"
        )

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
        self._check_same_dimensions("new tokens", new.keys, new.values)
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
            raise _checks.error(
                "fold moves atoms into the Gaussian tail",
                "a compressed prompt without one",
                "compress with rank=0 or more",
            )
        index = _checks.indices("index", index, self.n)
        rank = self.tail.rank if rank is None else _checks.count("rank", rank, least=0)
        points, masses = (np.asarray(a, np.float64) for a in (self._points(), self._masses()))
        folded = tail_of_tokens(points[index], masses[index], self.tail.tilt)
        tail = self.tail if folded is None else self.tail.merge(folded)
        kept = np.delete(np.arange(self.n), index)
        logs = None if self.log_weights is None else self.log_weights[kept]
        found = Compressed(self.keys[kept], self.values[kept], logs, tail)
        return found.truncated(rank, queries)

    def truncated(self, rank: int, queries: ArrayInput | None = None) -> "Compressed":
        """With a tail of at most this rank, along the directions that serve the queries best.

        `queries` are tilts of the keys. The atoms count: a direction along which the mass of the
        tail changes matters as much as their output differs from that of the tail. Merge parts of a
        prompt before their tails are truncated.
        """
        tail, rank = self.tail, _checks.count("rank", rank, least=0)
        if queries is not None:
            queries = _checks.finite("queries", queries)
            queries = _checks.shaped("queries", queries, ("q", self.keys.shape[-1]))
        if tail is None or tail.rank <= rank:
            return self
        gap = None
        if self.n:
            z = np.asarray(tail.tilt[None] if queries is None else queries, np.float64)
            draft = draft_of(self)
            assert draft.tail is not None  # for the type checker
            got, p = outputs_and_weights(draft, z)
            _, of_tail = seen_tail(draft.tail, z)
            weights = (1 - p.sum(axis=1)) ** 2
            distance = np.sum((got - of_tail) ** 2, axis=1)
            gap = float(weights @ distance / max(float(weights.sum()), 1e-300))
        return Compressed(
            self.keys, self.values, self.log_weights, tail.truncated(rank, queries, gap)
        )

    def merge(self, other: "Compressed") -> "Compressed":
        """The measure of both prompts: all atoms, and one tail for both tails."""
        if not isinstance(other, Compressed):
            raise _checks.error(
                "merge joins two compressed prompts",
                f"a {type(other).__name__}",
                "compress it first, or append its tokens",
            )
        self._check_same_dimensions("the other prompt", other.keys, other.values)
        logs = None
        if self.log_weights is not None or other.log_weights is not None:
            logs = jnp.concatenate([self._masses(), other._masses()])
        tails = [part.tail for part in (self, other) if part.tail is not None]
        tail = tails[0].merge(tails[1]) if len(tails) == 2 else (tails[0] if tails else None)
        keys, values = (
            jnp.concatenate(pair) for pair in ((self.keys, other.keys), (self.values, other.values))
        )
        return Compressed(keys, values, logs, tail)

    def _check_same_dimensions(self, name: str, keys: Array, values: Array) -> None:
        own, theirs = (
            (k.shape[-1], v.shape[-1]) for k, v in ((self.keys, self.values), (keys, values))
        )
        if own != theirs:
            raise _checks.error(
                f"{name} must have keys of dimension {own[0]} and values of dimension {own[1]}",
                f"dimensions {theirs[0]} and {theirs[1]}",
                "pass tokens of the same head",
            )

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

    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        masses = jax.nn.logsumexp(self._logits(jnp.zeros_like(u)))
        return jax.nn.logsumexp(self._logits(u)) - masses

    def _parts(self, u: Float[Array, " d"]) -> tuple[Array, Array]:
        """Weights and means of the atoms and of the tail."""
        points = self._points()
        if self.tail is not None:
            points = jnp.concatenate([points, self.tail.tilted_mean(u)[None]])
        return jax.nn.softmax(self._logits(u)), points

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        weights, points = self._parts(u)
        return jnp.matmul(weights, points, precision="highest")

    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        weights, points = self._parts(u)
        gaps = points - weights @ points
        cov = jnp.matmul((weights[:, None] * gaps).T, gaps, precision="highest")
        if self.tail is None:
            return cov
        factor = self.tail.factor
        return cov + weights[-1] * jnp.matmul(factor, factor.T, precision="highest")

    def tilt(self, u: Vector) -> "Compressed":
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


def draft_of(found: Compressed) -> Draft:
    """The numbers of a compressed prompt in NumPy."""
    logs, tail = found.log_weights, found.tail
    numbers = None
    if tail is not None:
        numbers = DraftTail(*map(np.asarray, (tail.tilt, tail.log_mass, tail.mean, tail.factor)))
    keys, values = np.asarray(found.keys), np.asarray(found.values)
    return Draft(keys, values, None if logs is None else np.asarray(logs), numbers)
