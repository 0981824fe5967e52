"""Standard normals addressed by (key, stream, counter): threefry and the Box-Muller transform.

`jax.random` on the CPU passes every four rounds of the generator through memory, spends two blocks
on two numbers, and inverts the error function of each. Here one block gives two normals in one
elementwise expression: two to ten times faster where random numbers are most of the cost, and it
compiles into the registers of a GPU kernel. Streams of one key are independent, and a number
depends on its address alone: not on how many are drawn, in which blocks, or on which device.

float32: the radius has 32 random bits and so reaches 6.8 (beyond it a normal has probability
1e-11), the angle 24. float64: 52 bits each, from two blocks; the leading bits are those of float32,
so both precisions draw the same prompts.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Key, UInt32

from .._typing import Array

Words = UInt32[Array, " 2"] | tuple[Array, Array]

_OTHER_HALF = 0x9E3779B9  # turns a key into that of the second block of a float64


def words(key: Key[Array, ""]) -> UInt32[Array, " 2"]:
    """A key as the two words threefry takes."""
    data = jax.random.key_data(key)
    return data if data.shape == (2,) else jax.random.bits(key, (2,), jnp.uint32)


def threefry(
    key: Words, stream: Array | int, counter: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry 2x32 with 20 rounds (Salmon et al. 2011) of the blocks (stream, counter), broadcast.

    Bit for bit the generator of JAX.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x = jnp.asarray(stream, jnp.uint32) + schedule[0]
    y = counter + schedule[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = x ^ (y << turn | y >> (32 - turn))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def normal_pairs(
    key: Words, stream: Array | int, counter: UInt32[Array, "..."], dtype: Any = jnp.float32
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Two independent standard normals for every counter: R cos, R sin with R^2/2 exponential and a
    uniform angle.
    """
    first, second = threefry(key, stream, counter)
    if dtype == jnp.float32:
        unit, turn = _unit_of_32_bits(first), _unit_of_23_bits(second)
    else:
        more = threefry((key[0], key[1] ^ jnp.uint32(_OTHER_HALF)), stream, counter)
        unit, turn = _unit_of_52_bits(first, more[0]), _unit_of_52_bits(second, more[1])
    radius = jnp.sqrt(-2 * jnp.log(unit))
    # the leading bits turn the half circle, the last one chooses the half
    sine, cosine = sin_cos_pi(turn - 0.5)
    return jnp.where(second & 1 == 1, radius, -radius) * cosine, radius * sine


def counters(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """0, 1, 2, ... in an array of that shape."""
    return jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)


def _unit_of_23_bits(bits: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    """The midpoints of 2^23 equal parts of (0, 1): 23 bits as the fraction of a float in [1, 2),
    less 1 - 2^-24.
    """
    between_1_and_2 = jax.lax.bitcast_convert_type(bits >> 9 | 0x3F800000, jnp.float32)
    return between_1_and_2 - (1 - 2.0**-24)


def _unit_of_32_bits(bits: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    """The midpoints of 2^32 equal parts of (0, 1), rounded: small ones, which make large normals,
    keep all their digits.
    """
    high, low = (part.astype(jnp.int32).astype(jnp.float32) for part in (bits >> 8, bits & 0xFF))
    return high * 2.0**-24 + (low * 2.0**-32 + 2.0**-33)


def _unit_of_52_bits(high: UInt32[Array, "*n"], low: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    bits = high.astype(jnp.uint64) << 20 | (low >> 12).astype(jnp.uint64)
    between_1_and_2 = jax.lax.bitcast_convert_type(bits | (0x3FF << 52), jnp.float64)
    return between_1_and_2 - (1 - 2.0**-53)


def sin_cos_pi(x: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """sin(pi x) and cos(pi x) for |x| <= 1/2 by their Taylor series, to the precision of x, without
    range reduction.
    """
    y = x * x
    sine = cosine = jnp.zeros_like(x)
    for k in reversed(range(7 if x.dtype == jnp.float32 else 12)):
        sine = sine * y + _taylor(2 * k + 1)
        cosine = cosine * y + _taylor(2 * k)
    return x * sine, cosine


def _taylor(k: int) -> float:
    return (-1) ** (k // 2) * math.pi**k / math.factorial(k)
