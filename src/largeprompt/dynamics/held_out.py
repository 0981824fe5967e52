"""The test risk of runs in training: exact in block form, otherwise over one fixed sample, the same at every record."""

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
from .output_moments import output_moments

_REPLICATES = 8
_EXPONENT = 11  # 2^11 tasks with their queries in each replicate
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
                self._risks = [partial(_by_prompts, oracle, keys) for oracle in oracles]
            elif isinstance(params, BlockParams):
                functions = [task.risk_function(*kind) for kind in kinds]
                self._risks = [partial(_exactly, function) for function in functions]
            else:
                regression = Regression(task, jnp.float64)
                law = Gaussian(jnp.zeros(2 * task.inputs), jnp.eye(2 * task.inputs))
                normals = jnp.stack([representative(k, law, _EXPONENT).points for k in keys])
                moments = [output_moments(*kind) for kind in kinds]
                self._risks = [partial(_conditionally, regression, m, normals) for m in moments]

    def __call__(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """(risks, standard errors)."""
        found = []
        with jax.enable_x64(True):
            for i, risk in enumerate(self._risks):
                one = jax.tree.map(lambda leaf, i=i: leaf[i].astype(jnp.float64), params)
                found.append(np.asarray(risk(one)))
        risks = np.stack(found)
        return risks.mean(axis=1), risks.std(axis=1, ddof=1) / np.sqrt(_REPLICATES)


@eqx.filter_jit
def _exactly(function: Any, params: Params) -> Float[Array, " replicates"]:
    return jnp.broadcast_to(function(params), (_REPLICATES,))


@eqx.filter_jit
def _conditionally(
    regression: Regression, moments: Any, normals: Float[Array, "replicates n m"], params: Params
) -> Float[Array, " replicates"]:
    def one(normals: Float[Array, "n m"]) -> Float[Array, ""]:
        for_tasks, for_queries = jnp.split(normals, 2, axis=1)
        queries = regression.queries_from(for_tasks, for_queries, jnp.zeros(len(normals)))
        return conditional_loss(regression, moments, params, queries)

    return jax.vmap(one)(normals)


@eqx.filter_jit
def _by_prompts(
    oracle: TaskOracle, keys: Key[Array, " replicates"], params: Params
) -> Float[Array, " replicates"]:
    return jax.lax.map(lambda key: oracle(key, params), keys)
