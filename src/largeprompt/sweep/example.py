"""Example of a cell function."""

from typing import Any

import jax
import jax.numpy as jnp
import xarray as xr
from jaxtyping import Array, Key


def sampled_error(configuration: dict[str, Any], key: Key[Array, ""]) -> xr.Dataset:
    """Squared output errors of `draws` prompts of L tokens N(0, sigma^2) at query z = 1.

    The head has U = V = 1, so the output for the whole law is T[mu](z) = sigma^2 z.
    """
    sigma, shape = configuration["sigma"], (configuration["draws"], configuration["L"])
    tokens = sigma * jax.random.normal(key, shape)
    outputs = jnp.sum(jax.nn.softmax(tokens) * tokens, axis=1)
    return xr.Dataset({"squared_error": ("draw", (outputs - sigma**2) ** 2)})
