"""Theorem 4.3 and Lemma D.1: training with long prompts follows the infinite-prompt flow."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import power_of, times
from reproduction.panels import LENGTH, Panel, Series
from reproduction.studies._flows import half_scores_at_infinity, sharp_constant
from reproduction.study import Check, Config, Study, at_least, at_most, between, power

_T = 1.0  # the parameters are compared on [0, T]
_EARLY = np.linspace(0, _T, 101)
_LATE = np.geomspace(1.5 * _T, 1e7, 12)
_SHOWN = [1, 20, 40, 60, 80, 100]  # indices of early times that are stored
_CHECKED = 100.0  # length at which output errors are computed a second time


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Exact flows to their limits for several tasks, and flows on sampled prompts."""
    parts = [_one_task(np.asarray(cov), config["lengths"]) for cov in config["covariances"]]
    return xr.merge(
        [xr.concat(parts, "task"), _rademacher(config, key)],
        combine_attrs="drop",
        compat="no_conflicts",
    )


def _one_task(cov: np.ndarray, lengths: list[float]) -> xr.Dataset:
    """Flows of one task at all lengths and at infinity, and their gaps.

    The gaps along paths are at points of the infinite path first, then of the finite one.
    """
    task = lp.LinearRegression(cov)
    start = lp.balanced_init(task, lp.dynamics.admissible_alpha(task) / 2)
    times_ = np.append(_EARLY, _LATE)
    limit = lp.gradient_flow(task, start, math.inf, saveat=times_)
    runs = [lp.gradient_flow(task, start, L, saveat=times_) for L in lengths]
    early, whole = limit.at_times(_EARLY)[0], np.append(_EARLY[::20], _LATE)
    hessians = _hessians(_flat(limit.objective, start), early)
    columns: dict[str, list] = {name: [] for name in (*_AT_THE_END, *_ALONG, *_BEFORE)}
    for L, run in zip(lengths, runs, strict=True):
        path = np.concatenate([limit.at_times(whole)[0], run.at_times(whole)[0]])
        points = np.concatenate([early, path])
        (risks, slopes), (risks_0, slopes_0) = (
            _look(_flat(flow.objective, start), points) for flow in (run, limit)
        )
        pull = slopes - slopes_0
        response = _linear_response(hessians, pull[: len(early)])
        columns["limit_excess"].append(run.risk[-1] - limit.risk[-1])
        columns["best_excess"].append(float(task.minimiser(L).risk) - limit.risk[-1])
        columns["stationary"].append(float(run.phase == "stationary"))
        columns["risk_gap"].append(np.abs(risks - risks_0)[len(early) :])
        columns["gradient_gap"].append(np.linalg.norm(pull, axis=1)[len(early) :])
        columns["output_error"].append(_output_errors(task, path, L))
        columns["parameter_gap"].append(
            np.linalg.norm(run.at_times(_EARLY)[0] - early, axis=1)[_SHOWN]
        )
        columns["linear_response"].append(np.linalg.norm(response, axis=1)[_SHOWN])
    dims: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(_AT_THE_END, ("length",)),
        **dict.fromkeys(_ALONG, ("length", "point")),
        **dict.fromkeys(_BEFORE, ("length", "time")),
    }
    return xr.Dataset(
        {
            **{name: (dims[name], np.array(column)) for name, column in columns.items()},
            "start_by_hand": _by_hand(task, start, _CHECKED),
            "path_end": float(np.linalg.norm(limit.at_times(whole)[0][-1])),
            "end_by_hand": _end_by_hand(cov),
            "sharp_constant": sharp_constant(cov),
        },
        {"length": np.array(lengths, np.float64), "time": _EARLY[_SHOWN]},
    )


_AT_THE_END = ("limit_excess", "best_excess", "stationary")
_ALONG = ("risk_gap", "gradient_gap", "output_error")
_BEFORE = ("parameter_gap", "linear_response")


_Flat = Callable[[np.ndarray], tuple[float, np.ndarray]]


def _flat(objective: Any, start: lp.BlockParams) -> _Flat:
    """Value and gradient of an objective at (A, b) as one vector, by its formula in NumPy."""
    known, d = objective.by_numpy(start), len(start.A)

    def at(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, (by_A, by_b) = known(theta[:-1].reshape(d, d), np.asarray(theta[-1]))
        return float(value), np.append(by_A, by_b)

    return at


def _look(risk: _Flat, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Risks and gradients at many parameters."""
    values, slopes = zip(*map(risk, points), strict=True)
    return np.array(values), np.array(slopes)


def _hessians(risk: _Flat, points: np.ndarray) -> np.ndarray:
    """Hessians of the infinite-prompt risk at many parameters.

    It is a polynomial of degree four, for which these differences of gradients are exact.
    """

    def column(move: np.ndarray) -> np.ndarray:
        near, far = (
            _look(risk, points + k * move)[1] - _look(risk, points - k * move)[1] for k in (1, 2)
        )
        return (8 * near - far) / (12 * np.max(move))

    return np.stack([column(move) for move in 0.1 * np.eye(points.shape[1])], axis=-1)


def _linear_response(hessians: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """First order of theta_L - theta_inf at the early times, from the infinite path alone.

    It solves d' = -Hess R_inf(theta_inf) d - (grad R_L - grad R_inf)(theta_inf), by the trapezoidal
    rule.
    """
    step, n = _EARLY[1], hessians.shape[-1]
    d = np.zeros(n)
    found = [d]
    for (H, g), (H_next, g_next) in itertools.pairwise(zip(hessians, pull, strict=True)):
        right = d - step / 2 * (H @ d + g + g_next)
        d = np.linalg.solve(np.eye(n) + step / 2 * H_next, right)
        found.append(d)
    return np.array(found)


def _queries(cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of the trapezoidal rule for inputs N(0, cov), d = 2.

    Half of the grid is enough, since the integrands are even.
    """
    places = np.arange(-6.0, 6.1, 0.5)
    g = np.stack(np.meshgrid(places, places, indexing="ij"), -1).reshape(-1, 2)
    half = (len(g) + 1) // 2
    weights = np.exp(-np.sum(g[:half] ** 2, 1) / 2)
    weights[-1] /= 2
    return g[:half] @ np.linalg.cholesky(cov).T, weights / weights.sum()


def _output_errors(task: lp.LinearRegression, path: np.ndarray, L: float) -> np.ndarray:
    """Mean squared difference of predictions at L and at infinity, at parameters along a path.

    Averaged over tasks N(0, I) and queries.
    """
    cov = np.asarray(task.cov)
    x, weights = _queries(cov)
    A, b = path[:, :-1].reshape(-1, *cov.shape), path[:, -1]
    pulled = x @ A.transpose(0, 2, 1) @ cov  # (times, queries, d)
    variance = np.einsum("tqd,tqd->tq", pulled, x @ A.transpose(0, 2, 1))
    sigma = np.sqrt(np.maximum(variance, 0.0))
    p = lp.ParticipationTable(L, sigma.max())(sigma)  # to 1e-10
    p2, p3, p22 = (np.asarray(a) for a in (p.p2, p.p3, p.p22))
    errors = np.trace(cov) * p2 + np.sum(pulled**2, -1) * (p2 - 6 * p3 + 6 * p22)
    return b**2 * (errors @ weights)


def _by_hand(task: lp.LinearRegression, params: lp.BlockParams, L: float) -> float:
    """The same at one point, task by task, as attention over tokens N(0, G_w)."""
    x, weights = _queries(np.asarray(task.cov))
    queries = np.concatenate([x, np.zeros((len(x), 1))], 1)
    U, V = np.zeros((3, 3)), np.zeros((1, 3))
    U[:2, :2], V[0, 2] = np.asarray(params.A), float(params.b)
    nodes, mass = np.polynomial.hermite_e.hermegauss(3)  # the error is quadratic in w
    mass = mass / mass.sum()
    total = 0.0
    for i, j in np.ndindex(3, 3):
        w = np.array([nodes[i], nodes[j]])
        G = np.block([[np.eye(2)], [w[None]]]) @ np.asarray(task.cov)
        law = lp.Gaussian(np.zeros(3), G @ np.block([[np.eye(2), w[:, None]]]))
        found = np.asarray(lp.output_error(lp.Head(U=U, V=V), law, queries, L))
        total += mass[i] * mass[j] * found @ weights
    return float(total)


def _end_by_hand(cov: np.ndarray) -> float:
    """|theta| at the limit of the infinite prompt, where b = |A| = tr(cov^-2)^{1/4}."""
    inverse = np.linalg.inv(cov)
    return math.sqrt(2) * np.trace(inverse @ inverse) ** 0.25


def _rademacher(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Gaps on [0, T] for Rademacher inputs and sampled prompts.

    `linear_apart` is the distance of linear attention at T to the infinite-prompt limit of softmax.
    """
    task = lp.icl.ProductRegression(lp.Rademacher(1))
    start = lp.BlockParams(0.5 * np.eye(1), 0.5).general()
    lengths = config["sampled_lengths"]
    times = np.linspace(0, _T, 31)[1:]
    settings = [(float(L), "softmax") for L in lengths]
    settings += [(math.inf, "softmax"), (float(max(lengths)), "linear")]
    runs = [
        lp.gradient_flow(task, start, L, _T, attention, saveat=times, method=lp.MonteCarlo(key))
        for L, attention in settings
    ]
    points, risks = zip(*(run.at_times(times) for run in runs), strict=True)
    gaps = [np.linalg.norm(p - points[-2], axis=1) for p in points]
    dim = "sampled_length"
    return xr.Dataset(
        {
            "sampled_parameter_gap": (dim, [g.max() for g in gaps[:-2]]),
            "sampled_risk_gap": (dim, [np.abs(r - risks[-2]).max() for r in risks[:-2]]),
            "linear_apart": float(gaps[-1][-1]),
        },
        {dim: np.array(lengths, np.float64)},
    )


def examine(data: xr.Dataset) -> list[Check]:
    """Limiting risks, gaps along the paths, the first order of the gap, and Rademacher inputs."""
    at = {str(n): v.values for n, v in data.variables.items()}
    L = at["length"]
    first, last = power(L[0]), power(L[-1])
    excess = at["limit_excess"]  # (task, length)
    checks = [
        at_most(
            f"limiting risk at L = {last} above that of the infinite prompt, largest over tasks",
            excess[:, -1].max(),
            1e-2,
        ),
        at_least(
            f"control: the same at L = {first}, smallest over tasks",
            excess[:, 0].min(),
            1e-2,
            "control",
        ),
        at_most(
            "largest ratio of that excess from each L to the next",
            (excess[:, 1:] / excess[:, :-1]).max(),
            0.5,
        ),
        at_most(
            f"L times that excess against the delta method on the valley, L = {last}",
            np.abs(excess[:, -1] * L[-1] / at["sharp_constant"] - 1).max(),
            0.05,
        ),
        at_most(
            "limiting risk against the best head in block form: largest relative difference",
            np.abs(excess / at["best_excess"] - 1).max(),
            1e-6,
            "accuracy",
        ),
        at_least("share of flows that became stationary", at["stationary"].mean(), 1.0, "accuracy"),
        at_most(
            "end of the infinite flow against its closed form: relative difference",
            np.abs(at["path_end"] / at["end_by_hand"] - 1).max(),
            1e-5,
            "accuracy",
        ),
    ]
    for name, words in (
        ("risk_gap", "|R_L - R_inf|"),
        ("gradient_gap", "|grad R_L - grad R_inf|"),
        ("output_error", "E |T_L - T|^2"),
    ):
        largest = at[name].max(-1)  # (task, length)
        ratios = largest[:, 1:] / largest[:, :-1]
        pace = (np.log(ratios) / np.diff(np.log(L)))[:, -1]
        text = f"largest {words} along both paths"
        checks += [
            at_most(f"{text}: largest ratio from each L to the next", ratios.max(), 0.5),
            at_most(f"{text}: largest exponent of L at the last lengths", pace.max(), -0.2),
            at_least(
                f"{text}: smallest exponent of L at the last lengths", pace.min(), -1.05, "accuracy"
            ),
        ]
    gap, response = at["parameter_gap"], at["linear_response"]
    second_order = np.abs(gap / response - 1).max(-1)  # (task, length)
    end = (
        at["risk_gap"].shape[-1] // 2 - 1
    )  # end of the infinite path, where its prediction is perfect
    identity = 2 * at["risk_gap"][..., end] / at["output_error"][..., end]
    at_start = at["output_error"][:, L == _CHECKED, 0].squeeze(1) / at["start_by_hand"]
    time = at["time"][0]
    pushed = gap[..., 0] / time / at["gradient_gap"][..., 0]
    return [
        *checks,
        at_most(
            f"|theta_L - theta_inf| on [0, {_T:g}] against its first order, L = {last}: relative",
            second_order[:, -1].max(),
            0.02,
        ),
        at_most(
            "that difference is of second order: largest ratio from each L to the next",
            (second_order[:, 1:] / second_order[:, :-1]).max(),
            0.5,
        ),
        between(
            f"smallest |theta_L - theta_inf| / t over the initial gradient gap, t = {time:g}",
            pushed.min(),
            0.5,
            1.5,
        ),
        between("largest such ratio", pushed.max(), 0.5, 1.5),
        at_most(
            "R_L - R_inf = E |T_L - T|^2 / 2 at the end of the infinite path: relative difference",
            np.abs(identity - 1).max(),
            1e-4,
            "accuracy",
        ),
        at_most(
            f"output error at the start, L = {_CHECKED:g}, against a second computation: relative",
            np.abs(at_start - 1).max(),
            1e-6,
            "accuracy",
        ),
        *_examine_rademacher(at),
    ]


def _examine_rademacher(at: dict[str, np.ndarray]) -> list[Check]:
    sampled = at["sampled_parameter_gap"]
    risks, lengths = at["sampled_risk_gap"], at["sampled_length"]
    return [
        at_most("Rademacher inputs: last over first parameter gap", sampled[-1] / sampled[0], 0.5),
        at_most(
            "Rademacher inputs: last over first risk gap, in units of L^(-1/2)",
            risks[-1] / risks[0] * math.sqrt(lengths[-1] / lengths[0]),
            1.0,
        ),
        at_least(
            "control: Rademacher inputs, distance of linear attention over the last gap",
            at["linear_apart"] / sampled[-1],
            1.5,
            "control",
        ),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Gaps against length: exact for Gaussian inputs, sampled for Rademacher inputs."""
    L = data["length"].values
    curves = [
        ("limiting risk", data["limit_excess"].max("task")),
        ("risk along the paths", data["risk_gap"].max(["task", "point"])),
        ("gradient along the paths", data["gradient_gap"].max(["task", "point"])),
        ("parameters on $[0,T]$", data["parameter_gap"].max(["task", "time"])),
    ]
    exact = [Series(text, L, values.values, i) for i, (text, values) in enumerate(curves)]
    L = data["sampled_length"].values
    sampled = [
        Series("parameters", L, data["sampled_parameter_gap"].values, 3),
        Series("risk", L, data["sampled_risk_gap"].values, 1, "dashed"),
    ]
    return [
        Panel(exact, LENGTH, "largest gap", title="Gaussian inputs (exact)"),
        Panel(
            sampled, LENGTH, "largest gap on $[0,T]$", title="Rademacher inputs (sampled prompts)"
        ),
    ]


STUDY = Study(
    name="theorem-4.3",
    title="Training with long prompts follows the infinite-prompt flow",
    source="Theorem 4.3, Corollary D.3, Lemma D.1",
    place=4.3,
    of_paper=True,
    statement="For every eps there is an L(eps) such that for all longer prompts the limiting risk "
    "of the gradient flow is at most that of the infinite prompt plus eps. On [0, T] the two flows "
    "differ by at most g_2(L) T exp(beta T).",
    formula=r"\|\theta_L(t)-\theta_\infty(t)\| \le g_2(L)\, t\, e^{\beta_\infty t}",
    method="Gaussian inputs, three covariances: flows of the exact risk from one initialisation "
    "until they are stationary, without sampling. Their limiting risks are compared with the delta "
    "method on the valley b Σ A = I, where only b is free. Risk gap, gradient gap and output error "
    "are computed along both paths. Lemma D.1 with suprema over a ball is Gronwall's inequality "
    "and cannot fail. We test what it is used for: on [0, T] the gap of the parameters is compared "
    "with its first order, the linear response to the gradient gap, computed from the infinite "
    "path alone. Rademacher inputs: flows of the mean loss over 256 sampled prompts, with the same "
    "tasks and queries at every L.",
    unknown="We could not access the published statement of Assumption 4.2. The theorem gives no "
    "rate; the rate 1/L of the limiting risk is our own.",
    quick={
        "covariances": [
            [[1.0, 0.0], [0.0, 1.0]],
            [[1.0, 0.5], [0.5, 1.0]],
            [[0.5, 0.1], [0.1, 2.0]],
        ],
        "lengths": [1e2, 1e4, 1e6],
        "sampled_lengths": [20, 500],
    },
    full={
        "covariances": [
            [[1.0, 0.0], [0.0, 1.0]],
            [[1.0, 0.5], [0.5, 1.0]],
            [[0.5, 0.1], [0.1, 2.0]],
            [[0.2, 0.0], [0.0, 1.0]],
        ],
        "lengths": [1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8],
        "sampled_lengths": [10, 30, 100, 300, 1000, 3000],
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Largest gaps between training with prompts of length L and with infinite prompts. "
    "All fall as the prompt grows.",
    notices={
        "limit_excess": times(1.001, 3, 400, each="task") + power_of("length", 0.1, -0.1),
        "best_excess": times(1.001, 3, each="task") + power_of("length", 0.1),
        "stationary": times(0.5),
        "risk_gap": times(1.05, 0.95, 3, each="task") + power_of("length", 0.1, -0.1),
        "gradient_gap": times(3, 1 / 3, 400, each="task") + power_of("length", 0.3, -0.3),
        "output_error": times(1.05, 0.95, 3, each="task") + power_of("length", 0.1, -0.1),
        "parameter_gap": times(1.05, 0.95, 3, 400, each="task") + power_of("length", 0.1, -0.1),
        "linear_response": times(1.05, 0.95, 3, each="task") + power_of("length", 0.1, -0.1),
        "start_by_hand": times(1.01, each="task"),
        "path_end": times(1.01, each="task"),
        "end_by_hand": times(1.01, each="task"),
        "sharp_constant": times(1.1, 0.9, each="task"),
        "sampled_parameter_gap": power_of("sampled_length", 0.5),
        "sampled_risk_gap": power_of("sampled_length", 1.0),
        "linear_apart": times(0.01),
    },
    broken=half_scores_at_infinity,
    fewer={"covariances": [[[1.0, 0.0], [0.0, 1.0]]], "lengths": [1e2, 1e6]},
)
