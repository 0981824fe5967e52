"""Proposition 3.4: the errors of both gradients against their bounds, and at L = 1."""

from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ..attention import Head
from ..concentration import Quantity, bound_report, concentration_curve, proposition_3_4
from ..measures import Gaussian
from .base import Check, Config, Study, at_most, between

_QUANTITIES: dict[Literal["U", "V"], Quantity] = {"U": "gradient_U", "V": "gradient_V"}


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """Tokens N(0, sigma^2), queries N(0, 1), U = V = 1: exact curves of both gradient errors for several sigma."""
    lengths = np.array(config["lengths"], np.float64)
    c2, sigmas = config["c2"], config["sigmas"]
    nu = Gaussian(np.zeros(1), np.eye(1))
    head = Head(U=[[1.0]], V=[[1.0]])
    data = xr.Dataset(coords={"length": lengths, "sigma": sigmas})
    checks: list[Check] = []
    for name, quantity in _QUANTITIES.items():
        curves = {
            s: concentration_curve(
                head, Gaussian(np.zeros(1), s**2 * np.eye(1)), nu, lengths, quantity
            )
            for s in sigmas
        }
        c1 = max(bound_report(curve, c2).c1 for curve in curves.values())
        bounds = [proposition_3_4(c1, c2, s, lengths, name) for s in sigmas]
        over = ("sigma", "length")
        data[name] = (over, np.array([curves[s].value.values for s in sigmas]))
        data[f"{name}_bound"] = (over, np.array(bounds))
        data[f"{name}_slope"] = (over, np.array([curves[s].local_slope.values for s in sigmas]))
        one = curves[1.0]
        worst = max(float((c.error / c.value).max()) for c in curves.values())
        flat = concentration_curve(Head(U=[[0.0]], V=[[1.0]]), nu, nu, [1.0], quantity).value[0]
        checks += [
            at_most(
                f"Prop. 3.4 ({name}): smallest c_1 with c_2 = 1/2, L = 2 to 1e12",
                bound_report(one, c2).c1,
                1e3,
            ),
            at_most(f"Prop. 3.4 ({name}): one c_1 for all these sigma, c_2 = 1/2", c1, 1e3),
            between(
                f"Prop. 3.4 ({name}) at L = 1: error where the bound is 0",
                flat,
                0.999,
                1.001,
                "boundary",
            ),
            at_most(f"{name}-curves: own relative error, L to 1e12", worst, 1e-6, "accuracy"),
        ]
    return data, checks


STUDY = Study(
    name="proposition-3.4",
    title="Both gradients concentrate as the prompt grows",
    source="Proposition 3.4",
    statement="Under Assumption 3.3 the derivatives of the output in V and in U are bounded as below, the second with a square of ln L. As "
    "for Proposition 3.1, L = 1 has to be left out.",
    formula=r"\mathbb{E}\,\|\partial_V T_L - \partial_V T\|^2 \le c_1\sigma^6 \frac{\ln L}{L^{c_2/\sigma^2}}, \qquad "
    r"\mathbb{E}\,\|\partial_U T_L - \partial_U T\|^2 \le c_1\sigma^{12} \frac{(\ln L)^2}{L^{c_2/\sigma^2}}",
    method="Exact error curves (squared Frobenius norms, averaged over queries N(0, 1)) for tokens N(0, σ²) and U = V = 1 in one "
    "dimension. For each gradient one pair (c₁, c₂) is fitted to all σ at once. At L = 1 with U = 0 both errors are 1.",
    unknown="The paper does not name its constants; those shown are the smallest for these curves.",
    quick={"sigmas": [1.0, 1.5, 2.0], "lengths": np.geomspace(2, 1e12, 30).tolist(), "c2": 0.5},
    full={
        "sigmas": [1.0, 1.25, 1.5, 2.0, 3.0],
        "lengths": np.geomspace(2, 1e12, 120).tolist(),
        "c2": 0.5,
    },
    compute=compute,
)
