"""Regimes of softmax weights: averaging, rare tokens, frozen; and how the limit shape appears as L grows."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ..concentration.rates import regime_exponent
from ..prompts import participation
from .base import Check, Config, Study, at_most, power


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """-ln P_2 / ln L at sigma^2 = x ln L, for growing L, against its limit f(x)."""
    x = np.linspace(0.0, 4.0, config["points"])
    lengths = np.array(config["lengths"], np.float64)
    logs = np.log(lengths)
    found = participation(np.sqrt(x[:, None] * logs), lengths)
    p2 = np.asarray(found.p2)
    limit = np.array([regime_exponent(float(value)) for value in x])
    data = xr.Dataset(
        {
            "exponent": (("length", "x"), (-np.log(p2) / logs).T),
            "limit": ("x", limit),
            "largest_share": (("length", "x"), p2.T),
            "frozen_share": ("x", 1 - np.sqrt(np.minimum(2 / np.maximum(x, 2.0), 1.0))),
        },
        {"length": lengths, "x": x},
    )
    gap = np.abs(data.exponent - data.limit)
    averaging, frozen = data.x <= 0.5, data.x >= 2.5
    share_gap = np.abs(data.largest_share - data.frozen_share).where(frozen).max("x").values
    worst = gap.max("x").values
    return data, [
        at_most(
            f"averaging, x <= 1/2, L = {power(lengths[-1])}: |exponent - (1 - x)|",
            gap.isel(length=-1).where(averaging).max(),
            0.01,
        ),
        at_most(
            f"all x to 4, L = {power(lengths[-1])}: largest |exponent - f(x)|", worst[-1], 0.12
        ),
        at_most(
            "that distance shrinks with L: largest ratio of successive ones",
            np.max(worst[1:] / worst[:-1]),
            0.95,
        ),
        at_most(
            f"frozen, x >= 5/2, L = {power(lengths[-1])}: |P_2 - (1 - sqrt(2/x))|",
            share_gap[-1],
            0.12,
        ),
        at_most(
            "that distance shrinks with L too: largest ratio of successive ones",
            np.max(share_gap[1:] / share_gap[:-1]),
            0.95,
        ),
        at_most("participation: own error estimate", found.error.max(), 1e-9, "accuracy"),
    ]


STUDY = Study(
    name="regimes",
    title="Averaging, rare tokens, frozen: the regimes of softmax weights",
    source="this project's sharpening of Proposition 3.1 (freezing of the random energy model)",
    statement="At score deviation σ and length L everything depends on x = σ²/ln L: below 2/3 the weights average over many tokens, up to "
    "2 a few rare tokens carry them, beyond that the largest few scores hold a share that does not vanish, however long the prompt.",
    formula=r"P_2 = L^{-f(x)+o(1)}, \quad f(x) = 1-x \;(x\le\tfrac23),\quad \frac{(1-x/2)^2}{2x} \;(\tfrac23\le x\le 2), \quad 0\;(x\ge 2,\ P_2 \to 1-\sqrt{2/x})",
    method="P₂, the expected sum of squared weights, is computed exactly (own error estimate below 1e-9). f is its limit; "
    "convergence is logarithmic in L and therefore still visible at L = 10¹²: the criteria are on the distance and on its decrease.",
    quick={"lengths": [1e3, 1e6, 1e9, 1e12], "points": 41},
    full={"lengths": [1e2, 1e3, 1e4, 1e6, 1e8, 1e10, 1e12], "points": 161},
    compute=compute,
)
