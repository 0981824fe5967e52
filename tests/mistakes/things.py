"""What mistakes are made with."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import largeprompt as lp

EYE = np.eye(2)
KEY = jax.random.key(0)
HEAD = lp.Head(U=EYE, V=EYE)
GAUSSIAN = lp.Gaussian(np.zeros(2), EYE)
PROMPT = lp.Empirical(EYE)
TASK = lp.LinearRegression(EYE)
START = lp.BlockParams(0.3 * EYE, 0.3)


def in_32_bits(call):
    """The call where JAX is in its default mode."""
    with jax.enable_x64(False):
        return call()


class Tensor:
    """What NumPy meets in a tensor of PyTorch with a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


class Exponential(lp.AbstractAutodiffMeasure):
    """The standard exponential law: psi(u) = -log(1 - u) for u < 1."""

    dim: int = eqx.field(static=True, default=1)

    def log_mgf(self, u):
        return -jnp.sum(jnp.log1p(-jnp.asarray(u)))

    def sample(self, key, n):
        return lp.Empirical(jax.random.exponential(key, (n, self.dim)))


class Declared(Exponential):
    """The same law with its domain."""

    def in_domain(self, u):
        return jnp.all(jnp.asarray(u) < 1)
