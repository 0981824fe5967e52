"""Quantiles over prompts of the distance to the infinite prompt."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._typing import Array, ArrayInput
from ..attention import AbstractHead, attend
from ..measures import AbstractMeasure
from .quantities import AbstractQuantity


class ErrorQuantiles(AbstractQuantity):
    """Quantiles of $|T_L - T|$ over prompts, sampled by `MonteCarlo`.

    The number of n sampled distances below the quantile of level q is binomial, of mean nq and
    variance nq(1 - q). So the order statistics two deviations to either side of nq enclose it with
    probability about 0.95; a quarter of their distance is the standard error. It is infinite where
    there are too few prompts for the level. Over a law of queries, prompt and query are random.

    **Arguments:** `levels` between 0 and 1, a number or a sequence; the result has its shape.

    >>> import jax
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=[[0.0]], V=[[1.0]]), lp.Gaussian([0.0], [[1.0]])
    >>> method = lp.MonteCarlo(jax.random.key(0), max_replicates=10_000)
    >>> found = lp.expect(lp.ErrorQuantiles([0.5, 0.9]), head, mu, [1.0], 4, method)
    >>> print(abs(found.value - [0.337, 0.822]) < 4 * found.error)  # |N(0, 1/4)|
    [ True  True]
    """

    levels: float | tuple[float, ...] = eqx.field(static=True)

    def __init__(self, levels: ArrayInput):
        array = _checks.known("levels", levels)
        if array.ndim > 1 or not array.size or not np.all((array > 0) & (array < 1)):
            raise _checks.error(
                "levels must be a number between 0 and 1, or a sequence of them",
                repr(levels),
                "pass for example [0.5, 0.95]",
            )
        self.levels = tuple(array.tolist()) if array.ndim else float(array)

    @property
    def name(self) -> str:
        return "quantiles of |T_L - T|"

    @property
    def label(self) -> str:
        return "error quantiles"

    @property
    def from_output(self) -> bool:
        return True

    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        return jnp.zeros((*z.shape[:-1], *np.shape(self.levels)), z.dtype)

    def of_output(self, head: AbstractHead, mu: AbstractMeasure, output: Array, z: Array) -> Array:
        """The distance, once for each level."""
        distance = jnp.linalg.norm(output - attend(head, mu, z))
        return jnp.broadcast_to(distance, np.shape(self.levels))

    def summary(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Quantiles of the sampled distances, and their standard errors."""
        levels, n = np.asarray(self.levels), len(values)
        ordered = np.sort(values.reshape(n, -1)[:, 0])
        reach = 2 * np.sqrt(n * levels * (1 - levels))
        low, high = np.floor(n * levels - reach), np.ceil(n * levels + reach)
        ends = [ordered[np.clip(end, 1, n).astype(int) - 1] for end in (low, high)]
        error = np.where((low >= 1) & (high <= n), (ends[1] - ends[0]) / 4, math.inf)
        return np.asarray(np.quantile(ordered, levels)), error
