"""Averages over sampled prompts: one quantity of one prompt as a function of its key."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Key

from .._typing import Array
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from .quantities import AbstractQuantity
from .sampling import sample_outputs


class Replicate(eqx.Module):
    """A quantity of one random prompt of `length` tokens, at a query or at a random query."""

    quantity: AbstractQuantity
    head: AbstractHead
    mu: AbstractMeasure
    z: Float[Array, " d"] | AbstractMeasure
    length: int = eqx.field(static=True)
    whole_tokens: bool = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""]) -> Array:
        quantity, head, mu, z = self.quantity, self.head, self.mu, self.z
        if isinstance(z, AbstractMeasure):
            for_query, key = jax.random.split(key)
            z = z.sample(for_query, 1).points[0]
        normal = None if self.whole_tokens else mu.as_gaussian()
        if quantity.from_output and normal is not None:
            output = sample_outputs(key, quantity.reader(head), normal, z, self.length, 1)[0]
            return quantity.of_output(head, mu, output, z)
        return quantity.of_prompt(head, mu, mu.sample(key, self.length), z)


class LimitAt(eqx.Module):
    """A quantity of the infinite prompt at a random query."""

    quantity: AbstractQuantity
    head: AbstractHead
    mu: AbstractMeasure
    nu: AbstractMeasure

    def __call__(self, key: Key[Array, ""]) -> Array:
        z = self.nu.sample(key, 1).points[0]
        return jnp.asarray(self.quantity.limit(self.head, self.mu, z))
