"""Theorem 5.1 (v1), 5.2 (v2): the flow learns linear regression in context, and how long the prompts must be for it."""

import math

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ..dynamics import admissible_alpha, flow_curves, gradient_flow, prompt_length_for_risk
from ..icl import BlockParams, LinearRegression
from .base import Check, Config, Study, at_most

_TIMES = np.geomspace(0.1, 1e3, 60)


def _balanced(d: int, alpha: float, key: Key[Array, ""]) -> BlockParams:
    """A = alpha Th Th' with |Th Th'| = 1 and a random Th, b = alpha."""
    theta = np.asarray(jax.random.normal(key, (d, d)))
    product = theta @ theta.T
    return BlockParams(alpha * product / np.linalg.norm(product), alpha)


def _limits(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Where infinite flows end, against the closed form, for several covariances and initial scales inside and outside (0, largest)."""
    rows = []
    for cov in config["covariances"]:
        task = LinearRegression(np.asarray(cov))
        inverse = np.linalg.inv(np.asarray(cov))
        b = np.trace(inverse @ inverse) ** 0.25
        for share in config["shares"]:
            key, here = jax.random.split(key)
            start = _balanced(task.inputs, share * admissible_alpha(task), here)
            run = gradient_flow(task, start, math.inf, saveat=_TIMES)
            gap = np.linalg.norm(run.final.A - inverse / b) + abs(run.final.b - b)
            balance = np.sum(run.params.A**2, axis=(1, 2)) - run.params.b**2
            rows.append((gap, np.max(np.abs(balance)), run.risk[-1], run.phase == "stationary"))
    shape = (len(config["covariances"]), len(config["shares"]))
    columns = np.array(rows, float).T.reshape(4, *shape)
    names = ("limit_error", "imbalance", "limit_risk", "stationary")
    dims = ("covariance", "share")
    return xr.Dataset(
        {name: (dims, column) for name, column in zip(names, columns, strict=True)},
        {"share": np.asarray(config["shares"], float)},
    )


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """Limits of infinite flows; the curve L(eps); flows at several lengths."""
    limits = _limits(config, key)
    task = LinearRegression(np.asarray(config["covariances"][-1]))
    start = _balanced(task.inputs, admissible_alpha(task) / 2, jax.random.key(1))
    needed = prompt_length_for_risk(task, config["epsilons"], start)
    flows = flow_curves(task, start, [*config["lengths"], math.inf])
    inside = limits["share"].values < 1
    errors = limits["limit_error"].values
    longer = needed["length"].values
    checks = [
        at_most(
            "infinite prompt, alpha inside the interval: distance to the limit",
            errors[:, inside].max(),
            1e-5,
        ),
        at_most(
            "infinite prompt, alpha outside it: the same limit", errors[:, ~inside].max(), 1e-5
        ),
        at_most("|A|^2 - b^2 stays 0", limits["imbalance"].max(), 1e-9),
        at_most("limiting risk of the infinite prompt", limits["limit_risk"].max(), 1e-9),
        at_most(
            "flow at L(eps): excess risk over eps",
            np.max(needed["flow_excess"].values / needed["epsilon"].values),
            1.0,
        ),
        at_most("largest L(eps) is finite: 1/L(eps)", 1 / longer.max(), 1.0),
        at_most(
            "risk never increases along its own flow: largest increase",
            np.diff(flows["risk"].values, axis=1).max(),
            1e-12,
            "accuracy",
        ),
    ]
    kept = flows[["risk", "b", "valley_entered", "stopped"]].rename(stopped="stopped_at")
    data = xr.merge(
        [
            limits,
            needed[["length", "flow_excess", "flow_time"]].rename(length="prompt_length"),
            kept.assign_coords(
                length=[float(L) if math.isfinite(L) else -1.0 for L in flows["length"].values]
            ),
        ],
        combine_attrs="drop",
    )
    data["length"].attrs["note"] = "-1 stands for the infinite prompt"
    return data, checks


_D2 = [[1.0, 0.5], [0.5, 1.0]]
STUDY = Study(
    name="theorem-5.1",
    title="Gradient flow learns linear regression in context",
    source="Theorem 5.1 (v1), 5.2 (v2)",
    statement="From the balanced initialisation the infinite-prompt flow converges to b = tr(Sig^-2)^{1/4}, A = Sig^-1/b, with zero risk; for "
    "every eps the flow of long enough prompts ends within eps of the Bayes risk.",
    formula=r"b_\infty = \operatorname{tr}(\Sigma^{-2})^{1/4},\qquad A_\infty = \Sigma^{-1}/b_\infty",
    method="Flows of the exact risk, no sampling, for several covariances, random directions Theta, and alpha inside and outside the stated interval. L(eps): "
    "the smallest length whose best head is within eps of the Bayes risk, confirmed by a flow that ends there.",
    unknown="The content of the new Theorem 5.1 of the second version is not known to us.",
    quick={
        "covariances": [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.1], [0.1, 2.0]], _D2],
        "shares": [0.1, 0.9, 4.0],
        "epsilons": [0.3, 0.1, 0.03],
        "lengths": [1e2, 1e4, 1e9],
    },
    full={
        "covariances": [
            [[1.0, 0.0], [0.0, 1.0]],
            [[0.5, 0.1], [0.1, 2.0]],
            [[0.2, 0.0], [0.0, 1.0]],
            _D2,
        ],
        "shares": [0.01, 0.1, 0.5, 0.9, 1.5, 4.0, 16.0],
        "epsilons": [0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4],
        "lengths": [1e1, 1e2, 1e3, 1e4, 1e6, 1e9],
    },
    compute=compute,
)
