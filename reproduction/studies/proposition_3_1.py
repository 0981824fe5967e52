"""Proposition 3.1: the mean squared error of the output, its bound and its sharp exponent."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import times
from reproduction.panels import LENGTH, Panel, Series
from reproduction.studies import _error_families
from reproduction.study import Check, Config, Patch, Study, near_simulation

_SIMULATED = 100.0  # length of the simulated prompts
_STEEP = 2  # index of the three-dimensional case with kappa = 1


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Exact curves of the three families, and one simulation in three dimensions."""
    sampled = lp.concentration_curve(
        *_error_families.wide_case(_error_families.SPECTRA[_STEEP]),
        lp.Gaussian(np.zeros(3), np.eye(3)),
        [_SIMULATED],
        method=lp.MonteCarlo(key, relative_error=config["relative_error"]),
    )
    return _error_families.measure("output", config).assign(
        simulated=float(sampled.value[0]), simulated_error=float(sampled.error[0])
    )


def examine(data: xr.Dataset) -> list[Check]:
    """Checks of the three families, and the simulation against the exact value."""
    exact = data.wide_value.isel(case=_STEEP).sel(long_length=_SIMULATED)
    return [
        *_error_families.examine(data, "output", "Prop. 3.1"),
        *near_simulation("Prop. 3.1, d = 3, kappa = 1, L = 100: exact", exact, data),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Errors with the fitted bound, and local exponents with their limits."""
    L, slopes = data["length"].values, []
    for i, sigma in enumerate(data["sigma"].values):
        here = data.sel(sigma=sigma)
        slopes.append(Series(f"$\\sigma={sigma:g}$", L, -here["slope"].values, i))
        sharp = np.full(L.shape, lp.sharp_exponent(float(sigma) ** 2))
        slopes.append(Series(f"limit, $\\sigma={sigma:g}$", L, sharp, i, "dotted", in_legend=False))
    return [
        _error_families.panel(data, "output"),
        Panel(
            slopes,
            LENGTH,
            r"$-d\,\ln E/d\,\ln L$",
            log_y=False,
            title="local exponent; dotted: limit",
        ),
    ]


def broken(patch: Patch) -> None:
    """Gaussian tokens with half the covariance, in the curves and not in the simulation."""
    exact = lp.Gaussian
    patch(lp, "Gaussian", lambda mean, cov: exact(mean, 0.5 * np.asarray(cov)))


STUDY = Study(
    name="proposition-3.1",
    title="The output concentrates as the prompt grows",
    source="Proposition 3.1",
    place=3.1,
    of_paper=True,
    statement="For σ-sub-Gaussian tokens (σ ≥ 1) and 1-sub-Gaussian queries there are constants "
    "that depend only on the head and the dimension, such that the mean squared distance to the "
    "infinite prompt is bounded as below. The printed statement has no condition on L. At L = 1 "
    "the bound is 0 and the error is not, so it can only be meant for L ≥ 2.",
    formula=r"\mathbb{E}\,\|T[\hat\mu_L] - T[\mu]\|^2_{L^2(\nu)} \le c_1 \sigma^6 \frac{\ln "
    r"L}{L^{c_2/\sigma^2}}",
    method="Exact error curves, tested by averages over grids of queries and by one simulation. "
    "(1) Tokens N(0, σ²), queries N(0, 1), U = V = 1: one pair (c₁, c₂) for all σ ≥ 1, and the "
    "power of σ in the smallest constants, which may be smaller than stated. (2) Tokens N(0, Γ) in "
    "three dimensions, U not the identity, up to L = 10²⁵: local slopes against the sharp rate -θ "
    "+ β/ln L. Here κ is the largest eigenvalue of U'ΓU and k its multiplicity; θ = 1 for κ ≤ 1/2 "
    "and √(1/4 + 1/κ) − 1/2 above; β = k/2, but k/2 + 1 at κ = 1/2 and 0 below. (3) Two laws of "
    "four atoms in the plane (signs, and words with one rare large word), queries on Gauss-Hermite "
    "points: enumeration of all short prompts, and the delta method for long ones.",
    unknown="The paper does not give its constants; the ones shown are the smallest for these "
    "curves.",
    quick={
        "sigmas": [1.0, 1.5, 2.0, 3.0],
        "scales": [1.0, 2.0, 4.0],
        "lengths": np.geomspace(2, 1e12, 12).tolist(),
        "law_lengths": [1.0, 2.0, 3.0, 100.0, 1e6, 1e12],
        "c2": 0.5,
        "relative_error": 0.03,
    },
    full={
        "sigmas": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0],
        "scales": [1.0, 1.5, 2.0, 3.0, 4.0],
        "lengths": np.geomspace(2, 1e12, 160).tolist(),
        "law_lengths": [1.0, 2.0, 3.0, *np.geomspace(5, 1e12, 60)],
        "c2": 0.5,
        "relative_error": 0.003,
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="The mean squared distance between attention on L tokens and on infinitely many falls "
    "as the prompt grows, more slowly for tokens of larger standard deviation σ, relative to the "
    "mean square of the limit, σ⁴. Dashed: the paper's bound with c_2 = 1/2 and the smallest c_1 "
    "that serves all curves, fitted here.",
    notices=_error_families.NOTICES
    | {"simulated": times(1.5, 0.5), "simulated_error": times(10.0, 0.0)},
    context=_error_families.CONTEXT,
    broken=broken,
    fewer=_error_families.FEWER,
)
