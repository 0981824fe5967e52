"""Finite prompts: the exact errors against an independent integral, against simulation, and at the ends of the range of L."""

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ..attention import Head
from ..measures import Empirical, Gaussian
from ..prompts import estimate, gradient_error, output_error, participation
from .base import Check, Config, Study, at_most, between


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """The closed forms from participation moments, for Gaussian tokens in one dimension and in three."""
    lengths = np.array(config["lengths"], np.float64)
    variance, mean, z = 0.8, 0.3, jnp.array([1.2])
    head = Head(U=[[0.9]], V=[[1.3], [0.4]])
    mu = Gaussian([mean], [[variance]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    discretised = Empirical((mean + np.sqrt(variance) * nodes)[:, None], weights)
    closed = np.asarray(output_error(head, mu, z, lengths))
    gap = np.abs(np.asarray(output_error(head, discretised, z, lengths)) / closed - 1)
    slopes = np.asarray(gradient_error(head, mu, z, lengths).U)
    slope_gap = np.abs(np.asarray(gradient_error(head, discretised, z, lengths).U) / slopes - 1)

    wide = Head(U=jnp.eye(3), V=jnp.eye(3)[:2])
    query = jnp.array([0.6, -0.8, 0.5])
    cov = jnp.diag(jnp.array([1.0, 0.5, 0.0]))
    tokens = Gaussian(jnp.array([0.1, 0.0, -0.2]), cov)
    found = estimate(
        key, "output_error", wide, tokens, query, 50, max_replicates=config["replicates"]
    )
    distance = (
        found.value - np.asarray(output_error(wide, tokens, query, 50.0))
    ) / found.standard_error

    one_token = jnp.trace(cov[:2, :2]) + jnp.sum((cov @ query)[:2] ** 2)
    at_one = jnp.abs(output_error(wide, tokens, query, 1.0) / one_token - 1)
    last = output_error(wide, tokens, query, np.array([1e11, 1e12]))
    sigma = np.linspace(0, 6, 13)[:, None]
    data = xr.Dataset(
        {
            "output_error": ("length", closed),
            "gradient_U_error": ("length", slopes),
            "output_gap": ("length", gap),
            "gradient_U_gap": ("length", slope_gap),
        },
        {"length": lengths},
    )
    return data, [
        at_most("output error: closed form = Laplace integral, L to 1e12", gap.max(), 1e-10),
        at_most("U-gradient error: closed form = Laplace integral", slope_gap.max(), 1e-8),
        between(
            "output error at L = 50: simulation, in standard errors",
            distance,
            -5.0,
            5.0,
            "accuracy",
        ),
        at_most("output error at L = 1 = tr(VGV') + |VGUz|^2", at_one, 1e-12),
        between("output error ~ L^slope at L = 1e12", jnp.log10(last[1] / last[0]), -1.001, -0.999),
        at_most(
            "participation: own error estimate, sigma to 6, L to 1e12",
            jnp.max(participation(sigma, lengths).error),
            1e-11,
            "accuracy",
        ),
    ]


STUDY = Study(
    name="finite-prompts",
    title="The error of a finite prompt, in closed form",
    source="this project's identity (behind Propositions 3.1 and 3.4)",
    statement="For Gaussian tokens the mean squared error of a prompt of L tokens is a combination of three participation moments of "
    "softmax weights, exact for every L from 1 to infinity.",
    formula=r"\mathbb{E}\,|T_L - T|^2 = \operatorname{tr}(V\Gamma V^{\top})\, P_2 + |V\Gamma U z|^2\,(P_2 - 6P_3 + 6P_{22})",
    method="The closed form against an integral that does not use it (tokens discretised on 60 Gauss-Hermite nodes, a law of finitely "
    "many atoms), as relative difference; against simulated prompts at L = 50, in standard errors; and against what is known at both "
    "ends of the range of L.",
    quick={"lengths": [1.0, 2.0, 10.0, 1e3, 1e6, 1e9, 1e12], "replicates": 2048},
    full={"lengths": np.geomspace(1, 1e12, 37).tolist(), "replicates": 100_000},
    compute=compute,
)
