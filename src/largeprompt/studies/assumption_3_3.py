"""Assumption 3.3: nine tilted moments, in the two readings its restatements allow."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from .. import concentration
from ..attention import Head
from ..measures import Gaussian
from .base import INFINITE, Check, Config, Study, at_least, at_most


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """Scalar Gaussian tokens and queries, U from 0 to beyond 1."""
    mu = Gaussian(np.zeros(1), np.eye(1))
    scales = np.array(config["scales"])
    found = xr.concat(
        [concentration.assumption_3_3(Head(U=[[u]], V=[[1.0]]), mu, mu) for u in scales], "scale"
    )
    data = found.drop_vars("why").drop_attrs().assign_coords(scale=scales)
    data["joint"].attrs[INFINITE] = "where the expectation diverges"
    half, steep = data.sel(scale=0.5), data.sel(scale=scales[scales >= 1])
    return data, [
        at_most(
            "Assumption 3.3: |tilted E|x|^4 / 3(1 + kappa)^2 - 1| at kappa = 1/4",
            np.abs(half.tilted.sel(token_order=4, query_order=0) / (3 * 1.25**2) - 1),
            1e-12,
        ),
        at_most(
            "Assumption 3.3: infinite ones of the nine joint moments, |U| = 1/2",
            np.isinf(half.joint).sum(),
            0.0,
        ),
        at_most(
            "Assumption 3.3: infinite ones among all tilted moments, every |U|",
            np.isinf(data.tilted).sum(),
            0.0,
        ),
        at_least(
            "control: share of joint moments that are infinite, |U| >= 1",
            np.isinf(steep.joint).mean(),
            1.0,
            "control",
        ),
    ]


STUDY = Study(
    name="assumption-3.3",
    title="The moments Proposition 3.4 asks for",
    source="Assumption 3.3",
    statement="Nine exponentially tilted moments, of orders 0, 4 and 8 in token and query, are finite. For Gaussian tokens and queries "
    "they always are if the tilted law is normalised; without normalisation only as long as |Γ^(1/2) U C^(1/2)| < 1.",
    formula=r"M_{pq} = \mathbb{E}_{z\sim\nu}\!\left[ |z|^q\, \mathbb{E}_{x\sim\mu_{Uz}} |x|^p \right] < \infty, \qquad p, q \in \{0, 4, 8\}",
    method="Closed form for Gaussian tokens and queries, no error. Two readings are computed: the tilted law normalised ('tilted', as "
    "attention uses it) and not ('joint').",
    unknown="The exact display of Assumption 3.3 was not at hand; which of the two readings is the paper's is not known. The verdict is "
    "for the normalised one.",
    quick={"scales": [0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0, 1.5, 2.0]},
    full={"scales": [*(i / 20 for i in range(20)), 0.97, 0.99, 1.0, 1.25, 1.5, 2.0, 4.0]},
    compute=compute,
)
