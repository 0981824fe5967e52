"""The test risk of runs in training: exact in block form, otherwise over one fixed sample, the same at every record."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..icl import BlockParams, LinearRegression, Task
from ..icl.params import Params
from ..icl.task import Attention
from ..measures import Gaussian
from ..prompts.quasi import representative
from .oracles import Regression, TaskOracle, conditional_loss
from .output_moments import OutputMoments, output_moments

_REPLICATES = 8
_EXPONENT = 11  # 2^11 tasks with their queries in each replicate
_AT_ONCE = 64  # runs whose risks are computed together
_PROMPTS = 512  # whole prompts in each replicate, for tasks without a formula


class HeldOutRisk:
    """Risks of a stack of parameters, one for each kind (length, attention), with standard errors.

    Linear regression: the exact risk of a head in block form; of any other head the conditional expectation given task and query,
    averaged over quasi-random ones in eight scramblings, whose spread is the error. Other tasks: whole prompts.
    """

    def __init__(
        self,
        key: Key[Array, ""],
        task: Task,
        kinds: list[tuple[float, Attention]],
        params: Params,
    ):
        keys = jax.random.split(jax.random.fold_in(key, 2**32 - 1), _REPLICATES)  # no step's key
        with jax.enable_x64(True):
            if not isinstance(task, LinearRegression):
                oracles = [TaskOracle(task, *kind, _PROMPTS) for kind in kinds]
                self._risks = _each([partial(_by_prompts, oracle, keys) for oracle in oracles])
            elif isinstance(params, BlockParams):
                functions = [task.risk_function(*kind) for kind in kinds]
                self._risks = _each([partial(_exactly, function) for function in functions])
            else:
                regression = Regression(task, jnp.float64)
                law = Gaussian(jnp.zeros(2 * task.inputs), jnp.eye(2 * task.inputs))
                normals = jnp.stack([representative(k, law, _EXPONENT).points for k in keys])
                tables = [output_moments(*kind) for kind in kinds]
                moments = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *tables)
                self._risks = partial(_conditionally, regression, moments, normals)

    def __call__(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """(risks, standard errors)."""
        with jax.enable_x64(True):
            params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
            risks = np.asarray(self._risks(params))
        return risks.mean(axis=1), risks.std(axis=1, ddof=1) / np.sqrt(_REPLICATES)


def _each(risks: list[Callable[[Params], Array]]) -> Callable[[Params], np.ndarray]:
    """Functions of one head each, as one of a stack of heads."""

    def all_of_them(params: Params) -> np.ndarray:
        heads = [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(len(risks))]
        return np.stack([risk(head) for risk, head in zip(risks, heads, strict=True)])

    return all_of_them


@eqx.filter_jit
def _exactly(function: Any, params: Params) -> Float[Array, " replicates"]:
    return jnp.broadcast_to(function(params), (_REPLICATES,))


@eqx.filter_jit
def _conditionally(
    regression: Regression,
    moments: OutputMoments,
    normals: Float[Array, "replicates n m"],
    params: Params,
) -> Float[Array, "runs replicates"]:
    """Moments and parameters have a leading axis of runs."""

    def one(moments: OutputMoments, params: Params, normals: Float[Array, "n m"]) -> Array:
        for_tasks, for_queries = jnp.split(normals, 2, axis=1)
        queries = regression.queries_from(for_tasks, for_queries, jnp.zeros(len(normals)))
        return conditional_loss(regression, moments, params, queries)

    over_replicates = jax.vmap(one, (None, None, 0))
    return jax.lax.map(
        lambda run: over_replicates(run[0], run[1], normals),
        (moments, params),
        batch_size=_AT_ONCE,
    )


@eqx.filter_jit
def _by_prompts(
    oracle: TaskOracle, keys: Key[Array, " replicates"], params: Params
) -> Float[Array, " replicates"]:
    return jax.lax.map(lambda key: oracle(key, params), keys)
