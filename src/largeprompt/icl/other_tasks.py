"""A task whose infinite-prompt output is closed form and not linear."""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from .. import _checks
from .._linalg import psd_sqrt
from .._typing import ArrayInput
from ..measures import AbstractMeasure, Gaussian
from .task import AbstractTask


@final
class ProductRegression(AbstractTask):
    """Linear regression with inputs of any law, for example `Rademacher` or `Uniform`.

    w ~ N(0, S_w), y = w'x + noise, tokens (x, y). A token is an affine image of x plus noise in the
    last coordinate, so attention to the infinite prompt is in closed form: tanh of the scores for
    signs, not a linear map. Gaussian inputs are `LinearRegression`, whose risk is exact.

    **Arguments:** `inputs`, the law of x; `task_cov` = S_w (identity if None); `noise_variance`.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.ProductRegression(lp.Rademacher(2), noise_variance=0.1)
    >>> params = lp.BlockParams(jnp.eye(2), 1.0)
    >>> found = task.risk(params, jnp.inf, method=lp.MonteCarlo(jax.random.key(0)))
    >>> bool(found.error < 0.02 * found.value)
    True
    """

    law: AbstractMeasure
    task_cov: Float[Array, "d d"]
    noise_variance: Float[Array, ""]

    def __init__(
        self,
        inputs: AbstractMeasure,
        task_cov: ArrayInput | None = None,
        noise_variance: ArrayInput = 0.0,
    ):
        if not isinstance(inputs, AbstractMeasure):
            raise _checks.error(
                "inputs must be a measure",
                type(inputs).__name__,
                "pass for example lp.Rademacher(d)",
            )
        self.law = inputs
        d = inputs.dim
        cov = _checks.covariance("task_cov", np.eye(d) if task_cov is None else task_cov)
        self.task_cov = _checks.shaped("task_cov", cov, (d, d)).astype(inputs.dtype)
        noise = _checks.number("noise_variance", noise_variance, "pass a variance", least=0.0)
        self.noise_variance = jnp.asarray(noise, inputs.dtype)

    @property
    def dim(self) -> int:
        """The dimension d + 1 of a token."""
        return self.law.dim + 1

    def sample_w(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        """w ~ N(0, S_w)."""
        return psd_sqrt(self.task_cov) @ jax.random.normal(key, (self.law.dim,), self.law.dtype)

    def tokens(self, w: Float[Array, " d"]) -> AbstractMeasure:
        """The law of (x, w'x + noise)."""
        d = self.law.dim
        image = self.law.affine(jnp.concatenate([jnp.eye(d, dtype=w.dtype), w[None]]))
        cov = jnp.zeros((d + 1, d + 1), w.dtype).at[d, d].set(self.noise_variance)
        return image + Gaussian(jnp.zeros(d + 1, w.dtype), cov, check=False)

    def sample_query(
        self, key: Key[Array, ""], w: Float[Array, " d"]
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """(x_q, 0) and w'x_q + noise."""
        for_input, for_noise = jax.random.split(key)
        x = self.law.sample(for_input, 1).points[0]
        noise = jnp.sqrt(self.noise_variance) * jax.random.normal(for_noise, (), w.dtype)
        return jnp.append(x, 0.0), w @ x + noise
