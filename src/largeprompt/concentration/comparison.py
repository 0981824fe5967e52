"""Two distances of a finite prompt: to its own limit, and to linear attention."""

import numpy as np
import xarray as xr

from .. import _checks
from .._float64 import not_traced
from .._lengths import length_vector, longest_finite
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from ..prompts import AbstractMethod, OutputError
from ..prompts.methods import as_method
from ..prompts.query_averages import check_dimensions
from ._attributes import attributes
from ._query_law import query_law


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@not_traced
def limit_comparison(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure | ArrayInput,
    lengths: ArrayInput,
    method: AbstractMethod | None = None,
) -> xr.Dataset:
    """$E |T_L - T|^2$ beside $E |T_L - T_lin|^2$, averaged over queries of law nu.

    For centred Gaussian tokens the two limits agree (Lemma 2.1 of Boursier & Boyer). For other
    tokens the second distance stays at $E |T - T_lin|^2 > 0$ however long the prompt. Arguments as
    in `concentration_curve`.

    **Returns:** a dataset over "length" with `own_limit`, `linear` and `between_limits`
    (constant), each with its `_error`.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> far = lp.limit_comparison(head, lp.Rademacher(2), jnp.ones(2), [1e9])
    >>> # the distance between the limits, 2 (1 - tanh 1)^2, is left
    >>> print(f"{float(far.own_limit[0]):.1e} {float(far.linear[0]):.4f}")
    5.6e-10 0.1137
    """
    nu = query_law("nu", nu)
    check_dimensions(head, mu, nu)
    wanted, method = length_vector(lengths), as_method(method)
    longest = longest_finite(wanted)
    own = method.along_length(OutputError(), head, mu, nu, longest)(wanted)
    linear = method.along_length(OutputError(to="linear"), head, mu, nu, longest)(
        np.append(wanted, np.inf)
    )
    variables = {
        "own_limit": own.value,
        "own_limit_error": own.error,
        "linear": linear.value[:-1],
        "linear_error": linear.error[:-1],
        "between_limits": np.full(len(wanted), linear.value[-1]),
        "between_limits_error": np.full(len(wanted), linear.error[-1]),
    }
    return xr.Dataset(
        {name: ("length", values) for name, values in variables.items()},
        {"length": ("length", wanted, {"long_name": "prompt length L"})},
        attributes(head, mu, nu, method),
    )
