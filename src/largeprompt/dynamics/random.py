"""Standard normals for loops of descent: the threefry generator written out, and Box and Muller's transform.

`jax.random` on the CPU passes every four rounds of the generator through memory, spends two blocks of it on two numbers, and inverts
the error function of each. Here a block gives two normals, and all of it is one elementwise expression: two to ten times faster, where
random numbers are most of the cost. A draw is named by (key, stream, counter); streams of one key are independent.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32


def words(key: Key[Array, ""]) -> UInt32[Array, " 2"]:
    """A key as the two words threefry takes."""
    data = jax.random.key_data(key)
    return data if data.shape == (2,) else jax.random.bits(key, (2,), jnp.uint32)


def threefry(
    key: UInt32[Array, " 2"], stream: Array | int, counter: UInt32[Array, "*n"]
) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """Threefry 2x32 with 20 rounds (Salmon et al. 2011) of the blocks (stream, counter): JAX's generator, bit for bit."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x = jnp.broadcast_to(jnp.asarray(stream, jnp.uint32) + schedule[0], counter.shape)
    y = counter + schedule[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = x ^ (y << turn | y >> (32 - turn))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def normal_pairs(
    key: UInt32[Array, " 2"], stream: Array | int, shape: tuple[int, ...]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Two independent arrays of float32 standard normals: R cos, R sin with R^2/2 exponential and a uniform angle."""
    counter = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    first, second = threefry(key, stream, counter)
    radius = jnp.sqrt(-2 * jnp.log(_open_unit(first)))
    # 23 bits turn the half circle, one more bit chooses the half
    sine, cosine = sin_cos_pi(_open_unit(second) - 0.5)
    flip = jnp.where(second & 1 == 1, radius, -radius)
    return flip * cosine, radius * sine


def _open_unit(bits: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    """The midpoints of 2^23 equal parts of (0, 1): 23 bits as the fraction of a float in [1, 2), less 1 - 2^-24."""
    between_1_and_2 = jax.lax.bitcast_convert_type(bits >> 9 | 0x3F800000, jnp.float32)
    return between_1_and_2 - (1 - 2.0**-24)


def sin_cos_pi(x: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """sin(pi x) and cos(pi x) for |x| <= 1/2 by their Taylor series: an error below 1e-7, and no range reduction."""
    y = x * x
    sine = cosine = jnp.zeros_like(x)
    for k in reversed(range(7)):
        sine = sine * y + _taylor(2 * k + 1)
        cosine = cosine * y + _taylor(2 * k)
    return x * sine, cosine


def _taylor(k: int) -> float:
    return (-1) ** (k // 2) * math.pi**k / math.factorial(k)
