"""L(eps): how long prompts must be for training to end near the Bayes risk.

Theorems 4.3 and 5.1/5.2 of Boursier & Boyer.
"""

import math

import numpy as np
import xarray as xr

from .. import _checks
from .._float64 import in_float64, not_traced
from .._provenance import versions
from .._search import smallest_length
from .._typing import ArrayInput
from ..icl import AbstractTask, Attention, BlockParams, LinearRegression
from .flow import gradient_flow
from .initial import admissible_alpha, balanced_init

LONGEST = 1e9
_AGREE = 1e-6  # of the excess risk: the end of a flow is the minimiser
_GOAL = 1e-8  # largest gradient norm at which a flow ends


@_checks.accepts(task=AbstractTask)
@not_traced
@in_float64
def prompt_length_for_risk(
    task: LinearRegression,
    epsilon: ArrayInput,
    params: BlockParams | None = None,
    attention: Attention = "softmax",
) -> xr.Dataset:
    """The smallest L whose gradient flow ends within epsilon of the Bayes risk tau^2/2 at infinity.

    The theorem states that such an L exists; here it is computed. The search uses the risk of the
    best head in block form. Then a flow is run at the length found, from `params` (None: the
    balanced initialisation, alpha half its largest admissible value). If it ends elsewhere than at
    that head, an error is raised.

    **Returns:** over `epsilon`: `length` (infinity if no prompt of up to 1e9 tokens will do),
    `excess` (the risk there minus the Bayes risk), `flow_excess` (the same at the end of the flow)
    and `flow_time`, the time it took.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> print(lp.prompt_length_for_risk(lp.LinearRegression(jnp.eye(1)), [0.1, 0.01]).length.values)
    [ 19. 365.]
    """
    wanted = np.atleast_1d(np.asarray(_checks.positive("epsilon", epsilon), np.float64))
    if wanted.ndim != 1 or not wanted.size:
        raise _checks.error(
            "epsilon must be a number or a sequence", f"shape {wanted.shape}", "pass 0.1"
        )
    floor = float(task.bayes_risk(math.inf).value)
    start = balanced_init(task, admissible_alpha(task) / 2) if params is None else params
    known: dict[float, float] = {}

    def excess(L: float) -> float:
        if L not in known:
            known[L] = float(task.minimiser(L, attention).risk) - floor
        return known[L]

    def shortest(epsilon: float) -> tuple[float, float]:
        def too_large(lengths: np.ndarray) -> np.ndarray:
            return np.array([excess(float(L)) > epsilon for L in lengths])

        def secant(low: float, high: float) -> float:
            # the excess is nearly a power of L
            slope = math.log(excess(high) / excess(low)) / math.log(high / low)
            return low * (epsilon / excess(low)) ** (1 / slope)

        length = smallest_length(too_large, LONGEST, guess=secant)
        return length, excess(min(length, LONGEST))

    rows = [shortest(float(epsilon)) for epsilon in wanted]
    flows = [_flow(task, start, attention, floor, *row) for row in rows]
    columns = {
        "length": [row[0] for row in rows],
        "excess": [row[1] for row in rows],
        "flow_excess": [flow[0] for flow in flows],
        "flow_time": [flow[1] for flow in flows],
    }
    data = xr.Dataset(
        {k: ("epsilon", np.array(v)) for k, v in columns.items()}, {"epsilon": wanted}
    )
    data.attrs = {"bayes_risk": floor, "attention": attention, "longest": LONGEST} | versions(None)
    return data


def _flow(
    task: LinearRegression,
    start: BlockParams,
    attention: Attention,
    floor: float,
    L: float,
    excess: float,
) -> tuple[float, float]:
    """Excess risk at the end of the flow, and when it ended."""
    # short prompts have a flat risk around their minimiser: the flow's default would stop too early
    goal = min(1e-4 / L, _GOAL) if math.isfinite(L) else None
    length = min(L, LONGEST)
    run = gradient_flow(task, start, length, attention=attention, saveat=[1.0], stationary=goal)
    ended = float(run.risk[-1]) - floor
    if run.phase != "stationary" or abs(ended - excess) > _AGREE * excess + 1e-12:
        raise _checks.error(
            "L(epsilon) is computed where the flow ends at the best head in block form",
            f"at L = {L:g} excess risk {ended:.6g} instead of {excess:.6g} ({run.status})",
            "start from other parameters, for example balanced_init with a larger alpha",
        )
    return ended, float(run.times[-1])
