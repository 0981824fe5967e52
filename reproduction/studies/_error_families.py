"""Squared errors along L in three families of configurations, for Propositions 3.1 and 3.4.

* Scalar tokens N(0, sigma^2), queries N(0, 1), U = V = 1, for several sigma >= 1: the constants of
  the bound, and the power of sigma in them.
* Tokens N(0, G) in three dimensions, U not the identity: the rate at long lengths,
  L^{-theta} (ln L)^beta.
* Tokens of four atoms in two dimensions, sub-Gaussian and not Gaussian: the rate 1/L and its
  constant.

The curves are compared with averages over grids of queries and with `_independent_errors.py`.
"""

import itertools

import numpy as np
import xarray as xr

import largeprompt as lp
from reproduction.mutants import Mutant, plus, power_of, times
from reproduction.panels import LENGTH, Panel, Series
from reproduction.studies._independent_errors import (
    Atoms,
    ErrorOf,
    enumerated_error,
    gauss_hermite,
    limit_of_atoms,
    limit_of_gaussian,
)
from reproduction.study import Check, Config, Part, at_least, at_most, between, power

_OBJECTS: dict[ErrorOf, lp.AbstractQuantity] = {
    "output": lp.OutputError(),
    "gradient_U": lp.GradientError("U"),
    "gradient_V": lp.GradientError("V"),
}
_POWERS: dict[ErrorOf, tuple[int, int]] = {  # stated powers of sigma and of ln L
    "output": (6, 1),
    "gradient_V": (6, 1),
    "gradient_U": (12, 2),
}
_EXTRA: dict[ErrorOf, float] = {"output": 0.0, "gradient_V": 0.0, "gradient_U": 2.0}
SPECTRA = ((0.25, 0.15, 0.1), (0.5, 0.2, 0.1), (1.0, 1.0, 0.3), (4.0, 4.0, 4.0))  # of U'GU
_LONG = (1e2, 1e12, 1e25)
_HAND = (1, 2, 3)
_READ_OUT = np.array([[1.0, 0.5, 0.0], [0.0, -0.5, 1.0]])


_LAWS = {
    "signs": Atoms(np.array([[-1.0, -1], [-1, 1], [1, -1], [1, 1]]), np.full(4, 0.25)),
    "words": Atoms(
        np.array([[3.0, 0], [-1, 1], [-1, -1], [0, 0]]), np.array([0.1, 0.15, 0.15, 0.6])
    ),
}
_LAW_HEAD = (np.array([[1.0, 0.3], [-0.2, 0.8]]), np.array([[1.0, 0.5], [0.0, 0.7]]))


def _regular(step: float, end: float, d: int) -> Atoms:
    """Points and weights of the trapezoidal rule for N(0, I), for functions that are even in z.

    Only half of the grid is needed.
    """
    places = np.arange(-end, end + step / 2, step)
    points = np.stack(np.meshgrid(*[places] * d, indexing="ij"), -1).reshape(-1, d)
    mass = np.exp(-np.sum(points**2, 1) / 2)
    half = (len(points) + 1) // 2  # the others are their negatives; the last of these is zero
    mass[: half - 1] *= 2
    return Atoms(points[:half], mass[:half] / mass[:half].sum())


def _averaged(
    quantity: ErrorOf, head: lp.Head, mu: lp.AbstractMeasure, queries: Atoms, L: float
) -> float:
    """Average the error over a grid of queries.

    Unlike `concentration_curve`, this does not use the law of the score variance.
    """
    values = lp.expect(_OBJECTS[quantity], head, mu, queries.points, L).value
    return float(np.asarray(values) @ queries.weights)


def wide_case(spectrum: tuple[float, ...]) -> tuple[lp.Head, lp.Gaussian]:
    """A head and tokens N(0, G) in three dimensions such that U'GU has the given spectrum.

    U is neither diagonal nor symmetric.
    """
    G = np.diag([1.0, 0.6, 0.3])
    turn = np.linalg.qr(np.array([[1.0, 2, 0], [0, 1, 1], [1, 0, -1]]))[0]
    other = np.linalg.qr(np.array([[1.0, -1, 1], [2, 1, 0], [0, 1, 3]]))[0]
    U = np.diag(np.diag(G) ** -0.5) @ turn @ np.diag(np.sqrt(spectrum)) @ other.T
    return lp.Head(U=U, V=_READ_OUT), lp.Gaussian(np.zeros(3), G)


def _normal(d: int) -> lp.Gaussian:
    return lp.Gaussian(np.zeros(d), np.eye(d))


def measure(quantity: ErrorOf, config: Config) -> xr.Dataset:
    """Errors of one quantity in the three families."""
    return xr.merge(
        [_scalar(quantity, config), _wide(quantity), _discrete(quantity, config)],
        combine_attrs="drop",
    )


def _stacked(curves: list[xr.Dataset], dims: tuple[str, ...], shape: tuple[int, ...]) -> dict:
    names = {"value": "value", "error": "error", "local_slope": "slope"}
    return {
        short: (dims, np.array([curve[name].values for curve in curves]).reshape(*shape, -1))
        for name, short in names.items()
    }


def _scalar(quantity: ErrorOf, config: Config) -> xr.Dataset:
    lengths, sigmas = np.array(config["lengths"], np.float64), config["sigmas"]
    head, queries = lp.Head(U=[[1.0]], V=[[1.0]]), _regular(0.1, 12.0, 1)
    laws = [lp.Gaussian(np.zeros(1), s**2 * np.eye(1)) for s in sigmas]
    curves = [
        lp.concentration_curve(head, mu, _normal(1), lengths, _OBJECTS[quantity]) for mu in laws
    ]
    grid = lengths[np.unique(np.linspace(0, len(lengths) - 1, 5).astype(int))]
    flat = lp.concentration_curve(
        lp.Head(U=[[0.0]], V=[[1.0]]), _normal(1), _normal(1), [1.0], _OBJECTS[quantity]
    )
    data = xr.Dataset(
        {
            **_stacked(curves, ("sigma", "length"), (len(sigmas),)),
            "by_grid": (
                ("sigma", "grid_length"),
                [[_averaged(quantity, head, mu, queries, L) for L in grid] for mu in laws],
            ),
            "one_token": float(flat.value[0]),
            "c2": config["c2"],
        },
        {"length": lengths, "sigma": np.array(sigmas, np.float64), "grid_length": grid},
    )
    c1 = _constants(data.value.values, np.array(sigmas), lengths, config["c2"], quantity).max()
    formula = {
        "output": lambda s: lp.concentration.proposition_3_1(c1, config["c2"], s, lengths),
        "gradient_V": lambda s: lp.concentration.proposition_3_4(c1, config["c2"], s, lengths, "V"),
        "gradient_U": lambda s: lp.concentration.proposition_3_4(c1, config["c2"], s, lengths, "U"),
    }[quantity]
    return data.assign(c1=c1, bound=(("sigma", "length"), np.array([formula(s) for s in sigmas])))


def _wide(quantity: ErrorOf) -> xr.Dataset:
    cases = [wide_case(spectrum) for spectrum in SPECTRA]
    queries = _regular(1.0, 6.0, 3)
    curves = [
        lp.concentration_curve(*case, _normal(3), _LONG, _OBJECTS[quantity]) for case in cases
    ]
    gentle, tokens = cases[0]
    limit = limit_of_gaussian(
        quantity, np.asarray(gentle.U), _READ_OUT, np.asarray(tokens.covariance)
    )
    found = _stacked(curves, ("case", "long_length"), (len(cases),))
    return xr.Dataset(
        {
            **{f"wide_{name}": column for name, column in found.items()},
            "wide_by_grid": ("case", [_averaged(quantity, *c, queries, _LONG[0]) for c in cases]),
            "wide_limit": limit,
        },
        {
            "long_length": list(_LONG),
            "kappa": ("case", [max(spectrum) for spectrum in SPECTRA]),
            "multiplicity": ("case", [spectrum.count(max(spectrum)) for spectrum in SPECTRA]),
        },
    )


def _discrete(quantity: ErrorOf, config: Config) -> xr.Dataset:
    head, queries = lp.Head(U=_LAW_HEAD[0], V=_LAW_HEAD[1]), gauss_hermite(5, 2)
    laws, proxies = [], []
    for law, scale in itertools.product(_LAWS.values(), config["scales"]):
        # scale in multiples of the known sub-Gaussian parameter of the law
        unit = float(lp.Empirical(law.points, law.weights).subgaussian_proxy()) ** 0.5
        laws.append(Atoms(law.points * scale / unit, law.weights))
        proxies.append(scale)
    curves = [
        lp.concentration_curve(
            head,
            lp.Empirical(*law),
            lp.Empirical(*queries),
            config["law_lengths"],
            _OBJECTS[quantity],
        )
        for law in laws
    ]
    shape = (len(_LAWS), len(config["scales"]))
    dims = ("law", "scale")
    by_hand = [
        [enumerated_error(quantity, *_LAW_HEAD, law, queries, L) for L in _HAND] for law in laws
    ]
    limits = [limit_of_atoms(quantity, *_LAW_HEAD, law, queries) for law in laws]
    found = _stacked(curves, (*dims, "law_length"), shape)
    return xr.Dataset(
        {
            **{f"law_{name}": column for name, column in found.items()},
            "law_by_hand": ((*dims, "hand_length"), np.reshape(by_hand, (*shape, -1))),
            "law_limit": (dims, np.reshape(limits, shape)),
        },
        {
            "law": list(_LAWS),
            "scale": np.array(config["scales"], np.float64),
            "law_length": np.array(config["law_lengths"], np.float64),
            "hand_length": np.array(_HAND, np.float64),
        },
    )


def _constants(
    value: np.ndarray, sigma: np.ndarray, L: np.ndarray, c2: float, quantity: ErrorOf
) -> np.ndarray:
    """Smallest c_1 for each sigma, over lengths L >= 2: (..., sigma, length) to (..., sigma)."""
    powers, logs = _POWERS[quantity]
    usable = L >= 2
    L, s = L[usable], sigma[:, None]
    return (value[..., usable] / (s**powers * np.log(L) ** logs * L ** (-c2 / s**2))).max(-1)


def _powers_of_sigma(constants: np.ndarray, sigma: np.ndarray, stated: int) -> np.ndarray:
    """Power of sigma in the constants between neighbouring sigma, including the stated power."""
    return np.diff(np.log(constants), axis=-1) / np.diff(np.log(sigma)) + stated


def examine(data: xr.Dataset, quantity: ErrorOf, name: str) -> list[Check]:
    """Checks of one quantity; their statements begin with `name`."""
    at = {
        str(n): v.values for n, v in data.variables.items()
    }  # plain arrays are faster, and there are many mutants
    return [
        *_examine_scalar(at, quantity, name),
        *_examine_wide(at, quantity, name),
        *_examine_discrete(at, quantity, name),
    ]


def _near(
    text: str,
    found: np.ndarray | float,
    expected: np.ndarray | float,
    high: float,
    part: Part,
) -> Check:
    return at_most(text, np.abs(found / expected - 1).max(), high, part)


def _examine_scalar(at: dict[str, np.ndarray], quantity: ErrorOf, name: str) -> list[Check]:
    stated = _POWERS[quantity][0]
    sigma, L, value, c2 = at["sigma"], at["length"], at["value"], float(at["c2"])
    end = power(L[-1])
    constants = _constants(value, sigma, L, c2, quantity)
    powers = _powers_of_sigma(constants, sigma, stated)
    # beyond the last length the bound must fall more slowly than the error
    faster = (at["slope"][:, -1] + c2 / sigma**2).max()
    on_grid = value[:, np.searchsorted(L, at["grid_length"])]
    return [
        at_most(
            f"{name}: one c_1 for all sigma from 1 to {sigma[-1]:g}, c_2 = 1/2, L = 2 to {end}",
            constants.max(),
            10.0,
        ),
        at_most(
            f"{name}: largest power of sigma in the smallest constants (stated: {stated})",
            powers.max(),
            float(stated),
        ),
        at_least(
            f"{name}: smallest such power: the constants do grow", powers.min(), 0.5, "control"
        ),
        at_most(f"{name}: largest slope of error over bound at L = {end}", faster, 0.0),
        between(
            f"{name} at L = 1, U = 0: error where the bound is 0",
            at["one_token"],
            1 - 1e-9,
            1 + 1e-9,
            "boundary",
        ),
        between(
            f"{name}: smallest ratio of bound to error: the bound touches a curve",
            (at["bound"] / value).min(),
            1 - 1e-9,
            1 + 1e-9,
            "accuracy",
        ),
        _near(
            f"{name}: curves against a grid of queries, L = 2 to {end}",
            on_grid,
            at["by_grid"],
            1e-6,
            "accuracy",
        ),
        at_most(
            f"{name}: relative error estimate of the curves",
            (at["error"] / value).max(),
            1e-6,
            "accuracy",
        ),
    ]


def _log_exponent(kappa: np.ndarray, multiplicity: np.ndarray, extra: float) -> np.ndarray:
    """The exponent beta in L^{-theta} (ln L)^beta.

    It is k/2 for kappa > 1/2, k/2 + 1 at 1/2 and 0 below, where k is the multiplicity of kappa. The
    U-gradient has `extra` = 2 more.
    """
    return np.where(kappa < 0.5, 0.0, multiplicity / 2 + extra + np.where(kappa == 0.5, 1.0, 0.0))


def _examine_wide(at: dict[str, np.ndarray], quantity: ErrorOf, name: str) -> list[Check]:
    kappa, L, value, slope = (at[n] for n in ("kappa", "long_length", "wide_value", "wide_slope"))
    theta = np.where(kappa <= 0.5, 1.0, np.sqrt(0.25 + 1 / kappa) - 0.5)
    beta = _log_exponent(kappa, at["multiplicity"], _EXTRA[quantity])
    logs = np.log(L)
    away = np.abs(slope + theta[:, None] - beta[:, None] / logs)
    # slope = -theta + beta / ln L + c / (ln L)^2: two lengths give beta
    scaled = (slope + theta[:, None]) * logs**2
    seen = (scaled[:, -1] - scaled[:, -2]) / (logs[-1] - logs[-2])
    low, steep = kappa <= 1, kappa > 1
    end = power(L[-1])
    text = f"{name}, d = 3, U != I"
    return [
        at_most(
            f"{text}, L = {end}: |slope - (-theta + beta/ln L)|, kappa = 1/4 to 1",
            away[low, -1].max(),
            0.01,
        ),
        at_most(
            f"{text}: |power of ln L - beta|, kappa = 1/4 to 1",
            np.abs(seen - beta)[low].max(),
            0.25,
        ),
        at_most(
            f"{text}, kappa = 4: that distance at the last length over the one before",
            (away[steep, -1] / away[steep, -2]).max(),
            0.5,
        ),
        _near(
            f"{text}, kappa = 1/4, L = {end}: L times error against the delta method",
            value[0, -1] * L[-1],
            at["wide_limit"],
            1e-6,
            "claim",
        ),
        _near(
            f"{text}, L = {L[0]:g}: curves against a grid of queries",
            value[:, 0],
            at["wide_by_grid"],
            1e-2,
            "accuracy",
        ),
        at_most(
            f"{text}: relative error estimate", (at["wide_error"] / value).max(), 1e-2, "accuracy"
        ),
    ]


def _examine_discrete(at: dict[str, np.ndarray], quantity: ErrorOf, name: str) -> list[Check]:
    stated = _POWERS[quantity][0]
    scale, L, value = at["scale"], at["law_length"], at["law_value"]
    text = f"{name}, tokens of four atoms, d = 2"
    constants = _constants(value, scale, L, float(at["c2"]), quantity)
    return [
        at_most(f"{text}: one c_1 for both laws and all sigma, c_2 = 1/2", constants.max(), 10.0),
        at_most(
            f"{text}: largest power of sigma in the smallest constants (stated: {stated})",
            _powers_of_sigma(constants, scale, stated).max(),
            float(stated),
        ),
        at_most(
            f"{text}, L = {power(L[-1])}: |slope + 1|",
            np.abs(at["law_slope"][..., -1] + 1).max(),
            1e-3,
        ),
        _near(
            f"{text}, L = {power(L[-1])}: L times error against the delta method",
            value[..., -1] * L[-1],
            at["law_limit"],
            1e-6,
            "claim",
        ),
        _near(
            f"{text}: enumeration of all prompts of 1, 2 and 3 tokens",
            value[..., np.searchsorted(L, at["hand_length"])],
            at["law_by_hand"],
            1e-6,
            "accuracy",
        ),
        at_most(
            f"{text}: relative error estimate", (at["law_error"] / value).max(), 1e-6, "accuracy"
        ),
    ]


def panel(data: xr.Dataset, title: str) -> Panel:
    """Errors of scalar tokens for several sigma, and their bound with the fitted constant.

    Both are relative to the mean square of the limit: T = sigma^2 z, and its derivatives in U and V
    are the same at U = V = 1.
    """
    L, series = data["length"].values, []
    for i, sigma in enumerate(data["sigma"].values):
        here, scale, name = data.sel(sigma=sigma), sigma**4, f"$\\sigma={sigma:g}$"
        series.append(Series(name, L, here["value"].values / scale, i))
        bound = here["bound"].values / scale
        series.append(Series(f"bound, {name}", L, bound, i, "dashed", in_legend=False))
    title = f"{title}; dashed: bound, $c_1$ fitted here"
    return Panel(series, LENGTH, "relative mean squared error", title=title)


# settings that suffice to notice broken code; code that is not broken passes all checks with them
FEWER = {
    "lengths": [2.0, 1e6, 1e12],
    "law_lengths": [1.0, 2.0, 3.0, 1e9, 1e12],
    "sigmas": [1.0, 3.0],
    "scales": [1.0, 2.0],
}
NOTICES: dict[str, tuple[Mutant, ...]] = {
    "value": (
        *times(1.05, 0.95, 3, 400, each="sigma"),
        *power_of("length", 0.1, -0.1, 0.3, -0.3),
        *power_of("sigma", 3.0, -3.0),
    ),
    "error": plus(1.0, each="sigma"),
    "slope": plus(0.3) + times(0.1),
    "bound": times(1.05, 0.95, 3) + power_of("length", 0.1),
    "c2": times(1.5, 3),
    "by_grid": times(1.05, 0.95, 3, each="sigma") + power_of("grid_length", 0.1, -0.1),
    "one_token": times(1.01, 3),
    "wide_value": times(1.05, 0.95, 3, each="case") + power_of("long_length", 0.1, -0.1),
    "wide_error": plus(1.0, each="case"),
    "wide_slope": plus(0.1, -0.1, each="case") + times(1.1, 0.9),
    "wide_by_grid": times(1.05, 0.95, each="case"),
    "wide_limit": times(1.001),
    "law_value": (
        *times(1.001, 3, 400, each="law"),
        *times(1.001, each="scale"),
        *power_of("law_length", 0.1, -0.1, 0.3),
    ),
    "law_error": plus(1.0, each="law"),
    "law_slope": plus(0.1, -0.1, each="scale") + times(1.01, each="law"),
    "law_by_hand": times(1.001, each="hand_length"),
    "law_limit": times(1.001, each="law"),
}
CONTEXT = {"c1": "smallest constant for these curves, shown in the figure"}
