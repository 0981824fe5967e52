"""The prediction of one head on one prompt, with its derivatives, from their exact law: two normals a token, or none.

In the coordinates of `oracles.py` tokens are standard normal in R^D. Along the orthonormal directions of the scores (a / |a|) and of
the rest of the read-out (c minus its part along a) a token has independent standard normal coordinates g_i and e_i, and

    score  |a| g_i,       value  <c, zeta_i> = alpha g_i + beta e_i.

Every other coordinate of a token is independent of all p_i and values: given (g, e) the sums over tokens of p_i zeta_i and of
p_i t_i zeta_i, t_i = <c, zeta_i> - f, are jointly Gaussian there with covariance [[sum p^2, sum p^2 t], [., sum p^2 t^2]] times the
identity: two normal vectors a prompt replace D - 2 normals a token.

g and e of one token come from one block of JAX's threefry generator by Box and Muller's transform. (Given g alone the sum of p_i e_i^2
is a sum of chi-squares with L different weights: no law that fewer than L numbers sample.)

Linear attention needs the columns W a and W c of a Wishart matrix W of L degrees of freedom: Bartlett's decomposition gives them from
two chi-squares and two normal vectors, whatever L.
"""

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, Key

Response = tuple[Array, Array, Array]  # f, df/da, df/dc


def reduced_softmax(
    key: Key[Array, ""], a: Float[Array, " D"], c: Float[Array, " D"], L: int
) -> Response:
    """One draw of (f, df/da, df/dc) for softmax attention over L standard normal tokens."""
    sigma, along, alpha, beta, across = _frame(a, c)
    for_tokens, for_rest = jax.random.split(key)
    g, e = normal_pairs(for_tokens, L)
    terms = jnp.exp(sigma * (g - jnp.max(g)))
    p = terms / jnp.sum(terms)
    mean_g, mean_e = p @ g, p @ e
    t = alpha * (g - mean_g) + beta * (e - mean_e)
    weighted, squares = p * t, p * p
    rest = _outside(jax.random.normal(for_rest, (2, len(a)), a.dtype), along, across)
    spread, slope = jnp.sqrt(jnp.sum(squares)), jnp.sum(squares * t)
    slope = slope / spread
    left = jnp.sqrt(jnp.maximum(jnp.sum(weighted * weighted) - slope**2, 0.0))
    by_c = mean_g * along + mean_e * across + spread * rest[0]
    by_a = weighted @ g * along + weighted @ e * across + slope * rest[0] + left * rest[1]
    return alpha * mean_g + beta * mean_e, by_a, by_c


def reduced_linear(
    key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"], L: int
) -> Response:
    """Draws of (f, df/da, df/dc) for linear attention, one for each row of a and c."""
    n, D = a.shape
    for_first, for_second, for_rest = jax.random.split(key, 3)
    first = _chi_squares(for_first, L, n, a.dtype)
    second = _chi_squares(for_second, L - 1, n, a.dtype)
    normals = jax.random.normal(for_rest, (n, 2 * D + 1), a.dtype)

    def one(a: Array, c: Array, gg: Array, free: Array, normals: Array) -> Response:
        sigma, along, alpha, beta, across = _frame(a, c)
        rest = _outside(normals[1:].reshape(2, D), along, across)
        # columns of W in the frame: sum g_i zeta_i and sum e_i zeta_i
        by_g = gg * along + jnp.sqrt(gg) * (normals[0] * across + rest[0])
        ge, ee = jnp.sqrt(gg) * normals[0], normals[0] ** 2 + free
        by_e = ge * along + ee * across + normals[0] * rest[0] + jnp.sqrt(free) * rest[1]
        W_a, W_c = sigma * by_g / L, (alpha * by_g + beta * by_e) / L
        return sigma * (alpha * gg + beta * ge) / L, W_c, W_a

    return jax.vmap(one)(a, c, first, second, normals)


def _frame(a: Float[Array, " D"], c: Float[Array, " D"]) -> tuple[Array, ...]:
    """(|a|, a / |a|, alpha, beta, unit vector across): c = alpha along + beta across; a direction that vanishes is 0."""
    sigma, along = _unit(a)
    alpha = along @ c
    beta, across = _unit(c - alpha * along)
    return sigma, along, alpha, beta, across


def _unit(vector: Float[Array, " D"]) -> tuple[Float[Array, ""], Float[Array, " D"]]:
    length = jnp.sqrt(jnp.sum(vector**2))
    return length, vector / jnp.where(length > 0, length, 1.0)


def _outside(normals: Array, along: Array, across: Array) -> Array:
    """The rows projected on the complement of both directions."""
    normals = normals - jnp.outer(normals @ along, along)
    return normals - jnp.outer(normals @ across, across)


def _chi_squares(key: Key[Array, ""], freedom: int, n: int, dtype: jnp.dtype) -> Float[Array, " n"]:
    if freedom == 0:
        return jnp.zeros(n, dtype)
    return 2 * jax.random.gamma(key, freedom / 2, (n,), dtype)


def normal_pairs(key: Key[Array, ""], n: int) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Two independent vectors of n float32 standard normals: R cos, R sin with R^2/2 exponential and a uniform angle.

    One block of the generator a pair; `jax.random.normal` would use two, and two inverse error functions.
    """
    data = jax.random.key_data(key)
    counter = jax.lax.iota(jnp.uint32, n)
    high, low = (jnp.broadcast_to(data[i], (n,)) for i in (0, 1))
    first, second = threefry2x32_p.bind(high, low, jnp.zeros_like(counter), counter)
    radius = jnp.sqrt(-2 * jnp.log(_open_unit(first)))
    # 23 bits turn the half circle, one more bit chooses the half
    sine, cosine = _sin_cos_pi(_open_unit(second) - 0.5)
    flip = jnp.where(second & 1 == 1, radius, -radius)
    return flip * cosine, radius * sine


def _open_unit(bits: Array) -> Float[Array, " n"]:
    """The midpoints of 2^23 equal parts of (0, 1): 23 bits as the fraction of a float in [1, 2), less 1 - 2^-24."""
    between_1_and_2 = jax.lax.bitcast_convert_type(bits >> 9 | 0x3F800000, jnp.float32)
    return between_1_and_2 - (1 - 2.0**-24)


def _sin_cos_pi(x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """sin(pi x) and cos(pi x) for |x| <= 1/2 by their Taylor series: an error below 1e-7, and no range reduction."""
    y = x * x
    sine = cosine = jnp.zeros_like(x)
    for k in reversed(range(7)):
        sine = sine * y + _SERIES[2 * k + 1]
        cosine = cosine * y + _SERIES[2 * k]
    return x * sine, cosine


def _series(terms: int) -> list[float]:
    """Coefficients (-1)^(k // 2) pi^k / k!."""
    found, value = [], 1.0
    for k in range(terms):
        found.append(value * (-1) ** (k // 2))
        value *= jnp.pi / (k + 1)
    return found


_SERIES = _series(14)
