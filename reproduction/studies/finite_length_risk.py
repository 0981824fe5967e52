"""Risk of in-context regression at finite length: best softmax head, best linear head, ridge
regression.
"""

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import plus, power_of, times
from reproduction.panels import BLACK, LENGTH, Panel, Series, Style
from reproduction.study import (
    Check,
    Config,
    Patch,
    Study,
    at_least,
    at_most,
    between,
    near_simulation,
    power,
)


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Risks of minimisers and of ridge regression against L, and one simulation."""
    d, noise = config["dim"], config["noise_variance"]
    index = np.arange(d)
    cov = config["rho"] ** np.abs(index[:, None] - index)
    task = lp.LinearRegression(cov, task_cov=np.eye(d) / d, noise_variance=noise)
    for_ridge, for_simulation = jax.random.split(key)
    lengths = config["lengths"]
    best = [task.minimiser(L) for L in lengths]
    linear = [task.minimiser(L, "linear") for L in lengths]
    ridge = [task.bayes_risk(L, lp.MonteCarlo(for_ridge)) for L in lengths]
    crossed = [
        float(task.risk(head.params, L).value) for head, L in zip(linear, lengths, strict=True)
    ]
    middle = config["simulated_length"]
    simulation = lp.MonteCarlo(
        for_simulation, relative_error=config["relative_error"], whole_tokens=True
    )
    sampled = task.risk(best[lengths.index(middle)].params, middle, method=simulation)
    return xr.Dataset(
        {
            "softmax": ("length", [float(found.risk) for found in best]),
            "linear": ("length", [float(found.risk) for found in linear]),
            "linear_weights_in_softmax": ("length", crossed),
            "ridge": ("length", [float(found.value) for found in ridge]),
            "ridge_error": ("length", [float(found.error) for found in ridge]),
            "floor": noise / 2,
            "gradient_norm": max(float(found.gradient_norm) for found in (*best, *linear)),
            "simulated": float(sampled.value),
            "simulated_error": float(sampled.error),
        },
        {
            "length": np.array(lengths, np.float64),
            "simulated_length": float(middle),
            "cov": (("row", "column"), cov),
        },
    )


def _best_linear(cov: np.ndarray, noise: float, L: np.ndarray) -> np.ndarray:
    """Risk of the best linear head in NumPy: a quadratic in M = b A, for tasks N(0, I/d)."""
    d = len(cov)
    risks = []
    for length in L:
        target = np.trace(cov) / d + noise  # E y^2
        curvature = (1 + 1 / length) * cov @ cov / d + target / length * cov
        pull = cov @ cov / d  # the risk is tr(M'CMS)/2 - tr(M'PS) + E y^2 / 2, with S = cov
        M = np.linalg.solve(curvature, pull @ np.linalg.inv(cov))
        gain = np.trace(M.T @ pull)
        risks.append((target - gain) / 2)
    return np.array(risks)


def examine(data: xr.Dataset) -> list[Check]:
    """Both heads approach the floor like 1/L, above ridge regression; both references in NumPy."""
    end, L = f"L = {power(data.length[-1])}", data.length.values
    floor, noise = float(data.floor), 2 * float(data.floor)
    excess = data[["softmax", "linear", "ridge"]] - floor
    slope = np.log(excess.isel(length=-1) / excess.isel(length=-2)) / np.log(L[-1] / L[-2])
    below = np.minimum(data.softmax, data.linear) - data.ridge + 5 * data.ridge_error
    crossed = data.linear_weights_in_softmax
    middle = float(data.simulated_length)
    exact = data.softmax.sel(length=middle)
    by_hand = _best_linear(data["cov"].values, noise, L)
    # ridge regression: noise d / 2L above the floor, as Cov(w | prompt) ~ noise Sig^-1 / L
    asymptote = noise * data.sizes["row"] / 2 / L[-1]
    ridge_error = 5 * data.ridge_error[-1] / asymptote
    return [
        at_most(
            f"excess risk of the best softmax head over the floor, {end}", excess.softmax[-1], 1e-3
        ),
        at_most(
            f"softmax minus linear, {end}",
            np.abs(data.softmax[-1] - data.linear[-1]),
            1e-3,
        ),
        between(
            "exponent of L in the excess risk of softmax, last lengths", slope.softmax, -1.1, -0.9
        ),
        between(
            "exponent of L in the excess risk of linear, last lengths", slope.linear, -1.1, -0.9
        ),
        at_least("no head beats ridge regression: smallest margin", below.min(), 0.0),
        at_most(
            f"the best linear head's weights in softmax, minus linear, {end}",
            np.abs(crossed[-1] - data.linear[-1]),
            1e-3,
        ),
        at_least(
            "control: smallest gain of the softmax minimiser over the linear one's weights",
            (crossed - data.softmax).min(),
            0.0,
            "control",
        ),
        at_least("control: largest such gain", (crossed - data.softmax).max(), 1e-6, "control"),
        at_most(
            "risk of the best linear head against NumPy: largest relative difference",
            np.abs(data.linear / by_hand - 1).max(),
            1e-9,
            "accuracy",
        ),
        at_most(
            f"excess of ridge regression over noise d / 2L, {end}: distance to 1 minus 5 errors",
            np.abs(excess.ridge[-1] / asymptote - 1) - ridge_error,
            0.01,
            "accuracy",
        ),
        at_most("that margin: 5 standard errors of ridge regression", ridge_error, 0.1, "accuracy"),
        at_most("largest gradient norm at a minimiser", data.gradient_norm, 1e-9, "accuracy"),
        *near_simulation(f"softmax risk at L = {middle:g}", exact, data),
    ]


_RISKS: dict[str, tuple[str, Style]] = {
    "softmax": ("best softmax head", "line"),
    "linear_weights_in_softmax": ("best linear head's weights in softmax", "dotted"),
    "linear": ("best linear head", "dashed"),
    "ridge": ("ridge regression (Bayes)", "points"),
}


def panels(data: xr.Dataset) -> list[Panel]:
    """Risks of best heads and of ridge regression against length, and what is above the floor."""
    L, floor = data["length"].values, float(data["floor"])
    risks, excess = [], []
    for i, (name, (text, style)) in enumerate(_RISKS.items()):
        error = data[f"{name}_error"].values if f"{name}_error" in data else None
        risks.append(Series(text, L, data[name].values, i, style, error))
        excess.append(Series(text, L, data[name].values - floor, i, style, error))
    risks.append(Series("noise floor", L, np.full(L.shape, floor), BLACK, "dotted"))
    return [
        Panel(risks, LENGTH, "risk", title="risk"),
        Panel(excess, LENGTH, "risk above the noise floor", title="above the floor"),
    ]


def broken(patch: Patch) -> None:
    """A task with twice the noise it was asked for."""
    exact = lp.LinearRegression

    def wrong(cov, task_cov=None, noise_variance=0.0):
        return exact(cov, task_cov, 2 * noise_variance)

    patch(lp, "LinearRegression", wrong)


STUDY = Study(
    name="finite-length-risk",
    title="Learning in context: risk against prompt length",
    source="Sections 5 and 6 (end points of training)",
    place=4.0,
    of_paper=True,
    statement="The risks of the best softmax head and of the best linear head merge as the prompt "
    "grows, and approach the noise floor. At finite length both are above the risk of ridge "
    "regression, which is the Bayes predictor here.",
    formula=r"\min_{A,b} R_L(A,b) \;\longrightarrow\; \tfrac12\tau^2, \qquad R_L = "
    r"\tfrac12\,\mathbb{E}\,(\hat y_L - y)^2",
    method="Risks of heads are exact, and so are the minimisers (certified by their gradient). "
    "Ridge regression is the posterior mean; its risk is a Monte Carlo mean over 4096 prompts "
    "drawn from their exact law, with standard error. The softmax risk is tested by simulated "
    "prompts at one length. Risk is half the squared error, so the noise floor is τ²/2.",
    unknown="We could not access the captions and numbers of the figures of Section 6. This is the "
    "same comparison, not a copy of a figure: heads in block form at their optimum, not after a "
    "number of training steps.",
    quick={
        "dim": 2,
        "rho": 0.5,
        "noise_variance": 0.1,
        "lengths": [10, 100, 1000, 10_000, 100_000],
        "simulated_length": 100,
        "relative_error": 0.03,
    },
    full={
        "dim": 5,
        "rho": 0.5,
        "noise_variance": 0.1,
        "lengths": [*range(10, 100, 10), *range(100, 1001, 100), 10_000, 100_000, 1_000_000],
        "simulated_length": 100,
        "relative_error": 0.005,
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Risks of the best softmax head, the best linear head and ridge regression merge as "
    "the prompt grows.",
    notices={
        "softmax": times(1.05, 0.95, 3) + power_of("length", 0.1, -0.1) + plus(0.01, -0.01),
        "linear": times(1.01, 0.99, each="length") + power_of("length", 0.1) + plus(0.01),
        "linear_weights_in_softmax": times(1.1, 0.9, 3) + power_of("length", 0.1) + plus(0.01),
        "ridge": times(1.05, 0.95, 3) + power_of("length", 0.1) + plus(0.01),
        "ridge_error": plus(1.0) + times(1000.0),
        "floor": times(1.05, 0.95),
        "gradient_norm": plus(1e-6),
        "simulated": times(1.3, 0.7),
        "simulated_error": times(10.0, 0.0),
    },
    broken=broken,
)
