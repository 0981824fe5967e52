"""Predictions of one head and their derivatives, drawn from their exact law without tokens.

In the coordinates of `gradient_estimators.py` tokens are standard normal in R^D. Along the
orthonormal directions of the scores (a / |a|) and of the rest of the read-out (c minus its part
along a) a token has independent standard normal coordinates g_i and e_i, and

    score  |a| g_i,       value  <c, zeta_i> = alpha g_i + beta e_i.

Every other coordinate of a token is independent of all p_i and values. Given (g, e) the sums over
tokens of p_i zeta_i and of p_i t_i zeta_i, t_i = <c, zeta_i> - f, are jointly Gaussian there with
covariance [[sum p^2, sum p^2 t], [., sum p^2 t^2]] times the identity: two normal vectors a prompt
replace D - 2 normals a token.

(Given g alone the sum of p_i e_i^2 is a sum of chi-squares with L different weights, and we know no
way to sample it with fewer than L numbers. So two normals a token remain, from one block of the
generator, see prompts/normals.py.)

Linear attention needs the columns W a and W c of a Wishart matrix W of L degrees of freedom.
Bartlett's decomposition gives them from two chi-squares and two normal vectors, whatever L.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Key

from .._typing import Array
from ..prompts.sampling import frame_moments

Response = tuple[Array, Array, Array]  # f, df/da, df/dc


class Frame(NamedTuple):
    """The plane of a and c: a = sigma along, c = alpha along + beta across; 0 for no direction."""

    sigma: Array
    along: Float[Array, "*n D"]
    alpha: Array
    beta: Array
    across: Float[Array, "*n D"]


def frame(a: Float[Array, " D"], c: Float[Array, " D"]) -> Frame:
    """The frame of one prompt."""
    sigma, along = _unit(a)
    alpha = jnp.sum(along * c)
    beta, across = _unit(c - alpha * along)
    return Frame(sigma, along, alpha, beta, across)


def softmax_response(
    first: Float[Array, " 5"],
    second: Float[Array, " 3"],
    rest_0: Float[Array, " D"],
    rest_1: Float[Array, " D"],
    plane: Frame,
    value: tuple[Array, Array, Array],
) -> Response:
    """(f, df/da, df/dc) for softmax attention, from weighted sums over (g, e) and normals.

    `value` is (alpha, beta) in polar form, as used by the sums.
    """
    found = frame_moments(first, second, *value)
    along, across = plane.along, plane.across
    rest = [_outside(normals, along, across) for normals in (rest_0, rest_1)]
    by_c = found.mean_g * along + found.mean_e * across + found.weight_norm * rest[0]
    by_a = found.cov_g * along + found.cov_e * across + found.slope * rest[0] + found.left * rest[1]
    return plane.alpha * found.mean_g + plane.beta * found.mean_e, by_a, by_c


def linear_response(
    key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"], L: Float[Array, ""]
) -> Response:
    """Draws of (f, df/da, df/dc) for linear attention, one for each row of a and c."""
    n, D = a.shape
    for_first, for_second, for_rest = jax.random.split(key, 3)
    first = _chi_squares(for_first, L, n, a.dtype)
    second = _chi_squares(for_second, L - 1, n, a.dtype)
    normals = jax.random.normal(for_rest, (n, 2 * D + 1), a.dtype)

    def one(a: Array, c: Array, gg: Array, free: Array, normals: Array) -> Response:
        sigma, along, alpha, beta, across = frame(a, c)
        rest = [_outside(part, along, across) for part in (normals[1 : D + 1], normals[D + 1 :])]
        # columns of W in the frame: sum g_i zeta_i and sum e_i zeta_i
        by_g = gg * along + jnp.sqrt(gg) * (normals[0] * across + rest[0])
        ge, ee = jnp.sqrt(gg) * normals[0], normals[0] ** 2 + free
        by_e = ge * along + ee * across + normals[0] * rest[0] + jnp.sqrt(free) * rest[1]
        W_a, W_c = sigma * by_g / L, (alpha * by_g + beta * by_e) / L
        return sigma * (alpha * gg + beta * ge) / L, W_c, W_a

    return jax.vmap(one)(a, c, first, second, normals)


def _unit(vector: Float[Array, " D"]) -> tuple[Float[Array, ""], Float[Array, " D"]]:
    length = jnp.sqrt(jnp.sum(vector**2))
    return length, vector / jnp.where(length > 0, length, 1.0)


def _outside(normals: Array, along: Array, across: Array) -> Array:
    """The projection on the complement of both directions."""
    normals = normals - jnp.sum(normals * along) * along
    return normals - jnp.sum(normals * across) * across


def _chi_squares(
    key: Key[Array, ""], freedom: Float[Array, ""], n: int, dtype: jnp.dtype
) -> Float[Array, " n"]:
    """Zero for no degree of freedom."""
    some = jnp.maximum(freedom, 1.0).astype(dtype)
    return jnp.where(freedom > 0, 2 * jax.random.gamma(key, some / 2, (n,), dtype), 0.0)
