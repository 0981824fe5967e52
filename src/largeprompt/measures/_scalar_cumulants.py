"""One-dimensional cumulant functions and their derivatives, with full relative accuracy.

No digits cancel near 0 and nothing overflows at large arguments. The derivatives log_cosh -> tanh
-> sech_squared and log_sinhc -> langevin -> langevin_slope are custom JAX rules, so that autodiff
is as accurate as the closed form.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._typing import Array

_SWITCH = 1.5  # |x| below which the positive power series are summed
_TERMS = 14  # enough for rounding accuracy at |x| = _SWITCH


def _series(coefficients: list[float], x_squared: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.polyval(jnp.asarray(coefficients[::-1], x_squared.dtype), x_squared)


# All terms are positive in sinh(x)/x = sum S_k x^2k, x cosh x - sinh x = x^3 sum N_k x^2k and
# sinh(x)^2 - x^2 = x^4 sum C_k x^2k.
_SINHC = [1 / math.factorial(2 * k + 1) for k in range(_TERMS)]
_LANGEVIN = [2 * (k + 1) / math.factorial(2 * k + 3) for k in range(_TERMS)]
_SLOPE = [2 ** (2 * k + 3) / math.factorial(2 * k + 4) for k in range(_TERMS)]


def _split(x: Float[Array, "..."]) -> tuple[Array, Array, Array]:
    """Whether x is small, x replaced by 0 elsewhere, and |x| replaced by the switch if small."""
    small = jnp.abs(x) < _SWITCH
    return small, jnp.where(small, x, 0.0), jnp.where(small, _SWITCH, jnp.abs(x))


def sech_squared(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 / cosh(x)^2, without overflow."""
    decay = jnp.exp(-2 * jnp.abs(x))
    return 4 * decay / (1 + decay) ** 2


@jax.custom_jvp
def log_cosh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The function log cosh x, the cumulant function of a random sign."""
    small, near, far = _split(x)
    # log1p(2 sinh(x/2)^2) near 0, |x| - log 2 + log1p(e^{-2|x|}) elsewhere
    return jnp.where(
        small,
        jnp.log1p(2 * jnp.sinh(near / 2) ** 2),
        far - math.log(2) + jnp.log1p(jnp.exp(-2 * far)),
    )


@jax.custom_jvp
def tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The function tanh x with derivative sech^2 instead of 1 - tanh^2, which cancels."""
    return jnp.tanh(x)


@jax.custom_jvp
def log_sinhc(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(sinh(x) / x), the cumulant function of the uniform law on [-1, 1]."""
    small, near, far = _split(x)
    excess = near**2 * _series(_SINHC[1:], near**2)
    return jnp.where(
        small, jnp.log1p(excess), far - jnp.log(2 * far) + jnp.log1p(-jnp.exp(-2 * far))
    )


@jax.custom_jvp
def langevin(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The Langevin function coth x - 1/x, the derivative of `log_sinhc`."""
    small, near, far = _split(x)
    decay = jnp.exp(-2 * far)
    far_value = jnp.sign(x) * ((1 + decay) / (1 - decay) - 1 / far)
    return jnp.where(
        small, near * _series(_LANGEVIN, near**2) / _series(_SINHC, near**2), far_value
    )


def langevin_slope(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1/x^2 - 1/sinh(x)^2, the derivative of `langevin`."""
    small, near, far = _split(x)
    decay = jnp.exp(-2 * far)
    far_value = 1 / far**2 - 4 * decay / (1 - decay) ** 2
    return jnp.where(small, _series(_SLOPE, near**2) / _series(_SINHC, near**2) ** 2, far_value)


log_cosh.defjvps(lambda tangent, _, x: tangent * tanh(x))
tanh.defjvps(lambda tangent, _, x: tangent * sech_squared(x))
log_sinhc.defjvps(lambda tangent, _, x: tangent * langevin(x))
langevin.defjvps(lambda tangent, _, x: tangent * langevin_slope(x))


def log_mean_exp(log_weights: Float[Array, " n"], values: Float[Array, " n"]) -> Float[Array, ""]:
    """The number log sum_i w_i e^{v_i} for weights that sum to one.

    Its relative accuracy does not suffer when every v_i is tiny.
    """
    present = log_weights > -jnp.inf
    small = jnp.max(jnp.where(present, jnp.abs(values), 0.0)) < 1
    near = jnp.where(small & present, values, 0.0)
    return jnp.where(
        small,
        jnp.log1p(jnp.sum(jnp.exp(log_weights) * jnp.expm1(near))),
        jax.nn.logsumexp(log_weights + values),
    )


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def increment(
    psi: Callable[[Array], Array],
    gradient: Callable[[Array], Array],
    start: Float[Array, " d"],
    step: Float[Array, " d"],
    radius: Float[Array, ""] | float = 1.0,
) -> Float[Array, ""]:
    """psi(start + step) - psi(start), accurate for a small step where psi is large.

    For radius * |step| <= 1 it integrates <gradient, step> along the segment with 16 Gauss-Legendre
    nodes, which is exact to rounding for cumulant functions analytic in a strip of width
    > 1/radius; otherwise it takes the difference. Derivatives are those of the difference: they are
    accurate and compile faster.
    """
    difference = psi(start + step) - psi(start)
    start, step, radius, plain = jax.lax.stop_gradient((start, step, radius, difference))
    short = radius * jnp.linalg.norm(step) <= 1
    near = jnp.where(short, step, 0.0)
    nodes = jnp.asarray((_NODES + 1) / 2, step.dtype)
    weights = jnp.asarray(_WEIGHTS / 2, step.dtype)
    slopes = jax.vmap(lambda node: gradient(start + node * near) @ near)(nodes)
    precise = jnp.where(short, weights @ jax.lax.stop_gradient(slopes), plain)
    return difference + (precise - plain)
