"""Outside Lemma 2.1: tokens that are not Gaussian converge, but not to linear attention."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import plus, power_of, times
from reproduction.panels import BLACK, LENGTH, Panel, Series
from reproduction.study import Check, Config, Patch, Study, at_least, at_most, power


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Distances to the own limit and to linear attention, for two laws of tokens."""
    head, query = lp.Head(U=np.eye(2), V=np.eye(2)), lp.Dirac(np.ones(2))
    laws = {"Rademacher": lp.Rademacher(2), "Gaussian": lp.Gaussian(np.zeros(2), np.eye(2))}
    lengths = np.array(config["lengths"], np.float64)
    return xr.concat(
        [
            lp.concentration.limit_comparison(head, law, query, lengths).drop_attrs()
            for law in laws.values()
        ],
        "law",
    ).assign_coords(law=list(laws))


def _one_token_and_many() -> dict[str, tuple[float, float, float, float]]:
    """Closed forms at z = (1, 1) for each law.

    These are |T - T_lin|^2, both distances at L = 1, and the limit of L E|T_L - T|^2 by the delta
    method.
    """
    t = np.tanh(1.0)
    # E (x - t)^2 e^{2x} / cosh^2 in one coordinate, times E e^{2x} / cosh^2 in the other
    one = ((1 - t) ** 2 * np.exp(2) + (1 + t) ** 2 * np.exp(-2)) / 2 / np.cosh(1.0) ** 2
    signs = 2 * one * np.cosh(2.0) / np.cosh(1.0) ** 2
    return {
        "Rademacher": (2 * (1 - t) ** 2, 2 * (1 + t**2), 4.0, signs),
        "Gaussian": (0.0, 4.0, 4.0, 4 * np.exp(2.0)),
    }


def examine(data: xr.Dataset) -> list[Check]:
    """Distances at the last length, their rate, and their values for one token."""
    shown = f"L = {power(data.length[-1])}"
    left = data.linear.sel(law="Rademacher")[-1]
    checks = [at_least(f"Rademacher tokens, {shown}: distance to linear attention", left, 0.1)]
    for law, (between_limits, own, linear, pace) in _one_token_and_many().items():
        here, control = data.sel(law=law), "claim" if law == "Rademacher" else "control"
        end = here.isel(length=-1)
        gap = np.abs(here.between_limits - between_limits).max()
        first = np.abs(here.own_limit[0] - own) + np.abs(here.linear[0] - linear)
        checks += [
            at_most(f"{law} tokens: |T - T_lin|^2 against its closed form", gap, 1e-12, control),
            at_most(
                f"{law} tokens, {shown}: distance to linear attention minus that",
                np.abs(end.linear - between_limits),
                1e-6,
                control,
            ),
            at_most(
                f"{law} tokens, {shown}: L E|T_L - T|^2 against the delta method",
                np.abs(end.own_limit * end.length / pace - 1),
                1e-6,
                control,
            ),
            at_most(
                f"{law} tokens, L = 1: both distances against closed forms",
                first,
                1e-12,
                "accuracy",
            ),
        ]
    own_errors = (data.own_limit_error / data.own_limit).max()
    others = (data.linear_error + data.between_limits_error).max()
    return [
        *checks,
        at_most(
            "relative error estimate of the distance to the own limit", own_errors, 1e-6, "accuracy"
        ),
        at_most("error estimate of the other distances", others, 1e-6, "accuracy"),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Distances of each law to its own limit and to linear attention, relative to the limit."""
    found, L, z = [], data["length"].values, np.ones(2)
    for law, limit in (("Rademacher", np.tanh(z)), ("Gaussian", z)):
        here, scale = data.sel(law=law), limit @ limit
        series = [
            Series("to its own limit", L, here["own_limit"].values / scale, 0),
            Series("to linear attention", L, here["linear"].values / scale, 1, "dashed"),
            Series("between the limits", L, here["between_limits"].values / scale, BLACK, "dotted"),
        ]
        y = "squared distance / $|T|^2$"
        found.append(Panel(series, LENGTH, y, title=f"{law} tokens"))
    return found


def broken(patch: Patch) -> None:
    """Gaussian tokens in place of Rademacher ones."""
    patch(lp, "Rademacher", lambda dim: lp.Gaussian(np.zeros(dim), np.eye(dim)))


STUDY = Study(
    name="non-gaussian-limit",
    title="Other tokens converge too, but not to linear attention",
    source="outside the hypotheses of Lemma 2.1",
    place=2.2,
    statement="The output for Rademacher tokens converges to its own limit as the prompt grows, "
    "and its distance to linear attention stays positive. That softmax attention is linear for "
    "large prompts needs Gaussian tokens.",
    formula=r"\lim_{L\to\infty} \mathbb{E}\,|T[\hat\mu_L](z) - V\Gamma U z|^2 = |T[\mu](z) - V "
    r"\Gamma U z|^2 > 0",
    method="Exact: Rademacher tokens have finitely many atoms, Gaussian tokens closed forms; no "
    "prompt is sampled. One query, z = (1, 1), where the values for one token, the limits and the "
    "constant of the 1/L rate are known in closed form.",
    quick={"lengths": np.geomspace(1, 1e9, 19).tolist()},
    full={"lengths": np.geomspace(1, 1e12, 73).tolist()},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Both laws of tokens converge to their own limit. For Rademacher tokens the distance "
    "to linear attention stops falling; for Gaussian tokens it does not.",
    notices={
        "own_limit": times(1.001, 3, 400, each="law") + power_of("length", 0.1, -0.1, each="law"),
        "linear": times(1.001, each="law") + plus(0.001, each="law") + power_of("length", 0.1),
        "between_limits": plus(0.001, each="law") + times(1.001),
        "own_limit_error": plus(1e-3, each="law"),
        "linear_error": plus(1e-3, each="law"),
        "between_limits_error": plus(1e-3, each="law"),
    },
    broken=broken,
)
