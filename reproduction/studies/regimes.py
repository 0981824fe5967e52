"""Regimes of softmax weights: averaging, rare tokens, frozen."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import Mutant, plus, power_of, times
from reproduction.panels import Panel, Series
from reproduction.study import Check, Config, Patch, Study, at_most, power


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """P_2 at sigma^2 = x ln L for growing L, the limit f(x) of -ln P_2 / ln L, and P_2 beyond x =
    2.
    """
    x = np.linspace(0.0, 4.0, config["points"])
    lengths = np.array(config["lengths"], np.float64)
    found = lp.participation(np.sqrt(x[:, None] * np.log(lengths)), lengths)
    return xr.Dataset(
        {
            "largest_share": (("length", "x"), np.asarray(found.p2).T),
            "own_error": (("length", "x"), np.asarray(found.error).T),
            "limit": ("x", [lp.regime(sigma, 1e3).exponent for sigma in np.sqrt(x * np.log(1e3))]),
            "frozen_share": ("x", 1 - np.sqrt(np.minimum(2 / np.maximum(x, 2.0), 1.0))),
        },
        {"length": lengths, "x": x},
    )


def exponent(data: xr.Dataset) -> xr.DataArray:
    """-ln P_2 / ln L."""
    return -np.log(data.largest_share) / np.log(data.length)


def _one_token(data: xr.Dataset) -> xr.DataArray:
    """P_2 if one token is compared with the mean of all the others.

    This is L E (1 + S e^{-s})^{-2} with S = L e^{sigma^2/2}. For x < 2 the sum of the others is
    nearly constant, so it equals P_2 up to a relative error of the order of P_2. It is
    e^{sigma^2}/L where the weights average, and L^{-f(x)} (2 pi sigma^2)^{-1/2} Gamma(2 - a)
    Gamma(a), a = 1/x + 1/2, beyond x = 2/3.
    """
    logs = np.log(data.length)
    variance = data.x * logs
    others = logs + variance / 2
    # trapezoidal rule to beyond s = 2 sigma^2 and s = ln S, where the integrand is large
    g = xr.DataArray(np.linspace(-12.0, 75.0, 20_001), dims="g")
    s = np.sqrt(variance) * g
    log = logs - g**2 / 2 - 2 * np.logaddexp(0.0, others - s)
    top = log.max("g")
    total = np.exp(log - top).sum("g") * float(g[1] - g[0])
    return np.exp(top) * total / np.sqrt(2 * np.pi)


def examine(data: xr.Dataset) -> list[Check]:
    """The exponent, P_2 itself where its prefactor is known, and the limit of P_2 beyond x = 2."""
    end, first_order = (
        f"L = {power(data.length[-1])}",
        np.log(np.log(data.length)) / np.log(data.length),
    )
    gap = np.abs(exponent(data) - data.limit).max("x")
    frozen = np.abs(data.largest_share - data.frozen_share).where(data.x >= 2.5).max("x")
    last = data.isel(length=-1)
    averaging = last.isel(x=last.x.values <= 0.4)
    ratio = averaging.largest_share * last.length ** (1 - averaging.x)
    rare = data.isel(length=[-1], x=(data.x.values > 0) & (data.x.values <= 1.25))
    return [
        at_most(
            f"all x to 4, {end}: largest |exponent - f(x)| over ln ln L / ln L",
            gap[-1] / first_order[-1],
            1.0,
        ),
        at_most("the same at every length: largest", (gap / first_order).max(), 1.0),
        at_most(
            "that distance falls with L: largest ratio of successive ones",
            (gap.values[1:] / gap.values[:-1]).max(),
            0.95,
        ),
        at_most(
            f"averaging, x <= 2/5, {end}: |P_2 L e^(-sigma^2) - 1|", np.abs(ratio - 1).max(), 1e-3
        ),
        at_most(
            f"averaging and rare tokens, x <= 5/4, {end}: P_2 against its one-token integral",
            np.abs(rare.largest_share / _one_token(rare) - 1).max(),
            0.05,
        ),
        at_most(
            f"frozen, x >= 5/2, {end}: |P_2 - (1 - sqrt(2/x))| over ln ln L / ln L",
            frozen[-1] / first_order[-1],
            1.0,
        ),
        at_most(
            "frozen: that distance falls with L: largest ratio of successive ones",
            (frozen.values[1:] / frozen.values[:-1]).max(),
            0.95,
        ),
        at_most("error estimate of P_2", data.own_error.max(), 1e-6, "accuracy"),
    ]


def _false_law(limit: xr.DataArray) -> xr.DataArray:
    """A wrong law that fits better than the true one up to L = 1e12."""
    x = limit.x
    return xr.where(x < 0.5, 1 - x, xr.where(x < 2, ((2 - x) / 1.5) ** 2 / 2, 0.0))


def panels(data: xr.Dataset) -> list[Panel]:
    """Exponent of P_2, and P_2 itself, against x."""
    x, share, lengths = (data[n].values for n in ("x", "largest_share", "length"))
    found = []
    for rows, limit, y, title in (
        (-np.log(share) / np.log(lengths)[:, None], "limit", r"$-\ln P_2/\ln L$", "exponent"),
        (share, "frozen_share", "$P_2$", "share of the largest weights"),
    ):
        curves = [
            Series(f"$L=10^{{{np.log10(L):.0f}}}$", x, row, i)
            for i, (L, row) in enumerate(zip(lengths, rows, strict=True))
        ]
        ends = Series("limit", x, data[limit].values, 6, "dashed")
        found.append(Panel([*curves, ends], r"$x=\sigma^2/\ln L$", y, False, False, title))
    return found


def broken(patch: Patch) -> None:
    """Moments of scores divided by two."""
    exact = lp.participation
    patch(lp, "participation", lambda sigma, L: exact(sigma / 2, L))


STUDY = Study(
    name="regimes",
    title="Averaging, rare tokens, frozen: the regimes of softmax weights",
    source="our sharpening of Proposition 3.1 (freezing of the random energy model)",
    place=3.5,
    statement="At score deviation σ and length L the regime depends on x = σ²/ln L only. Below 2/3 "
    "the weights average over many tokens; between 2/3 and 2 a few rare tokens dominate; beyond 2 "
    "the largest few weights have a share that does not vanish, however long the prompt.",
    formula=r"P_2 = L^{-f(x)+o(1)}, \quad f(x) = 1-x \;(x\le\tfrac23),\quad \frac{(1-x/2)^2}{2x} "
    r"\;(\tfrac23\le x\le 2), \quad 0\;(x\ge 2,\ P_2 \to 1-\sqrt{2/x})",
    method="P₂, the expected sum of squared weights, is computed exactly up to L = 10⁵⁰ (error "
    "estimate below 1e-6). Its exponent converges slowly: a prefactor (ln L)^(-1/2) shifts it by "
    "ln ln L / (2 ln L). The criterion is therefore a distance to f of at most ln ln L / ln L at "
    "every L. Where the prefactor is known, P₂ itself is compared: with e^{σ²}/L where the weights "
    "average, with an integral over one token against the mean of the others up to x = 5/4, and "
    "with 1 - √(2/x) beyond x = 5/2.",
    quick={"lengths": [1e3, 1e6, 1e12, 1e25, 1e50], "points": 41},
    full={"lengths": [1e2, 1e3, 1e4, 1e6, 1e8, 1e12, 1e25, 1e50, 1e100], "points": 161},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="The exponent of the expected sum of squared softmax weights approaches its limit as "
    "L grows. Beyond x = 2 the largest weights keep a positive share (second panel).",
    notices={
        "largest_share": times(1.01, 0.99, 3, 400) + power_of("length", 0.1, -0.1, 0.3, -0.3),
        "own_error": plus(1e-5, each="length"),
        "limit": (Mutant("a false law", _false_law), *plus(0.05, -0.05), *times(1.1, 0.9)),
        "frozen_share": times(1.3, 0.7) + plus(0.1),
    },
    broken=broken,
)
