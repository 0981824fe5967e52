"""Almost-sure convergence along one growing prompt, at the pace of the iterated logarithm."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ...attention import Head
from ...concentration import growing_prompt
from ...measures import Gaussian
from ...prompts import output_error
from .mutants import power_of, times
from .study import Check, Config, Study, at_least, at_most, power

_RADIUS = 0.2  # of the ball that a path must not leave again
_EARLY = 30.0  # a length from which on paths still do


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """|T_L - T| along many independent prompts that grow token by token, and E |T_L - T|^2 in
    closed form.
    """
    lengths = np.unique(np.geomspace(10, config["longest"], config["points"]).astype(int))
    head, mu = Head(U=[[1.0]], V=[[1.0]]), Gaussian(np.zeros(1), np.eye(1))
    path = growing_prompt(key, head, mu, [1.0], lengths, prompts=config["prompts"])
    expected = output_error(head, mu, np.ones(1), path.length.values)
    return path.drop_attrs().assign(mean_square=("length", np.asarray(expected)))


def _leaving(data: xr.Dataset, after: float) -> xr.DataArray:
    """The share of paths that are outside the ball at some length from `after` on."""
    tail = data.distance.isel(length=data.length.values >= after)
    return (tail.max("length") > _RADIUS).mean()


def examine(data: xr.Dataset) -> list[Check]:
    """Paths enter a ball and stay; they follow the iterated logarithm; their mean square is the
    exact error.
    """
    end = float(data.length[-1])
    late = data.isel(length=data.length.values >= end / 3)
    beyond = ((late.distance / late.envelope).max("length") > 1.5).mean()
    squares = data.distance**2
    deviation = squares.std("prompt", ddof=1) / data.sizes["prompt"] ** 0.5
    places = np.linspace(0, data.sizes["length"] - 1, 5).astype(int)
    scores = ((squares.mean("prompt") - data.mean_square) / deviation).isel(length=places)
    # tokens N(0, 1), u = 1: lambda_max = e (1 + 1)
    envelope = np.sqrt(4 * np.e * np.log(np.log(data.length)) / data.length)
    limit = data.mean_square[-1] * end / (2 * np.e)
    return [
        at_most(
            f"share of {data.sizes['prompt']} growing prompts that are further than {_RADIUS} from "
            f"the limit at some L >= {power(end / 3)}",
            _leaving(data, end / 3),
            0.01,
        ),
        at_most(
            "share of them above 1.5 times the iterated-logarithm envelope at some such L",
            beyond,
            0.05,
        ),
        at_least(
            f"share further than {_RADIUS} at some L >= {_EARLY:g}: there is something to see",
            _leaving(data, _EARLY),
            0.5,
            "control",
        ),
        at_most(
            "mean squared distance against the exact error at five lengths, in standard errors",
            np.abs(scores).max(),
            5.0,
            "accuracy",
        ),
        at_most(
            "exact error times L / 2e at the last length: distance to 1",
            np.abs(limit - 1),
            0.01,
            "accuracy",
        ),
        at_most(
            "envelope against sqrt(4 e ln ln L / L): relative difference",
            np.abs(data.envelope / envelope - 1).max(),
            1e-6,
            "accuracy",
        ),
    ]


STUDY = Study(
    name="almost-sure",
    title="One growing prompt converges almost surely",
    source="almost-sure convergence",
    statement="As tokens are added to one prompt, the attention output converges to its infinite-prompt limit with probability one; "
    "the distance stays under the envelope of the law of the iterated logarithm, up to a factor that tends to one.",
    formula=r"\limsup_{L\to\infty} \frac{|T[\hat\mu_L](z) - T[\mu](z)|}{\sqrt{2 \ln\ln L / L}} = \sqrt{\lambda_{\max}}",
    method="Paths of independent prompts are simulated, one fixed key for all: evidence for a statement about the limit, not a proof. Almost-sure "
    "convergence says that the probability of leaving a ball at any length from L on vanishes: the share of paths that do is counted. The constant of the "
    "envelope is closed form, exp(σ²) V(Γ + Γuu'Γ)V' for Gaussian tokens; over many prompts a few are above it at any finite length (about one in a "
    "hundred above 1.5 times, by the Gaussian limit). The mean square of the paths is compared with the exact error.",
    unknown="We could not access the paper's own statement; the iterated logarithm is this project's sharpening.",
    quick={"longest": 10_000, "points": 40, "prompts": 256},
    full={"longest": 1_000_000, "points": 80, "prompts": 256},
    measure=measure,
    examine=examine,
    notices={
        "distance": times(1.3, 0.7, 3, 400) + power_of("length", 0.1, -0.1),
        "envelope": times(1.05, 0.95) + power_of("length", 0.1, -0.1),
        "mean_square": times(1.05, 0.95, 3) + power_of("length", 0.1, -0.1),
    },
)
