"""Where Lemma 2.1 ends: tokens that are not Gaussian converge, but not to linear attention."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ..attention import Head
from ..concentration import limit_comparison
from ..measures import Dirac, Gaussian, Rademacher
from .base import Check, Config, Study, at_least, at_most, power


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """Distance to the own limit and to linear attention, for signs and for Gaussian tokens of the same covariance."""
    head, query = Head(U=np.eye(2), V=np.eye(2)), Dirac(np.ones(2))
    laws = {"Rademacher": Rademacher(2), "Gaussian": Gaussian(np.zeros(2), np.eye(2))}
    lengths = np.array(config["lengths"], np.float64)
    data = xr.concat(
        [limit_comparison(head, law, query, lengths).drop_attrs() for law in laws.values()], "law"
    ).assign_coords(law=list(laws))
    signs, gaussian = data.sel(law="Rademacher"), data.sel(law="Gaussian")
    left = 2 * (1 - np.tanh(1.0)) ** 2
    shown = f"L = {power(lengths[-1])}"
    return data, [
        at_least(
            f"Rademacher tokens, {shown}: distance to linear attention", signs.linear[-1], 0.1
        ),
        at_most(
            f"Rademacher tokens, {shown}: that distance against 2 (1 - tanh 1)^2",
            np.abs(signs.linear[-1] / left - 1),
            1e-6,
        ),
        at_most(
            f"Rademacher tokens, {shown}: distance to their own limit", signs.own_limit[-1], 1e-7
        ),
        at_most(
            f"control: Gaussian tokens, {shown}: distance to linear attention",
            gaussian.linear[-1],
            1e-7,
            "control",
        ),
    ]


STUDY = Study(
    name="non-gaussian-limit",
    title="Other tokens converge too, but not to linear attention",
    source="outside the hypotheses of Lemma 2.1",
    statement="A prompt of signs approaches its own infinite-prompt limit as it grows, while its distance to linear attention stays "
    "positive: 'softmax is linear attention for large prompts' needs Gaussian tokens.",
    formula=r"\lim_{L\to\infty} \mathbb{E}\,|T[\hat\mu_L](z) - V\Gamma U z|^2 = |T[\mu](z) - V \Gamma U z|^2 > 0",
    method="Exact: signs have finitely many atoms and Gaussian tokens closed forms; no prompt is sampled. One query, z = (1, 1).",
    quick={"lengths": np.geomspace(1, 1e9, 19).tolist()},
    full={"lengths": np.geomspace(1, 1e12, 73).tolist()},
    compute=compute,
)
