"""Two distances of a finite prompt: to its own limit, and to linear attention."""

import numpy as np
import xarray as xr

from .._float64 import in_float64
from .._lengths import length_vector, longest_finite
from .._typing import ArrayInput, KeyInput
from ..attention import Head, attend, attend_linear
from ..measures import AbstractMeasure
from ..prompts import finite_mean
from ._attributes import attributes
from ._errors import average_error, average_over, check_dimensions, tokens_and_queries


@in_float64
def limit_comparison(
    head: Head,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    lengths: ArrayInput,
    key: KeyInput | None = None,
) -> xr.Dataset:
    """E |T[mu_L] - T[mu]|^2 beside E |T[mu_L] - T_lin[mu]|^2, averaged over queries of law nu.

    For centred Gaussian tokens the two limits are one (Lemma 2.1 of Boursier & Boyer). For other tokens the second distance
    stays at E |T[mu] - T_lin[mu]|^2 > 0 however long the prompt. Arguments as in `concentration_curve`.

    **Returns:** a dataset over "length" with `own_limit`, `linear` and `between_limits` (constant), each with its `_error`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, nu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Dirac(jnp.ones(2))
    >>> far = lp.limit_comparison(head, lp.Rademacher(2), nu, [1e9])
    >>> print(f"{float(far.own_limit[0]):.1e} {float(far.linear[0]):.4f}")  # 2 (1 - tanh 1)^2 is left
    5.6e-10 0.1137
    """
    check_dimensions(head, mu, nu)
    wanted = length_vector(lengths)
    own = average_error(head, mu, nu, "output", longest_finite(wanted), key)
    pairings = tokens_and_queries(head, mu, nu, key)

    def cross(head, law, z, L):
        """|gap|^2 + 2 <E T_L - T, gap> for gap = T - T_lin, and |gap|^2."""
        limit = attend(head, mu, z)
        gap = limit - attend_linear(head, mu, z)
        shift = finite_mean(head, law, z, L) - attend(head, law, z)
        square = np.sum(np.asarray(gap) ** 2, axis=-1)
        both = square + 2 * np.sum(np.asarray(shift) * np.asarray(gap), axis=-1)
        return np.stack([both, np.broadcast_to(square, both.shape)], axis=-1)

    found = average_over(pairings, cross, head, wanted)
    near = own.evaluate(wanted)
    variables = {
        "own_limit": near.value,
        "own_limit_error": near.error,
        "linear": near.value + found.value[:, 0],
        "linear_error": near.error + found.error[:, 0],
        "between_limits": found.value[:, 1],
        "between_limits_error": found.error[:, 1],
    }
    return xr.Dataset(
        {name: ("length", values) for name, values in variables.items()},
        {"length": ("length", wanted, {"long_name": "prompt length L"})},
        attributes(head, mu, nu, key, route=f"own limit {own.name}; linear {pairings.words}"),
    )
