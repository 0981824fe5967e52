"""Checks that a tilt lies in the domain of psi, where E e^{<u, x>} is finite.

Outside it `log_mgf` is +inf, with NaN derivatives of every order, and `tilted_mean`, `tilted_cov`
and `tilt` raise. A class only overrides `in_domain`; its other methods are wrapped when the class
is created.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float

from .. import _checks
from .._typing import Array


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _beyond(value: float, inside: Bool[Array, ""], u: Float[Array, " d"]) -> Float[Array, ""]:
    """0 inside, `value` outside; every derivative in u is 0 inside and NaN outside."""
    return jnp.where(inside, 0.0, value).astype(u.dtype)


@_beyond.defjvp
def _beyond_jvp(value: float, primals: tuple, tangents: tuple) -> tuple:
    slope = _beyond(float("nan"), *primals)
    return _beyond(value, *primals), slope * jnp.sum(tangents[1])


def require_domain(measure: Any, name: str, tilts: Float[Array, "*batch d"], value: Any) -> Any:
    """Return `value`, or raise if a row of `tilts` lies outside the domain of `measure`."""
    if measure.finite_everywhere:
        return value
    inside = jax.vmap(measure.in_domain)(tilts.reshape(-1, tilts.shape[-1]))
    known = not isinstance(inside, Tracer)
    received = f"{name} outside it"
    if known and not np.all(inside) and not isinstance(tilts, Tracer):
        rows = np.asarray(tilts).reshape(-1, tilts.shape[-1])
        received = f"{name} = {rows[np.argmin(inside)].tolist()}"
    return _checks.require(
        value,
        ~np.asarray(inside) if known else ~inside,
        rule=f"{name} must lie in the domain of this {type(measure).__name__} measure, "
        "where E e^<u, x> is finite",
        received=received,
        fix="scale U or z down; no tilted law exists there, and log_mgf is inf",
    )


def require_finite(measure: Any, psi: Float[Array, ""], value: Any) -> Any:
    """Return `value`, derived from psi = log_mgf(u), or raise if psi is NaN or infinite."""
    known = not isinstance(psi, Tracer)
    return _checks.require(
        value,
        ~np.isfinite(np.asarray(psi)) if known else ~jnp.isfinite(psi),
        rule="log_mgf must be finite where a measure is tilted",
        received=f"log_mgf(u) = {float(psi)}" if known else "a u where it is NaN or infinite",
        fix=f"give {type(measure).__name__} a method in_domain(self, u), true where "
        "E e^<u, x> is finite, and stay inside",
    )


def guard(cls: type, name: str, wrap: Callable[[Callable], Callable]) -> None:
    """Wrap the method `name` of `cls`, once; an abstract method is left alone."""
    method = getattr(cls, name)
    applied = getattr(method, "guards", ())
    if wrap not in applied and not getattr(method, "__isabstractmethod__", False):
        guarded = wraps(method)(wrap(method))
        guarded.guards = (*applied, wrap)  # pyright: ignore[reportAttributeAccessIssue]
        setattr(cls, name, guarded)


def on_vectors(method: Callable) -> Callable:
    """A method of a measure whose vector u is validated before the call."""
    return lambda self, u: method(self, self._vector(u))


def as_array(method: Callable) -> Callable:
    """An `in_domain` that returns an array."""
    return lambda self, u: jnp.asarray(method(self, u))


def infinite_outside(method: Callable) -> Callable:
    """A `log_mgf` that is +inf outside the domain."""

    def log_mgf(self: Any, u: Any) -> Float[Array, ""]:
        if self.finite_everywhere:
            return method(self, u)
        u = self._vector(u)
        inside = self.in_domain(u)
        # evaluated at 0 outside: the formula may be NaN there, which would spoil gradients inside
        return method(self, jnp.where(inside, u, 0.0)) + _beyond(float("inf"), inside, u)

    return log_mgf


def raises_outside(method: Callable) -> Callable:
    """A `tilted_mean`, `tilted_cov` or `tilt` that raises outside the domain."""

    def tilted(self: Any, u: Any) -> Any:
        if self.finite_everywhere:
            return method(self, u)
        u = self._vector(u)
        return method(self, require_domain(self, "u", u, u))

    return tilted


def never_nan(method: Callable) -> Callable:
    """A `log_mgf` that raises where it is NaN (stays NaN under tracing).

    Where it is not finite, its derivatives are NaN.
    """

    def log_mgf(self: Any, u: Any) -> Float[Array, ""]:
        u = self._vector(u)
        psi = method(self, u)
        if not isinstance(psi, Tracer) and np.isnan(psi):
            require_finite(self, psi, psi)
        return psi + _beyond(0.0, jnp.isfinite(psi), u).astype(psi.dtype)

    return log_mgf
