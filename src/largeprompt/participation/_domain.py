"""Check (sigma, L), and apply kernels to the checked arguments."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _checks
from .._arrays import Values
from .._float64 import is_traced, require_x64
from .._lengths import length_array
from .._typing import Array, ArrayInput
from ._elementwise import Kernel, elementwise, evaluate

WIDEST = 1e8  # beyond, the nodes of the Laplace rule overflow
# beyond this sigma, with fewer tokens than this, the nodes of the Laplace rule do not suffice
RESOLVED, SHORT = 40.0, 100.0


def checked_deviation(name: str, sigma: ArrayInput, power: int = 1) -> Array | np.ndarray:
    """Validate score deviations, from 0 to WIDEST, or their powers, and cast them to float64."""
    rule = f"sigma must be finite and >= 0, and at most {WIDEST:g}"
    fix = "pass the standard deviation sqrt(u' G u) of the scores"
    argument = "sigma" if power == 1 else f"sigma^{power}"
    return checked_range(name, argument, sigma, 0.0, WIDEST**power, rule, fix)


def checked_range(
    name: str, argument: str, value: ArrayInput, low: float, high: float, rule: str, fix: str
) -> Array | np.ndarray:
    """Validate numbers from `low` to `high` and cast them to float64; `name` is the function."""
    if is_traced(value):
        require_x64(name)
        array, received = jnp.asarray(value, jnp.float64), "a value outside that range"
    else:
        array, received = _checks.known(argument, value), ""
    good = (array >= low) & (array <= high)
    if not isinstance(good, Tracer) and not np.all(good):
        received = f"{np.asarray(array)[~np.asarray(good)].flat[0]:.10g}"
    return _checks.require(array, ~good, rule=rule, received=received, fix=fix)


def checked(
    name: str, sigma: ArrayInput, L: ArrayInput, power: int = 1
) -> tuple[Array | np.ndarray, Array | np.ndarray]:
    """Validate (sigma, L) and cast them to float64: now if known, at run time if traced.

    With `power` = 2 for variances in place of deviations.
    """
    results = [checked_deviation(name, sigma, power), length_array(L, name)]
    try:
        np.broadcast_shapes(*(a.shape for a in results))
    except ValueError as error:
        raise _checks.error(
            "sigma and L must broadcast",
            f"shapes {results[0].shape} and {results[1].shape}",
            "add axes, for example sigma[:, None] against L[None, :]",
        ) from error
    deviation, length = results
    unresolved = (deviation > RESOLVED**power) & (length < SHORT)
    deviation = _checks.require(
        deviation,
        unresolved,
        rule=f"sigma must be at most {RESOLVED:g} for prompts of fewer than {SHORT:g} tokens",
        received="a larger sigma with a shorter prompt",
        fix="scale the head down, or sample: one token takes nearly all the weight there",
    )
    return deviation, length


def apply(
    name: str, kernel: Kernel, sigma: ArrayInput, L: ArrayInput, *more: ArrayInput
) -> tuple[Array, ...]:
    """Apply a kernel of (sigma^2, L, ...) to broadcast arguments, concrete or traced."""
    sigma, L = checked(name, sigma, L)
    return _apply(name, kernel, sigma**2, L, *more)


def apply_at(
    name: str, kernel: Kernel, variance: ArrayInput, L: ArrayInput, *more: ArrayInput
) -> tuple[Array, ...]:
    """The same for given variances sigma^2."""
    return _apply(name, kernel, *checked(name, variance, L, 2), *more)


def _apply(name: str, kernel: Kernel, *args: ArrayInput) -> tuple[Values, ...]:
    if not is_traced(*args):
        return evaluate(kernel, *args)
    require_x64(name)
    arrays = jnp.broadcast_arrays(*(jnp.asarray(a, jnp.float64) for a in args))
    return elementwise(kernel)(*arrays)
