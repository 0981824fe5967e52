"""What a result says about how it was made, in a form netCDF can hold."""

import dataclasses
import json
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import __version__
from .._typing import KeyInput
from ..attention import Head
from ..measures import AbstractMeasure, Gaussian
from .bounds import steepest_directions
from .rates import sharp_exponent, steepness

_MOST_NUMBERS = 4096  # larger arrays are described, not listed


def describe(thing: Any) -> Any:
    """A module as names and lists, for JSON."""
    if isinstance(thing, eqx.Module):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"type": type(thing).__name__, **fields}
    if isinstance(thing, (list, tuple)):
        return [describe(part) for part in thing]
    if isinstance(thing, (jax.Array, np.ndarray)):
        if thing.size > _MOST_NUMBERS:
            return f"{thing.dtype} array of shape {thing.shape}"
        return np.asarray(thing, np.float64).tolist()
    return thing if isinstance(thing, (str, int, float, bool, type(None))) else repr(thing)


def attributes(
    head: Head, mu: AbstractMeasure, nu: AbstractMeasure, key: KeyInput | None, **more: str
) -> dict[str, Any]:
    """The configuration, the exponent theory gives it, versions and key."""
    found: dict[str, Any] = dict(more)
    found["tokens"], found["queries"] = type(mu).__name__, type(nu).__name__
    found["dim"], found["out_dim"] = np.int32(head.dim), np.int32(head.out_dim)
    if isinstance(mu, Gaussian) and isinstance(nu, Gaussian):
        found["kappa"] = steepness(head, mu, nu)
        found["sharp_exponent"] = sharp_exponent(found["kappa"])
        found |= steepest_directions(head, mu, nu)
    means = [float(np.max(np.abs(np.asarray(law.mean())))) for law in (mu, nu)]
    found["centred"] = np.int32(max(means) <= 1e-12)
    proxies = [_proxy(law) for law in (mu, nu)]
    if proxies[0] is not None:
        found["sigma"] = max(1.0, math.sqrt(proxies[0]))  # the sigma >= 1 of Prop. 3.1 and 3.4
    if proxies[1] is not None:
        found["query_proxy"] = proxies[1]
    found["configuration"] = json.dumps(
        {"head": describe(head), "mu": describe(mu), "nu": describe(nu)}
    )
    return found | versions(key)


def versions(key: KeyInput | None) -> dict[str, Any]:
    """Versions, backend, precision and key."""
    found: dict[str, Any] = {"largeprompt": __version__, "jax": jax.__version__}
    found["backend"], found["dtype"] = jax.default_backend(), "float64"
    if key is not None:
        data = (
            key if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.key_data(key)
        )
        found["key"] = json.dumps(np.asarray(data).tolist())
    return found


def _proxy(law: AbstractMeasure) -> float | None:
    """The law's sub-Gaussian variance proxy, where it knows one."""
    try:
        return float(np.asarray(law.subgaussian_proxy()))
    except ValueError:
        return None
