"""Test risk of linear regression in training: exact in block form, otherwise on a fixed sample."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from .._typing import Array
from ..measures import Gaussian
from ..prompts.methods import Estimate, Exact, QuasiMonteCarlo
from ..prompts.quasi import representative
from .gradient_estimators import Regression, conditional_loss
from .output_moments import OutputMoments, output_moments
from .params import AbstractParams
from .prompt_losses import keys_of_test_sample
from .risks import REPLICATES, Attention, FreshRisk, RiskFunction, mean_of_replicates, risk_of

if TYPE_CHECKING:
    from .linear_regression import LinearRegression

_EXPONENT = 11  # 2^11 pairs (w, x_q) in each replicate
_AT_ONCE = 64  # runs whose risks are computed together


def exact_test_risk(functions: Sequence[RiskFunction]) -> FreshRisk:
    """The exact risks of several runs, one function each."""

    def along(params: AbstractParams) -> Estimate:
        known = jax.tree.map(np.asarray, params)
        heads = [jax.tree.map(lambda leaf, i=i: leaf[i], known) for i in range(len(functions))]
        risks = [np.asarray(risk_of(*pair)) for pair in zip(functions, heads, strict=True)]
        return Estimate(np.stack(risks), np.zeros(len(risks)), Exact())

    return along


def conditional_test_risk(
    task: "LinearRegression", key: Key[Array, ""], runs: Sequence[tuple[float, Attention]]
) -> FreshRisk:
    """The mean over quasi-random (w, x_q) of the expected loss given both, for several runs.

    Exact in the prompts; the error is that of eight scramblings of (w, x_q).
    """
    keys = keys_of_test_sample(key)
    regression, d = Regression(task, jnp.float64), task.inputs
    law = Gaussian(jnp.zeros(2 * d), jnp.eye(2 * d))
    normals = jnp.stack([representative(k, law, _EXPONENT).points for k in keys])
    tables = [output_moments(*run) for run in runs]
    moments = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *tables)
    method = QuasiMonteCarlo(key, points=2**_EXPONENT, replicates=REPLICATES)

    def along(params: AbstractParams) -> Estimate:
        risks = np.asarray(_conditionally(regression, moments, normals, params))
        return mean_of_replicates(risks, method, axis=1)

    return along


@eqx.filter_jit
def _conditionally(
    regression: Regression,
    moments: OutputMoments,
    normals: Float[Array, "replicates n m"],
    params: AbstractParams,
) -> Float[Array, "runs replicates"]:
    """Moments and parameters have a leading axis of runs."""

    def one(moments: OutputMoments, params: AbstractParams, normals: Float[Array, "n m"]) -> Array:
        for_w, for_queries = jnp.split(normals, 2, axis=1)
        queries = regression.queries_from(for_w, for_queries, jnp.zeros(len(normals)))
        return conditional_loss(regression, moments, params, queries)

    over_replicates = jax.vmap(one, (None, None, 0))
    return jax.lax.map(
        lambda run: over_replicates(run[0], run[1], normals),
        (moments, params),
        batch_size=_AT_ONCE,
    )
