"""Errors of finite prompts in closed form, against quadrature, simulation, and both ends of L."""

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import plus, power_of, times
from reproduction.panels import LENGTH, NO_DIFFERENCE, Panel, Series
from reproduction.study import Check, Config, Patch, Study, at_most, between

_WIDE = (1.0, 50.0, 1e11, 1e12)  # lengths of the three-dimensional case


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Closed forms from participation moments, for Gaussian tokens with d = 1 and d = 3."""
    lengths = np.array(config["lengths"], np.float64)
    variance, mean, z = 0.8, 0.3, jnp.array([1.2])
    head = lp.Head(U=[[0.9]], V=[[1.3], [0.4]])
    mu = lp.Gaussian([mean], [[variance]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    discretised = lp.Empirical((mean + np.sqrt(variance) * nodes)[:, None], weights)

    wide = lp.Head(U=jnp.eye(3), V=jnp.eye(3)[:2])
    query = jnp.array([0.6, -0.8, 0.5])
    cov = jnp.diag(jnp.array([1.0, 0.5, 0.0]))
    tokens = lp.Gaussian(jnp.array([0.1, 0.0, -0.2]), cov)
    method = lp.MonteCarlo(key, max_replicates=config["replicates"], whole_tokens=True)
    found = lp.expect(lp.OutputError(), wide, tokens, query, 50, method)
    pull = (cov @ query)[:2]
    sigma = np.linspace(0, 6, 13)[:, None]
    return xr.Dataset(
        {
            "output_error": ("length", np.asarray(lp.output_error(head, mu, z, lengths))),
            "output_integral": (
                "length",
                np.asarray(lp.output_error(head, discretised, z, lengths)),
            ),
            "gradient_U_error": ("length", np.asarray(lp.gradient_error(head, mu, z, lengths).U)),
            "gradient_U_integral": (
                "length",
                np.asarray(lp.gradient_error(head, discretised, z, lengths).U),
            ),
            "wide_error": ("wide_length", np.asarray(lp.output_error(wide, tokens, query, _WIDE))),
            "one_token": float(jnp.trace(cov[:2, :2]) + pull @ pull),
            "score_variance": float(query @ cov @ query),
            "simulated": float(found.value),
            "simulated_error": float(found.error),
            "participation_error": float(jnp.max(lp.participation(sigma, lengths).error)),
        },
        {"length": lengths, "wide_length": list(_WIDE)},
    )


def examine(data: xr.Dataset) -> list[Check]:
    """Closed forms against quadrature, against simulation, and at both ends of the range of L."""
    gap = np.abs(data.output_integral / data.output_error - 1).max()
    slope_gap = np.abs(data.gradient_U_integral / data.gradient_U_error - 1).max()
    wide = data.wide_error
    scores = (data.simulated - wide.sel(wide_length=50.0)) / data.simulated_error
    at_one = np.abs(wide.sel(wide_length=1.0) / data.one_token - 1)
    # E |T_L - T|^2 ~ e^{sigma^2} (tr VGV' + |VGUz|^2) / L
    last = wide * data.wide_length / (np.exp(data.score_variance) * data.one_token)
    return [
        at_most("output error: closed form = Laplace integral, L to 1e12", gap, 1e-10),
        at_most("U-gradient error: closed form = Laplace integral", slope_gap, 1e-8),
        between(
            "output error at L = 50 against simulation, in standard errors",
            scores,
            -5.0,
            5.0,
            "accuracy",
        ),
        at_most(
            "output error at L = 50: relative standard error of the simulation",
            data.simulated_error / data.simulated,
            0.1,
            "accuracy",
        ),
        at_most("output error at L = 1 = tr(VGV') + |VGUz|^2", at_one, 1e-12),
        at_most(
            "output error times L at L = 1e11, 1e12 = e^(sigma^2) (tr(VGV') + |VGUz|^2)",
            np.abs(last[-2:] - 1).max(),
            1e-6,
        ),
        at_most(
            "participation moments: error estimate, sigma to 6, L to 1e12",
            data.participation_error,
            1e-11,
            "accuracy",
        ),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Errors relative to the limits, and differences between the closed form and the integral."""
    L = data["length"].values
    # T = V (m + G u) and its derivative V (x) G z, at the head, law and query of `measure`
    squares = {"output": 1.85 * 1.164**2, "gradient_U": 1.85 * 0.96**2}
    names = {"output": "output", "gradient_U": "gradient in $U$"}
    errors = [
        Series(text, L, data[f"{name}_error"].values / squares[name], i)
        for i, (name, text) in enumerate(names.items())
    ]
    gaps = [
        Series(text, L, gap, i, "points")
        for i, (name, text) in enumerate(names.items())
        for gap in [np.abs(data[f"{name}_integral"].values / data[f"{name}_error"].values - 1)]
    ]
    y = "mean squared error / $|T|^2$"
    relative = "relative difference"
    return [
        Panel(errors, LENGTH, y, title="closed form"),
        Panel(gaps, LENGTH, relative, title="against the integral", floor=NO_DIFFERENCE),
    ]


def broken(patch: Patch) -> None:
    """Gaussian tokens with twice the covariance."""
    exact = lp.Gaussian
    patch(lp, "Gaussian", lambda mean, cov: exact(mean, 2.0 * jnp.asarray(cov)))


STUDY = Study(
    name="finite-prompts",
    title="The error of a finite prompt, in closed form",
    source="this project's identity (behind Propositions 3.1 and 3.4)",
    place=3.0,
    statement="For Gaussian tokens the mean squared error of a prompt of L tokens is a combination "
    "of three participation moments of softmax weights, exact for every L from 1 to infinity.",
    formula=r"\mathbb{E}\,|T_L - T|^2 = \operatorname{tr}(V\Gamma V^{\top})\, P_2 + |V\Gamma U "
    r"z|^2\,(P_2 - 6P_3 + 6P_{22})",
    method="The closed form is compared with an integral that does not use it (tokens on 60 "
    "Gauss-Hermite nodes, a law of finitely many atoms), with simulated prompts at L = 50, and "
    "with known values at both ends of the range of L.",
    quick={"lengths": [1.0, 2.0, 10.0, 1e3, 1e6, 1e9, 1e12], "replicates": 2048},
    full={"lengths": np.geomspace(1, 1e12, 37).tolist(), "replicates": 100_000},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="The exact error of output and gradient falls like 1/L, and agrees with an "
    "independent integral to rounding (second panel).",
    notices={
        **{
            name: times(1 + 1e-6, 1.01, 3, 400, each="length") + power_of("length", 0.1, 0.3)
            for name in (
                "output_error",
                "output_integral",
                "gradient_U_error",
                "gradient_U_integral",
            )
        },
        "wide_error": times(1.5, 3, each="wide_length") + power_of("wide_length", 0.1, 0.3),
        "one_token": times(1.01),
        "score_variance": times(1.01),
        "simulated": times(1.5, 0.5),
        "simulated_error": times(10.0, 0.0),
        "participation_error": plus(1e-10),
    },
    broken=broken,
)
