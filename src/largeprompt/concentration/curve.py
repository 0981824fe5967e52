"""Error against prompt length, averaged over queries."""

import numpy as np
import xarray as xr

from .. import _checks
from .._float64 import not_traced
from .._lengths import length_vector, longest_finite
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from ..prompts import AbstractMethod, AbstractQuantity, OutputError
from ..prompts.methods import as_method
from ..prompts.quantities import as_quantity
from ..prompts.query_averages import Values, check_dimensions
from ._attributes import attributes
from ._query_law import query_law
from .explicit_bound import explicit_bound


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@not_traced
def concentration_curve(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure | ArrayInput,
    lengths: ArrayInput,
    quantity: AbstractQuantity | None = None,
    method: AbstractMethod | None = None,
) -> xr.Dataset:
    """$E |T_L - T|^2$ averaged over queries of law nu, for every length L (what Prop. 3.1 of
    Boursier & Boyer bounds).

    **Arguments:** `nu` is the law of the query, or one query of shape (d,). `quantity` is
    `OutputError()` (None), or `GradientError("U")` or `("V")` for the squared error of the
    derivative (Prop. 3.4). `method` as in `expect`: None is `Exact()`, which samples no prompt and
    is right in the tails too; laws of tokens or queries without an exact average need
    `QuasiMonteCarlo(key)`; `MonteCarlo(key)` samples prompts and queries.

    **Returns:** a dataset over "length" with `value`, `error` (numerical error, or standard error
    where points are random) and `local_slope` = d ln value / d ln L (from neighbouring lengths
    where values are sampled; NaN where there is none: at infinity, or for a single sampled
    length). For Gaussian tokens also `upper_bound`, the average of
    $e^{u'Gu} (tr VGV' + |VGu|^2) / L$ over queries (infinite if kappa >= 1/2, `explicit_bound`),
    and for one head `lower_bound`, sharp too if kappa < 1/6, and 0 otherwise.
    Its attributes record the configuration and, for Gaussian tokens and queries, kappa and the
    exponents of the rate L^-sharp_exponent (ln L)^log_exponent; `to_netcdf` keeps all of it.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2) / 4, V=jnp.eye(2))
    >>> mu = lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> curve = lp.concentration_curve(head, mu, mu, [10.0, 1e4, 1e12])
    >>> print(curve.local_slope.values.round(3))
    [-0.974 -1.    -1.   ]
    """
    quantity = as_quantity(OutputError() if quantity is None else quantity)
    method = as_method(method)
    nu = query_law("nu", nu)
    check_dimensions(head, mu, nu)
    wanted = length_vector(lengths)
    values = method.along_length(quantity, head, mu, nu, longest_finite(wanted))(wanted)
    if values.value.ndim > 1:
        raise _checks.error(
            "a curve shows one number for every length",
            f"{quantity.name}, of shape {values.value.shape[1:]}",
            "pass lp.OutputError() or lp.GradientError('U'), or use lp.expect",
        )
    error_name = f"error of value ({method.description})"
    found = xr.Dataset(
        {
            "value": ("length", values.value, {"long_name": quantity.name}),
            "error": ("length", values.error, {"long_name": error_name}),
            "local_slope": ("length", local_slope(wanted, values)),
        },
        {"length": ("length", wanted, {"long_name": "prompt length L"})},
        attributes(head, mu, nu, method, quantity=quantity.label),
    )
    bounds = explicit_bound(head, mu, nu, wanted, quantity.label)
    if bounds is not None:
        found["upper_bound"] = ("length", bounds.upper, {"long_name": "proved upper bound"})
    if bounds is not None and bounds.lower is not None:
        found["lower_bound"] = ("length", bounds.lower, {"long_name": "proved lower bound"})
    return found


def local_slope(lengths: np.ndarray, values: Values) -> np.ndarray:
    """d ln value / d ln L: the derivative where known, otherwise differences of neighbours."""
    finite = np.isfinite(lengths) & (values.value > 0)
    slope = np.full(len(lengths), np.nan)
    if values.slope is not None:
        slope[finite] = lengths[finite] * values.slope[finite] / values.value[finite]
    elif finite.sum() > 1:
        each, which, times = np.unique(lengths[finite], return_inverse=True, return_counts=True)
        if len(each) > 1:  # values at equal lengths are averaged
            value = np.bincount(which, values.value[finite]) / times
            slope[finite] = np.gradient(np.log(value), np.log(each))[which]
    return slope
