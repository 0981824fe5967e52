"""Two tasks whose infinite-prompt output is closed form and not linear."""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from .. import _checks
from .._arrays import in_dtype, normal_of
from .._linalg import psd_sqrt
from .._typing import Array, ArrayInput
from ..measures import AbstractMeasure, Gaussian, Mixture
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
        self.task_cov = in_dtype(_checks.shaped("task_cov", cov, (d, d)), inputs.stored_dtype)
        noise = _checks.number("noise_variance", noise_variance, "pass a variance", least=0.0)
        self.noise_variance = _checks.cast("noise_variance", np.asarray(noise), inputs.stored_dtype)

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


@final
class MixtureClassification(AbstractTask):
    """Two Gaussian classes in context: labels y = +-1, inputs $x | y ~ N(y m, Sig)$, tokens (x, y).

    The centre m ~ N(0, S_m) is the w of the task. The law of a token is a mixture of two
    Gaussians, so attention to the infinite prompt gates between two linear maps. The target is the
    label of the query, the loss half the squared error.

    **Arguments:** `cov` = Sig, `centre_cov` = S_m (identity if None).

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.MixtureClassification(jnp.eye(2))
    >>> task.tokens(task.sample_w(jax.random.key(0))).dim
    3
    """

    cov: Float[Array, "d d"]
    centre_cov: Float[Array, "d d"]
    dim: int

    def __init__(self, cov: ArrayInput, centre_cov: ArrayInput | None = None):
        self.cov = _checks.covariance("cov", cov)
        d = self.cov.shape[0]
        given = np.eye(d) if centre_cov is None else centre_cov
        self.centre_cov = in_dtype(_checks.covariance("centre_cov", given), self.cov.dtype)
        _checks.shaped("centre_cov", self.centre_cov, (d, d))
        self.dim = d + 1

    def sample_w(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        """A centre m."""
        draw = normal_of(key, (self.dim - 1,), self.cov)
        return psd_sqrt(self.centre_cov) @ draw

    def tokens(self, w: Float[Array, " d"]) -> AbstractMeasure:
        """Half N((m, 1), Sig (+) 0), half N((-m, -1), Sig (+) 0)."""
        d = self.dim - 1
        cov = jnp.zeros((d + 1, d + 1), w.dtype).at[:d, :d].set(self.cov)
        centre = jnp.append(w, 1.0)
        parts = [Gaussian(sign * centre, cov, check=False) for sign in (1.0, -1.0)]
        return Mixture(jnp.full(2, 0.5, w.dtype), parts)

    def sample_query(
        self, key: Key[Array, ""], w: Float[Array, " d"]
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """(x_q, 0) and its label."""
        for_label, for_input = jax.random.split(key)
        label = jax.random.rademacher(for_label, (), w.dtype)
        draw = jax.random.normal(for_input, w.shape, w.dtype)
        return jnp.append(label * w + psd_sqrt(self.cov) @ draw, 0.0), label
