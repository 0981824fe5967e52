"""Almost-sure convergence along one growing prompt, at the rate of the iterated logarithm."""

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import power_of, times
from reproduction.panels import LENGTH, Panel, Series
from reproduction.study import Check, Config, Patch, Study, at_least, at_most, power

_PATHS = 40  # of growing prompts that are drawn
_RADIUS = 0.2  # of the ball around the limit that late paths must not leave
_EARLY = 30.0  # a length after which many paths still leave it


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """|T_L - T| along independent growing prompts, and E |T_L - T|^2 in closed form."""
    lengths = np.unique(np.geomspace(10, config["longest"], config["points"]).astype(int))
    head, mu = lp.Head(U=[[1.0]], V=[[1.0]]), lp.Gaussian(np.zeros(1), np.eye(1))
    path = lp.concentration.growing_prompt(key, head, mu, [1.0], lengths, prompts=config["prompts"])
    expected = lp.output_error(head, mu, np.ones(1), path.length.values)
    return path.drop_attrs().assign(mean_square=("length", np.asarray(expected)))


def _leaving(data: xr.Dataset, after: float) -> xr.DataArray:
    """Share of paths that are outside the ball at some length from `after` on."""
    tail = data.distance.isel(length=data.length.values >= after)
    return (tail.max("length") > _RADIUS).mean()


def examine(data: xr.Dataset) -> list[Check]:
    """Late paths stay near the limit and below the envelope; their mean square is exact."""
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
            f"control: share further than {_RADIUS} at some L >= {_EARLY:g}",
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


def panels(data: xr.Dataset) -> list[Panel]:
    """The first paths with the envelope; here |T| = 1, so the distances are relative ones."""
    L, some = data["length"].values, data["distance"].values[:_PATHS]
    paths = [Series("prompts", L, row, 0, in_legend=i == 0) for i, row in enumerate(some)]
    envelope = Series("iterated logarithm", L, data["envelope"].values, 1, "dashed")
    return [Panel([*paths, envelope], LENGTH, "$|T_L-T|$, relative to $|T|=1$")]


def broken(patch: Patch) -> None:
    """Distances four times too large."""
    exact = lp.concentration.growing_prompt

    def wrong(*arguments, **options):
        found = exact(*arguments, **options)
        return found.assign(distance=4 * found.distance)

    patch(lp.concentration, "growing_prompt", wrong)


STUDY = Study(
    name="almost-sure",
    title="One growing prompt converges almost surely",
    source="almost-sure convergence",
    place=2.9,
    of_paper=True,
    statement="As tokens are added to one prompt, the attention output converges to its "
    "infinite-prompt limit with probability one. The distance stays below the envelope of the law "
    "of the iterated logarithm, up to a factor that tends to one.",
    formula=r"\limsup_{L\to\infty} \frac{|T[\hat\mu_L](z) - T[\mu](z)|}{\sqrt{2 \ln\ln L / L}} = "
    r"\sqrt{\lambda_{\max}}",
    method="Independent growing prompts are simulated with one fixed key. Almost-sure convergence "
    "means that the probability of leaving a ball around the limit at any length from L on tends "
    "to zero, so we count the paths that do. This is evidence for a statement about a limit, not a "
    "proof. The constant of the envelope is the largest eigenvalue of exp(σ²) V(Γ + Γuu'Γ)V' for "
    "Gaussian tokens. At any finite length a few paths exceed the envelope (by the Gaussian limit, "
    "about one in a hundred exceeds it by half). The mean square of the paths is compared with the "
    "exact error.",
    unknown="We could not access the paper's own statement. The iterated logarithm is our "
    "sharpening.",
    quick={"longest": 10_000, "points": 40, "prompts": 256},
    full={"longest": 1_000_000, "points": 80, "prompts": 256},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Distance to the limit along growing prompts, one line for each of the first 40 "
    "prompts. Long ones stay below the envelope of the iterated logarithm, up to a factor near 1.",
    notices={
        "distance": times(1.3, 0.7, 3, 400) + power_of("length", 0.1, -0.1),
        "envelope": times(1.05, 0.95) + power_of("length", 0.1, -0.1),
        "mean_square": times(1.05, 0.95, 3) + power_of("length", 0.1, -0.1),
    },
    broken=broken,
)
