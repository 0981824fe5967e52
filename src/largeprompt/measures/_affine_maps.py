"""Affine images of points and of covariance matrices."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def moved(
    points: Float[Array, "*n d"], A: Float[Array, "k d"], b: Float[Array, " k"]
) -> Float[Array, "*n k"]:
    """A x + b for every point x."""
    return jnp.matmul(points, A.T, precision="highest") + b


def sandwich(A: Float[Array, "k d"], cov: Float[Array, "d d"]) -> Float[Array, "k k"]:
    """A cov A', symmetric to the last bit."""
    image = jnp.matmul(jnp.matmul(A, cov, precision="highest"), A.T, precision="highest")
    return (image + image.T) / 2
