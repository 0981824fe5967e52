"""Almost-sure convergence along one growing prompt, at the pace of the iterated logarithm."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ..attention import Head
from ..concentration import growing_prompt
from ..measures import Gaussian
from .base import Check, Config, Study, at_least, at_most, power


def compute(config: Config, key: Key[Array, ""]) -> tuple[xr.Dataset, list[Check]]:
    """|T_L - T| along independent prompts that grow token by token."""
    lengths = np.unique(np.geomspace(10, config["longest"], config["points"]).astype(int))
    head, mu = Head(U=[[1.0]], V=[[1.0]]), Gaussian(np.zeros(1), np.eye(1))
    path = growing_prompt(key, head, mu, [1.0], lengths, prompts=config["prompts"])
    end = float(path.length[-1])
    ratio = path.distance / path.envelope
    tail = path.distance.isel(length=path.length.values >= end / 3)
    return path.drop_attrs().assign(ratio=ratio), [
        at_most(
            f"one growing prompt, L = {power(end)}: distance over iterated-logarithm envelope",
            ratio[0, -1],
            1.5,
        ),
        at_most(
            "largest such ratio over all prompts and the last third of L",
            ratio.sel(length=tail.length).max(),
            1.5,
        ),
        at_least("the largest ratio seen is not far below 1 either", ratio.max(), 0.4, "control"),
    ]


STUDY = Study(
    name="almost-sure",
    title="One growing prompt converges almost surely",
    source="almost-sure convergence",
    statement="As tokens are added to one prompt, the attention output converges to its infinite-prompt limit with probability one; "
    "the distance stays under the envelope of the law of the iterated logarithm, up to a factor that tends to one.",
    formula=r"\limsup_{L\to\infty} \frac{|T[\hat\mu_L](z) - T[\mu](z)|}{\sqrt{2 \ln\ln L / L}} = \sqrt{\lambda_{\max}}",
    method="The constant of the envelope is closed form, exp(σ²) V(Γ + Γuu'Γ)V' for Gaussian tokens. The paths are simulated, one fixed "
    "key: evidence for an asymptotic statement, not a proof. The factor 1.5 was fixed beforehand.",
    unknown="Where and in which words the paper states this was not at hand; the iterated logarithm is this project's sharpening.",
    quick={"longest": 30_000, "points": 40, "prompts": 8},
    full={"longest": 3_000_000, "points": 80, "prompts": 32},
    compute=compute,
)
