"""Depth: particles pushed through layers approach the Gaussian recursion as the prompt grows."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..attention import Head, Layer
from ..measures import Empirical, Gaussian
from .base import Check, between, normals

_LENGTHS = (64, 256, 1024)
_REPLICATES = 24


def random_layers(key: Key[Array, ""], d: int, depth: int, heads: int) -> list[Layer]:
    """Layers of small random heads, so that scores stay of order one through the depth."""
    scale = 0.5 * d**-0.5
    (entries,) = normals(key, (depth, heads, 2, d, d))
    return [Layer([Head(U=scale * U, V=scale * V) for U, V in layer]) for layer in entries]


def depth_errors(key: Key[Array, ""], lengths: tuple[int, ...], replicates: int) -> np.ndarray:
    """Mean squared distance between the particles' covariance and that of the Gaussian recursion, for each length."""
    d = 3
    for_layers, for_tokens = jax.random.split(key)
    layers = random_layers(for_layers, d, depth=3, heads=2)
    start = Gaussian(jnp.full(d, 0.3), jnp.diag(jnp.array([1.0, 0.5, 0.0])))
    limit = start
    for layer in layers:
        limit = layer(limit)

    def squared_error(key: Key[Array, ""], length: int) -> Float[Array, ""]:
        prompt: Empirical = start.sample(key, length)
        for layer in layers:
            prompt = layer(prompt)  # pyright: ignore[reportAssignmentType]
        return jnp.sum((prompt.mean() - limit.mean()) ** 2) + jnp.sum(
            (prompt.cov() - limit.cov()) ** 2
        )

    keys = jax.random.split(for_tokens, replicates)
    return np.array(
        [jnp.mean(jax.jit(jax.vmap(lambda k, n=n: squared_error(k, n)))(keys)) for n in lengths]
    )


def run(key: Key[Array, ""]) -> list[Check]:
    """The squared distance of the pushed particles to the pushed Gaussian decays like 1/L."""
    errors = depth_errors(key, _LENGTHS, _REPLICATES)
    slope = np.polyfit(np.log(_LENGTHS), np.log(errors), 1)[0]
    return [between("depth 3: squared error of particles ~ L^slope", slope, -1.4, -0.6)]
