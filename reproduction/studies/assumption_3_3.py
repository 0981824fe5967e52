"""Assumption 3.3: nine tilted moments, in the two readings that its restatements allow."""

from collections.abc import Callable

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import plus, times
from reproduction.panels import Panel, Series
from reproduction.study import INFINITE, Check, Config, Patch, Study, at_least, at_most


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Moments for scalar Gaussian tokens and queries, U from 0 to beyond 1."""
    mu = lp.Gaussian(np.zeros(1), np.eye(1))
    scales = np.array(config["scales"])
    found = xr.concat(
        [lp.concentration.assumption_3_3(lp.Head(U=[[u]], V=[[1.0]]), mu, mu) for u in scales],
        "scale",
    )
    data = found[["tilted", "joint"]].drop_attrs().assign_coords(scale=scales)
    data["joint"].attrs[INFINITE] = "where the expectation diverges"
    return data


def _by_quadrature(data: xr.Dataset, covariance: Callable[[float], np.ndarray]) -> np.ndarray:
    """E |x|^p |z|^q for centred Gaussian (x, z), by Gauss-Hermite quadrature (exact here)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    moments = []
    for scale in data.scale.values:
        root = np.linalg.cholesky(covariance(float(scale)))
        x = root[0, 0] * nodes[:, None] + 0 * nodes
        z = root[1, 0] * nodes[:, None] + root[1, 1] * nodes
        moments.append(
            [
                [weights @ (x**p * z**q) @ weights for q in data.query_order.values]
                for p in data.token_order.values
            ]
        )
    return np.array(moments)


def examine(data: xr.Dataset) -> list[Check]:
    """All moments against quadrature, and which of them are infinite."""
    gentle, steep = data.isel(scale=data.scale < 1), data.isel(scale=data.scale >= 1)
    # x given z is N(uz, 1)
    tilted = _by_quadrature(data, lambda u: np.array([[1 + u * u, u], [u, 1.0]]))
    # e^{uxz} makes the precision [[1, -u], [-u, 1]], of determinant 1 - u^2
    joint = _by_quadrature(gentle, lambda u: np.array([[1, u], [u, 1.0]]) / (1 - u * u))
    mass = 1 / np.sqrt(1 - gentle.scale.values**2)[:, None, None]
    return [
        at_most(
            "Assumption 3.3: tilted moments against quadrature, every |U|: relative difference",
            np.abs(data.tilted.values / tilted - 1).max(),
            1e-10,
        ),
        at_most(
            "Assumption 3.3: number of infinite tilted moments, every |U|",
            np.isinf(data.tilted).sum(),
            0.0,
        ),
        at_most(
            "Assumption 3.3: number of infinite joint moments, |U| < 1",
            np.isinf(gentle.joint).sum(),
            0.0,
        ),
        at_most(
            "joint moments against quadrature, |U| < 1: relative difference",
            np.abs(gentle.joint.values / (mass * joint) - 1).max(),
            1e-10,
        ),
        at_least(
            "control: share of joint moments that are infinite, |U| >= 1",
            np.isinf(steep.joint).mean(),
            1.0,
            "control",
        ),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Some moments against the scale of the scores, in both readings."""
    scale, series = data["scale"].values, []
    for i, (p, q) in enumerate([(4, 0), (4, 4), (8, 8)]):
        here = data.sel(token_order=p, query_order=q)
        name = f"$p={p}$, $q={q}$"
        series.append(Series(name, scale, here["tilted"].values, i))
        raw = here["joint"].values
        series.append(Series(f"{name}, not normalised", scale, raw, i, "dashed", in_legend=False))
    title = "solid: tilted law normalised; dashed: not"
    return [Panel(series, "scale $|U|$", "moment $M_{pq}$", log_x=False, title=title)]


def broken(patch: Patch) -> None:
    """Gaussian tokens with three times the covariance."""
    exact = lp.Gaussian
    patch(lp, "Gaussian", lambda mean, cov: exact(mean, 3.0 * np.asarray(cov)))


STUDY = Study(
    name="assumption-3.3",
    title="The moments that Proposition 3.4 needs",
    source="Assumption 3.3",
    place=3.3,
    of_paper=True,
    statement="Nine exponentially tilted moments, of orders 0, 4 and 8 in token and query, are "
    "finite. For Gaussian tokens and queries they always are if the tilted law is normalised. "
    "Without normalisation they are finite only if |Γ^(1/2) U C^(1/2)| < 1.",
    formula=r"M_{pq} = \mathbb{E}_{z\sim\nu}\!\left[ |z|^q\, \mathbb{E}_{x\sim\mu_{Uz}} |x|^p "
    r"\right] < \infty, \qquad p, q \in \{0, 4, 8\}",
    method="Closed forms for Gaussian tokens and queries against Gauss-Hermite quadrature. Two "
    "readings are computed: the tilted law normalised ('tilted', as attention uses it) and not "
    "normalised ('joint').",
    unknown="We could not access the published statement of Assumption 3.3 and compute two "
    "readings of it. The verdict is for the normalised one.",
    restriction="for the tilted law normalised, one of two readings",
    quick={"scales": [0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0, 1.5, 2.0]},
    full={"scales": [*(i / 20 for i in range(20)), 0.97, 0.99, 1.0, 1.25, 1.5, 2.0, 4.0]},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Tilted moments against the scale of the scores. They are finite at every scale if "
    "the tilted law is normalised; without that they diverge before scale 1.",
    notices={
        "tilted": times(1.001, 3, np.inf, each="scale") + plus(0.01, each="scale"),
        "joint": times(1.001, 3, np.inf, each="token_order") + times(0.0),
    },
    broken=broken,
)
