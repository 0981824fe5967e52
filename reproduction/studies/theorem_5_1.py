"""Theorem 5.1 (v1), 5.2 (v2): gradient flow learns linear regression in context."""

import math

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import Mutant, plus, power_of, times
from reproduction.panels import Panel, Series, length_label
from reproduction.studies._flows import half_scores_at_infinity, sharp_constant
from reproduction.study import INFINITE, Check, Config, Study, at_least, at_most

_TIMES = np.geomspace(0.1, 1e3, 60)


def _balanced(d: int, alpha: float, key: Key[Array, ""], rank: int | None = None) -> lp.BlockParams:
    """Balanced initialisation with random Theta of d rows and `rank` columns.

    A = alpha Theta Theta' / |Theta Theta'| and b = alpha.
    """
    theta = np.asarray(jax.random.normal(key, (d, d)))[:, :rank]
    product = theta @ theta.T
    return lp.BlockParams(alpha * product / np.linalg.norm(product), alpha)


def _limit(cov: np.ndarray, start: lp.BlockParams) -> tuple[float, float, float, float]:
    """End of the infinite-prompt flow.

    Returns its distance to the closed form, the largest | |A|^2 - b^2 | on the way, its last risk,
    and 1.0 if it is stationary.
    """
    inverse = np.linalg.inv(cov)
    b = np.trace(inverse @ inverse) ** 0.25
    run = lp.gradient_flow(lp.LinearRegression(cov), start, math.inf, saveat=_TIMES)
    gap = np.linalg.norm(run.final.A - inverse / b) + abs(run.final.b - b)
    balance = np.sum(run.params.A**2, axis=(1, 2)) - run.params.b**2
    arrived = float(run.phase == "stationary")
    return float(gap), float(np.max(np.abs(balance))), float(run.risk[-1]), arrived


_NAMES = ("limit_error", "imbalance", "limit_risk", "stationary")


def _limits(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Ends of infinite-prompt flows for several covariances and initialisations.

    The scales alpha are inside and outside the stated interval; some initialisations are singular.
    """
    rows = []
    covariances = [np.asarray(cov) for cov in config["covariances"]]
    shares = [*config["shares"], *config["singular_shares"]]
    for cov in covariances:
        largest = lp.dynamics.admissible_alpha(lp.LinearRegression(cov))
        for i, share in enumerate(shares):
            key, here = jax.random.split(key)
            rank = None if i < len(config["shares"]) else 1
            rows.append(_limit(cov, _balanced(len(cov), share * largest, here, rank)))
    columns = np.array(rows).T.reshape(4, len(covariances), len(shares))
    dims = ("covariance", "start")
    wide = _correlated(config["dimension"])
    start = _balanced(
        len(wide), lp.dynamics.admissible_alpha(lp.LinearRegression(wide)) / 2, key, 1
    )
    return xr.Dataset(
        {
            **{name: (dims, column) for name, column in zip(_NAMES, columns, strict=True)},
            **{f"wide_{n}": v for n, v in zip(_NAMES, _limit(wide, start), strict=True)},
        },
        {
            "share": ("start", np.array(shares, float)),
            "rank_deficient": ("start", [s >= len(config["shares"]) for s in range(len(shares))]),
        },
    )


def _correlated(d: int) -> np.ndarray:
    index = np.arange(d)
    return 0.5 ** np.abs(index[:, None] - index)


def _from_then_on(
    cov: np.ndarray, start: lp.BlockParams, epsilons: list[float], multiples: list[float]
) -> xr.Dataset:
    """L(eps), the best risk at one token fewer, and the ends of flows at multiples of L(eps)."""
    task = lp.LinearRegression(cov)
    needed = lp.prompt_length_for_risk(task, epsilons, start)
    lengths = needed["length"].values
    before = [float(task.minimiser(max(L - 1, 1.0)).risk) for L in lengths]
    arrived = needed["flow_excess"].values  # at L(eps) itself
    ends = [
        [here if m == 1 else float(_end(task, start, m * L)) for m in multiples]
        for L, here in zip(lengths, arrived, strict=True)
    ]
    return xr.Dataset(
        {
            "prompt_length": ("epsilon", lengths),
            "excess_before": ("epsilon", before),
            "flow_excess": (("epsilon", "multiple"), np.array(ends, float)),
            "sharp_constant": sharp_constant(cov),
        },
        {"epsilon": np.array(epsilons), "multiple": np.array(multiples, float)},
    )


def _end(task: lp.LinearRegression, start: lp.BlockParams, L: float) -> float:
    """Risk where a flow ends: the gradient decides that, so its path is followed roughly."""
    return lp.gradient_flow(task, start, L, saveat=[1.0], rtol=1e-3, atol=1e-5).risk[-1]


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Limits of infinite flows; L(eps) and flows beyond it; flows at several lengths."""
    limits = _limits(config, key)
    cov = np.asarray(config["covariances"][-1])
    task = lp.LinearRegression(cov)
    start = _balanced(task.inputs, lp.dynamics.admissible_alpha(task) / 2, jax.random.key(1))
    beyond = _from_then_on(cov, start, config["epsilons"], config["multiples"])
    wide = _correlated(config["dimension"])
    singular = _balanced(
        len(wide), lp.dynamics.admissible_alpha(lp.LinearRegression(wide)) / 2, jax.random.key(2), 1
    )
    far = _from_then_on(wide, singular, config["wide_epsilons"], config["multiples"])
    far = far.rename(epsilon="wide_epsilon", **{n: f"wide_{n}" for n in far.data_vars})
    flows = lp.dynamics.flow_curves(task, start, [*config["lengths"], math.inf])
    kept = flows[["risk", "b", "valley_entered", "stopped"]].rename(stopped="stopped_at")
    first = float(start.b) * cov @ np.asarray(start.A) - np.eye(len(cov))
    data = xr.merge(
        [
            limits,
            beyond,
            far,
            kept.assign_coords(
                length=[float(L) if math.isfinite(L) else -1.0 for L in flows["length"].values]
            ),
        ],
        combine_attrs="drop",
        compat="no_conflicts",
    ).assign(
        first_risk=float(np.trace(first @ cov @ first.T)) / 2,
        b_limit=float(np.trace(np.linalg.inv(cov @ cov)) ** 0.25),
    )
    data["valley_entered"].attrs[INFINITE] = "where a flow never enters the valley"
    data["length"].attrs["note"] = "-1 stands for the infinite prompt"
    return data


def examine(data: xr.Dataset) -> list[Check]:
    """The limit from every initialisation, the excess risk beyond L(eps), and descent."""
    inside = (data.share.values < 1) & ~data.rank_deficient.values.astype(bool)
    singular = data.rank_deficient.values.astype(bool)
    errors = data.limit_error.values
    infinite = data.sel(length=-1.0)
    return [
        at_most(
            "infinite prompt, alpha inside the interval: distance to the limit",
            errors[:, inside].max(),
            1e-5,
        ),
        at_most(
            "infinite prompt, alpha outside the interval: distance to the limit",
            errors[:, ~inside & ~singular].max(),
            1e-5,
        ),
        at_most(
            "infinite prompt, Theta of rank one: distance to the limit",
            errors[:, singular].max(),
            1e-5,
        ),
        at_most(
            "infinite prompt, Theta of rank one, d = 5: distance to the limit",
            data.wide_limit_error,
            1e-5,
        ),
        at_most(
            "largest | |A|^2 - b^2 | along the flows",
            max(float(data.imbalance.max()), float(data.wide_imbalance)),
            1e-9,
        ),
        at_most(
            "largest limiting risk of the infinite prompt",
            max(float(data.limit_risk.max()), float(data.wide_limit_risk)),
            1e-9,
        ),
        at_least(
            "share of infinite flows that became stationary",
            min(float(data.stationary.min()), float(data.wide_stationary)),
            1.0,
            "accuracy",
        ),
        *_examine_beyond(data, "", "d = 2", data.epsilon),
        *_examine_beyond(data, "wide_", "d = 5, Theta of rank one", data.wide_epsilon),
        at_most(
            "largest increase of the risk along its own flow",
            np.diff(data.risk.values, axis=1).max(),
            1e-12,
            "accuracy",
        ),
        at_most(
            "initial risk of the infinite prompt against its formula: relative difference",
            np.abs(infinite.risk[0] / data.first_risk - 1),
            1e-9,
            "accuracy",
        ),
        at_most("last risk of the infinite prompt", np.abs(infinite.risk[-1]), 1e-9),
        at_most(
            "last b of the infinite prompt against tr(Sig^-2)^(1/4): relative difference",
            np.abs(infinite.b[-1] / data.b_limit - 1),
            1e-5,
        ),
    ]


def _examine_beyond(data: xr.Dataset, prefix: str, text: str, epsilon: xr.DataArray) -> list[Check]:
    """Checks of the excess risk at L(eps) and beyond."""
    L, before, excess = (
        data[f"{prefix}{n}"].values for n in ("prompt_length", "excess_before", "flow_excess")
    )
    eps, multiples = epsilon.values, data.multiple.values
    shown = ", ".join(f"{m:g}" for m in multiples)
    far = excess[:, -1] * L * multiples[-1] / float(data[f"{prefix}sharp_constant"])
    return [
        at_most(
            f"{text}: largest excess risk over eps of flows at {shown} times L(eps)",
            (excess / eps[:, None]).max(),
            1.0,
        ),
        at_most(
            f"{text}: largest ratio of that excess from each of these lengths to the next",
            (excess[:, 1:] / excess[:, :-1]).max(),
            0.9,
        ),
        at_least(
            f"{text}: control: smallest excess of the best head over eps at L(eps) - 1",
            (before / eps).min(),
            1.0,
            "control",
        ),
        at_most(
            f"{text}: L times excess at {multiples[-1]:g} L(eps) against the delta method",
            np.abs(far - 1).max(),
            0.05,
        ),
    ]


_D2 = [[1.0, 0.5], [0.5, 1.0]]


def _raised(risk: xr.DataArray) -> xr.DataArray:
    """The risk with one time step three times as large."""
    return risk.where(risk.time != risk.time[30], 3 * risk + 1e-6)


def panels(data: xr.Dataset) -> list[Panel]:
    """Lengths that suffice, and the read-out b along flows; dots mark where they enter the valley.

    After a flow ended nothing is known of it, and nothing is drawn.
    """
    needed = Series("$L(\\epsilon)$", data["epsilon"].values, data["prompt_length"].values, 0)
    times_, series = data["time"].values, []
    for i, L in enumerate(data["length"].values):
        flow = data.isel(length=i)
        b, entered = flow["b"].values, float(flow["valley_entered"])
        series.append(Series(length_label(L if L > 0 else math.inf), times_, b, i))
        if math.isfinite(entered):
            at = [np.searchsorted(times_, entered)]
            series.append(Series("", times_[at], b[at], i, "points", in_legend=False))
    sufficient, title = "smallest sufficient $L$", "flow within $\\epsilon$ of Bayes"
    drift = "descent, then the drift along the valley"
    return [
        Panel([needed], "$\\epsilon$", sufficient, title=title),
        Panel(series, "time $t$", "read-out $b(t)$", log_y=False, title=drift),
    ]


STUDY = Study(
    name="theorem-5.1",
    title="Gradient flow learns linear regression in context",
    source="Theorem 5.1 (v1), 5.2 (v2)",
    place=5.1,
    of_paper=True,
    statement="From the balanced initialisation the infinite-prompt flow converges to b = "
    "tr(Sig^-2)^{1/4}, A = Sig^-1/b, with zero risk. For every eps the flow at long enough prompts "
    "ends within eps of the Bayes risk.",
    formula=r"b_\infty = \operatorname{tr}(\Sigma^{-2})^{1/4},\qquad A_\infty = "
    r"\Sigma^{-1}/b_\infty",
    method="Flows of the exact risk, without sampling, for several covariances, random directions "
    "Theta, alpha inside and outside the stated interval, and Theta of rank one. Initialisation "
    "(9) allows a singular A; the flow leaves it at once, since A' = b Sig^2 + ... has full rank. "
    "L(eps) is the smallest length whose best head is within eps of the Bayes risk. Flows are "
    "integrated to their end at L(eps) and at multiples up to 1,000 L(eps), in two dimensions and, "
    "from a singular initialisation, in five. Far beyond L(eps) the excess is compared with the "
    "delta method on the valley b Sig A = I.",
    unknown="We could not access the new Theorem 5.1 of the second version.",
    quick={
        "covariances": [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.1], [0.1, 2.0]], _D2],
        "shares": [0.1, 0.9, 4.0],
        "singular_shares": [0.5],
        "dimension": 5,
        "epsilons": [0.3, 0.1, 0.03],
        "wide_epsilons": [0.3],
        "multiples": [1.0, 2.0, 10.0, 1000.0],
        "lengths": [1e2, 1e4, 1e9],
    },
    full={
        "covariances": [
            [[1.0, 0.0], [0.0, 1.0]],
            [[0.5, 0.1], [0.1, 2.0]],
            [[0.2, 0.0], [0.0, 1.0]],
            _D2,
        ],
        "shares": [0.01, 0.1, 0.5, 0.9, 1.5, 4.0, 16.0],
        "singular_shares": [0.1, 0.5, 0.9],
        "dimension": 5,
        "epsilons": [0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4],
        "wide_epsilons": [0.3, 0.1, 0.03],
        "multiples": [1.0, 2.0, 10.0, 1000.0],
        "lengths": [1e1, 1e2, 1e3, 1e4, 1e6, 1e9],
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="First: prompt length from which the flow ends within ε of the Bayes risk. Second: "
    "the read-out b along gradient flows, marked where they reach the minimisers' valley.",
    notices={
        **{f"{p}{n}": plus(1e-3) for p in ("", "wide_") for n in ("limit_error", "limit_risk")},
        **{f"{p}imbalance": plus(1e-3) for p in ("", "wide_")},
        **{f"{p}stationary": times(0.0) for p in ("", "wide_")},
        **{
            f"{p}{name}": mutants
            for p in ("", "wide_")
            for name, mutants in {
                "prompt_length": times(1.1, 0.9, 3),
                "excess_before": times(0.5),
                "flow_excess": times(1.1, 0.9, 3) + power_of("multiple", 0.1, -0.1, 0.3),
                "sharp_constant": times(1.1, 0.9),
            }.items()
        },
        "risk": (Mutant("raised at one time", _raised), *times(1.01), *plus(0.01)),
        "b": times(1.01, 0.99) + plus(0.01),
        "first_risk": times(1.01),
        "b_limit": times(1.01),
    },
    context={
        "valley_entered": "when flows reach the valley: shown, not claimed",
        "stopped_at": "when flows ended: shown, not claimed",
    },
    broken=half_scores_at_infinity,
    fewer={
        "covariances": [_D2],
        "shares": [0.9, 4.0],
        "dimension": 2,
        "epsilons": [0.3],
        "multiples": [1.0, 1000.0],
        "lengths": [1e9],
    },
)
