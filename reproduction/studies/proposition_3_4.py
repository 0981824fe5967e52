"""Proposition 3.4: the mean squared errors of both gradients and their bounds."""

from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.panels import Panel
from reproduction.studies import _error_families
from reproduction.studies._independent_errors import ErrorOf
from reproduction.study import Check, Config, Patch, Study

_QUANTITIES: dict[Literal["U", "V"], ErrorOf] = {"U": "gradient_U", "V": "gradient_V"}


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Exact curves of the three families for both gradients; variables U_value, V_value, ..."""
    data = xr.Dataset()
    for name, quantity in _QUANTITIES.items():
        found = _error_families.measure(quantity, config)
        renamed = found.rename({n: f"{name}_{n}" for n in found.data_vars})
        data = data.merge(renamed, compat="no_conflicts")
    return data


def examine(data: xr.Dataset) -> list[Check]:
    """Checks of the three families for both gradients."""
    checks: list[Check] = []
    for name, quantity in _QUANTITIES.items():
        mine = [str(n) for n in data.data_vars if str(n).startswith(f"{name}_")]
        here = data[mine].rename({n: n.removeprefix(f"{name}_") for n in mine})
        checks += _error_families.examine(here, quantity, f"Prop. 3.4 ({name})")
    return checks


def panels(data: xr.Dataset) -> list[Panel]:
    """Errors of both gradients with their fitted bounds."""
    names = ("value", "bound")
    return [
        _error_families.panel(
            data.rename({f"{parameter}_{name}": name for name in names}),
            f"gradient in ${parameter}$",
        )
        for parameter in _QUANTITIES
    ]


def broken(patch: Patch) -> None:
    """Errors three times too large."""
    exact = lp.concentration_curve

    def wrong(*arguments, **options):
        found = exact(*arguments, **options)
        return found.assign(value=3 * found.value)

    patch(lp, "concentration_curve", wrong)


STUDY = Study(
    name="proposition-3.4",
    title="Both gradients concentrate as the prompt grows",
    source="Proposition 3.4",
    place=3.4,
    of_paper=True,
    statement="Under Assumption 3.3 the errors of the derivatives of the output in V and in U are "
    "bounded as below, the second one with a square of ln L. As in Proposition 3.1, L = 1 must be "
    "excluded.",
    formula=r"\mathbb{E}\,\|\partial_V T_L - \partial_V T\|^2 \le c_1\sigma^6 \frac{\ln "
    r"L}{L^{c_2/\sigma^2}}, \qquad \mathbb{E}\,\|\partial_U T_L - \partial_U T\|^2 \le "
    r"c_1\sigma^{12} \frac{(\ln L)^2}{L^{c_2/\sigma^2}}",
    method="Exact error curves (squared Frobenius norms, averaged over queries) in the "
    "configurations of Proposition 3.1: scalar tokens N(0, σ²) for the constants and the power of "
    "σ in them; tokens N(0, Γ) in three dimensions, U not the identity, for the slopes up to L = "
    "10²⁵ (the U-gradient has two more powers of ln L than the output); two laws of four atoms. "
    "Tested by grids of queries, enumeration of all short prompts, and the delta method.",
    unknown="The paper does not give its constants; the ones shown are the smallest for these "
    "curves.",
    quick={
        "sigmas": [1.0, 2.0, 3.0],
        "scales": [1.0, 2.0, 4.0],
        "lengths": np.geomspace(2, 1e12, 8).tolist(),
        "law_lengths": [1.0, 2.0, 3.0, 100.0, 1e6, 1e12],
        "c2": 0.5,
    },
    full={
        "sigmas": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0],
        "scales": [1.0, 1.5, 2.0, 3.0, 4.0],
        "lengths": np.geomspace(2, 1e12, 160).tolist(),
        "law_lengths": [1.0, 2.0, 3.0, *np.geomspace(5, 1e12, 60)],
        "c2": 0.5,
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Errors of both gradients, relative to the mean square of their limits, fall as the "
    "prompt grows. Dashed: the paper's bounds with c_2 = 1/2 and the smallest c_1 that serves all "
    "curves, fitted here.",
    notices={f"{n}_{k}": v for n in _QUANTITIES for k, v in _error_families.NOTICES.items()},
    context={f"{n}_{k}": v for n in _QUANTITIES for k, v in _error_families.CONTEXT.items()},
    broken=broken,
    fewer=_error_families.FEWER,
)
