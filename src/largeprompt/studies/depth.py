"""Depth: particles pushed through layers approach the Gaussian recursion as the prompt grows."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key

from ..attention import Head, Layer
from ..measures import Empirical, Gaussian
from ._draws import normals
from .base import Check, Config, Study, between

_DIM = 3
_AT_ONCE = 8  # prompts pushed side by side


def random_layers(key: Key[Array, ""], d: int, depth: int, heads: int) -> list[Layer]:
    """Layers of small random heads, so that scores stay of order one through the depth."""
    scale = 0.5 * d**-0.5
    (entries,) = normals(key, (depth, heads, 2, d, d))
    return [Layer([Head(U=scale * U, V=scale * V) for U, V in layer]) for layer in entries]


def depth_errors(
    key: Key[Array, ""], lengths: list[int], replicates: int, depth: int
) -> Float[np.ndarray, "lengths replicates depth"]:
    """Squared distance of mean and covariance between particles and the Gaussian recursion, after each layer."""
    for_layers, for_tokens = jax.random.split(key)
    layers = random_layers(for_layers, _DIM, depth=depth, heads=2)
    start = Gaussian(jnp.full(_DIM, 0.3), jnp.diag(jnp.array([1.0, 0.5, 0.0])))
    limits = [start]
    for layer in layers:
        limits.append(layer(limits[-1]))  # pyright: ignore[reportArgumentType]

    # one program for all layers, and a few prompts at a time: compiling and memory do not grow with depth and replicates
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *zip(layers, limits[1:], strict=True))

    def through(prompt: Empirical, step: tuple) -> tuple[Empirical, Float[Array, ""]]:
        layer, limit = step
        pushed = layer(prompt)
        gap_of_means, gap_of_covs = pushed.mean() - limit.mean(), pushed.cov() - limit.cov()
        return pushed, jnp.sum(gap_of_means**2) + jnp.sum(gap_of_covs**2)

    def squared_errors(key: Key[Array, ""], length: int) -> Float[Array, " depth"]:
        return jax.lax.scan(through, start.sample(key, length), stacked)[1]

    keys = jax.random.split(for_tokens, replicates)
    return np.stack(
        [
            jax.lax.map(lambda k, n=n: squared_errors(k, n), keys, batch_size=_AT_ONCE)
            for n in lengths
        ]
    )


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """The squared distance of the pushed particles to the pushed Gaussian decays like 1/L."""
    lengths, depth, replicates = config["lengths"], config["depth"], config["replicates"]
    draws = depth_errors(key, lengths, replicates, depth)
    data = xr.Dataset(
        {
            "squared_error": (("layer", "length"), draws.mean(1).T),
            "squared_error_error": (("layer", "length"), draws.std(1, ddof=1).T / replicates**0.5),
        },
        {"layer": np.arange(1, depth + 1), "length": np.array(lengths, np.float64)},
    )
    slopes = [np.polyfit(np.log(lengths), np.log(row), 1)[0] for row in data.squared_error.values]
    return data, [
        between(f"depth {depth}: squared error of particles ~ L^slope", slopes[-1], -1.4, -0.6),
        between("depth 1: squared error of particles ~ L^slope", slopes[0], -1.4, -0.6),
    ]


STUDY = Study(
    name="depth",
    title="Through depth, particles follow the Gaussian recursion",
    source="Lemma 2.1, iterated (Castin et al. 2025)",
    statement="Since T is affine on Gaussian tokens, a residual layer maps Gaussian tokens to Gaussian tokens, with mean and covariance "
    "in closed form; a prompt of L tokens pushed through the same layers approaches this recursion at rate 1/L in squared error.",
    formula=r"\mu_{k+1} = \mathcal{N}(B m + \textstyle\sum_h V_h m,\; B \Gamma B^{\top}), \qquad "
    r"B = I + \textstyle\sum_h V_h \Gamma U_h",
    method="The recursion is exact. The error of particles (mean and covariance, squared) is a Monte Carlo mean over independent "
    "prompts, shown with two standard errors; the exponent is fitted over the lengths shown.",
    quick={"lengths": [64, 256, 1024], "replicates": 64, "depth": 3},
    full={"lengths": [64, 128, 256, 512, 1024, 2048, 4096], "replicates": 200, "depth": 6},
    compute=compute,
)
