"""Error against prompt length, averaged over queries: exact where it can be, sampled with error bars otherwise."""

from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

from .. import _checks
from .._float64 import in_float64
from .._lengths import length_vector, longest_finite, token_count
from .._typing import ArrayInput, KeyInput
from ..attention import Head
from ..measures import AbstractMeasure, Gaussian
from ..prompts import estimate
from ..prompts.estimate import replicate
from ._attributes import attributes
from ._errors import Values, average_error, check_dimensions
from ._quantities import Quantity, checked_quantity

_WORK = 2**22  # numbers drawn at once by Monte Carlo


def concentration_curve(
    head: Head,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    lengths: ArrayInput,
    quantity: Quantity = "output",
    method: Literal["exact", "montecarlo"] = "exact",
    key: KeyInput | None = None,
    *,
    relative_error: float = 0.01,
    max_replicates: int = 100_000,
    progress: bool = False,
) -> xr.Dataset:
    """E |T[mu_L] - T[mu]|^2 averaged over queries of law nu, for every length L (what Prop. 3.1 of Boursier & Boyer bounds).

    **Arguments:** `quantity` is "output", or "gradient_U" or "gradient_V" for the squared error of the derivative in U or V
    (Prop. 3.4). `method="exact"` samples no prompt: for Gaussian tokens the average over a query of Gaussian, discrete or
    low-dimensional law is a quadrature over the variance of the scores, right in the tails too; other query laws are
    averaged, and other tokens represented, by randomised points, which need a `key`. `method="montecarlo"` samples prompts
    and queries until `relative_error` or `max_replicates`.

    **Returns:** a dataset over "length" with `value`, `error` (numerical error, or standard error where points are random) and
    `local_slope` = d ln value / d ln L (from neighbouring lengths where values are sampled; NaN where there is none: at
    infinity, or for a single sampled length). Its attributes record the configuration; `to_netcdf` keeps all of it.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2) / 4, V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> curve = lp.concentration_curve(head, mu, mu, [10.0, 1e4, 1e12])
    >>> print(curve.local_slope.values.round(3))
    [-0.974 -1.    -1.   ]
    """
    quantity = checked_quantity(quantity)
    check_dimensions(head, mu, nu)
    wanted = length_vector(lengths)
    if method == "montecarlo":
        if key is None:
            raise ValueError(
                _checks.message("method='montecarlo' needs a key", "None", "pass jax.random.key(0)")
            )
        values = _monte_carlo(
            head, mu, nu, wanted, quantity, key, relative_error, max_replicates, progress
        )
        route = "sampled prompts and queries"
    elif method == "exact":
        values, route = _exact(head, mu, nu, quantity, wanted, key)
    else:
        raise ValueError(
            _checks.message(
                "method must be 'exact' or 'montecarlo'", repr(method), "name one of them"
            )
        )
    return xr.Dataset(
        {
            "value": ("length", values.value, {"long_name": _NAMES[quantity]}),
            "error": ("length", values.error, {"long_name": f"error of value ({route})"}),
            "local_slope": ("length", local_slope(wanted, values)),
        },
        {"length": ("length", wanted, {"long_name": "prompt length L"})},
        attributes(head, mu, nu, key, quantity=quantity, method=method, route=route),
    )


@in_float64
def _exact(
    head: Head,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    quantity: Quantity,
    lengths: np.ndarray,
    key: KeyInput | None,
) -> tuple[Values, str]:
    """Values in float64, whatever JAX's default, and the route they came by."""
    route = average_error(head, mu, nu, quantity, longest_finite(lengths), key)
    return route.evaluate(lengths), route.name


def _monte_carlo(
    head: Head,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    lengths: np.ndarray,
    quantity: Quantity,
    key: KeyInput,
    relative_error: float,
    max_replicates: int,
    progress: bool,
) -> Values:
    """One fresh query and one fresh prompt a replicate."""
    keys = jax.random.split(_checks.key(key), len(lengths))
    found = []
    for k, L in zip(keys, map(token_count, lengths), strict=True):
        found.append(
            estimate(
                k,
                _squared_error(head, mu, nu, quantity, L),
                relative_error=relative_error,
                max_replicates=max_replicates,
                batch=max(1, min(128, _WORK // (L * head.dim))),
                progress=progress,
            )
        )
    value, error = (np.array([float(f[i]) for f in found]) for i in (0, 1))
    return Values(value, error, None)


def _squared_error(
    head: Head, mu: AbstractMeasure, nu: AbstractMeasure, quantity: Quantity, L: int
) -> Callable[[Array], Array]:
    """The squared error of one prompt at one query, as a function of its key."""
    gaussian_output = quantity == "output" and isinstance(mu, Gaussian)
    route = "scores" if gaussian_output else "tokens"  # the former is exact in law, and cheaper

    def one(key: Array) -> Array:
        for_query, for_prompt = jax.random.split(key)
        z = nu.sample(for_query, 1).points[0]
        return replicate(f"{quantity}_error", head, mu, z, L, route)(for_prompt)

    return one


def local_slope(lengths: np.ndarray, values: Values) -> np.ndarray:
    """d ln value / d ln L: the derivative where it is known, differences of neighbours where it is not."""
    finite = np.isfinite(lengths) & (values.value > 0)
    slope = np.full(len(lengths), np.nan)
    if values.slope is not None:
        slope[finite] = lengths[finite] * values.slope[finite] / values.value[finite]
    elif finite.sum() > 1:
        order = np.flatnonzero(finite)[np.argsort(lengths[finite])]
        slope[order] = np.gradient(np.log(values.value[order]), np.log(lengths[order]))
    return slope


_NAMES = {
    "output": "E |T_L - T|^2",
    "gradient_U": "E |dT_L/dU - dT/dU|^2",
    "gradient_V": "E |dT_L/dV - dT/dV|^2",
}
