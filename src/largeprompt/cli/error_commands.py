"""`largeprompt curve`, `largeprompt regime`, `largeprompt length`: errors of finite prompts."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from .._progress import progress_bar
from . import _options
from ._answer import Answer, AsCsv, AsJson, check_form
from ._options import Covariance, Dim, Figure, Method, Out, Quantity, Query, Scale, Seed
from ._output import check_targets, use_float64, write_figure, write_netcdf

if TYPE_CHECKING:
    import xarray as xr


def curve(
    dim: Dim = 5,
    covariance: Covariance = "identity",
    scale: Scale = 0.5,
    query: Query = "gaussian",
    quantity: Quantity = "output",
    shortest: Annotated[float, typer.Option("--from", help="Shortest prompt.")] = 2.0,
    longest: Annotated[float, typer.Option("--to", help="Longest prompt.")] = 1e6,
    points: Annotated[int, typer.Option(help="Number of lengths, equally spaced in ln L.")] = 13,
    method: Method = "exact",
    seed: Seed = 0,
    out: Out = None,
    figure: Figure = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Squared error of a finite prompt against its length.

    Example: largeprompt curve --dim 5 --scale 0.5 --to 1e4 --points 5
    """
    check_form(as_json, as_csv)
    check_targets(out, figure)
    use_float64()
    import numpy as np

    from ..concentration import bound_report, concentration_curve, fit_slope

    if points < 1 or not 1 <= shortest <= longest:
        raise ValueError(
            "lengths need --points >= 1 and 1 <= --from <= --to; "
            f"received {points}, {shortest:g}, {longest:g}"
        )
    head, mu, nu = _options.configuration(dim, covariance, scale, query)
    lengths = np.geomspace(shortest, longest, points)
    if method == "montecarlo":
        lengths = np.unique(np.round(lengths))
    with progress_bar(
        "computing the curve", shown=method != "montecarlo"
    ):  # sampling has its own bar
        data = concentration_curve(
            head,
            mu,
            nu,
            lengths,
            _options.quantity_object(quantity),
            _options.method_object(method, query, seed),
        )
    answer = _curve_answer(data)
    bound = None
    if np.any(lengths >= 2) and "sharp_exponent" in data.attrs:
        bound = bound_report(data)
        limit = "no larger one holds for all L"
        if not bound.attained:
            limit = f"below {bound.admissible_c2:.4g}, which no c_1 attains for all L"
        answer.note(
            f"{bound.statement}: with c_2 = {bound.c2:.4g} ({limit}) the smallest c_1 on these "
            f"lengths is {bound.c1:.4g}; the bound exceeds the error by a factor "
            f"{bound.looseness[0]:.3g} (median).",
            c1=bound.c1,
            c2=bound.c2,
        )
    fit = None
    if method == "montecarlo" and len(lengths) > 1:
        fit = fit_slope(data)
        answer.note(
            f"fitted slope {fit.slope:.4f}, 95% between {fit.low:.4f} and {fit.high:.4f}",
            fitted_slope=fit.slope,
        )
    answer.print(as_json=as_json, as_csv=as_csv)
    if out is not None:
        write_netcdf(data, out)
    if figure is not None:
        from ..reproduce.report import plot_curve

        write_figure(plot_curve(data, bound=bound, fit=fit), figure)


def _curve_answer(data: "xr.Dataset") -> Answer:
    attrs = data.attrs
    answer = Answer(
        f"{attrs['quantity']}, d = {attrs['dim']}, {attrs['queries']} query ({attrs['method']})"
    )
    answer.column("L", "length", data["length"].values, "{:.6g}".format)
    answer.column("squared error", "squared_error", data["value"].values, "{:.6e}".format)
    answer.column("error of it", "error", data["error"].values, "{:.1e}".format)
    answer.column("local slope", "local_slope", data["local_slope"].values, "{:.4f}".format)
    if "kappa" in attrs:
        rate = f"L^-{attrs['sharp_exponent']:.4g}"
        if attrs.get("log_exponent"):
            rate += f" (ln L)^{attrs['log_exponent']:g}"
        answer.note(
            f"kappa = {attrs['kappa']:.4g}, so the error falls like {rate}",
            kappa=attrs["kappa"],
            sharp_exponent=attrs["sharp_exponent"],
        )
    if "upper_bound" in data and bool((data["upper_bound"] < math.inf).all()):
        constant = float(data["upper_bound"][0] * data["length"][0])
        answer.note(
            f"proved for every L: the error is at most {constant:.4g} / L",
            proved_constant=constant,
        )
    return answer


def regime(
    sigma: Annotated[float, typer.Argument(help="Standard deviation of the scores.")],
    length: Annotated[float, typer.Argument(help="Number of tokens of the prompt.")],
    figure: Figure = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Regime of the softmax weights: self-averaging, rare tokens or frozen.

    Example: largeprompt regime 2.5 1000
    """
    check_form(as_json, as_csv)
    check_targets(None, figure)
    from .. import concentration

    found = concentration.regime(sigma, length)
    answer = Answer()
    answer.note(
        f"{found.name}: sigma^2 / ln L = {found.x:.3g} (thresholds 2/3 and 2)",
        sigma=sigma,
        length=length,
        regime=found.name,
        x=found.x,
    )
    answer.note(
        found.sentence,
        effective_tokens=1 / found.p2 if found.p2 else math.inf,
        p2=found.p2,
        relative_error=found.relative_error,
    )
    answer.print(as_json=as_json, as_csv=as_csv)
    if figure is not None:
        from ..reproduce.report import plot_regimes

        data = concentration.regime_map(max(8.0, 1.25 * sigma), min(max(1e8, 10 * length), 1e15))
        write_figure(plot_regimes(data, marks=[(sigma, max(length, 2.0), "here")]), figure)


def length(
    tolerance: Annotated[float, typer.Argument(help="Squared error to reach.")],
    dim: Dim = 5,
    covariance: Covariance = "identity",
    scale: Scale = 0.5,
    query: Query = "gaussian",
    quantity: Quantity = "output",
    relative: Annotated[
        bool, typer.Option("--relative", help="Tolerance as a fraction of E |T|^2.")
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Length of the shortest prompt whose squared error is below a tolerance.

    Exit status 1 if no prompt is long enough.

    Example: largeprompt length 0.01 --relative --dim 2
    """
    check_form(as_json, as_csv)
    use_float64()
    from ..concentration import prompt_length_for

    head, mu, nu = _options.configuration(dim, covariance, scale, query)
    with progress_bar("searching"):
        found = prompt_length_for(
            head,
            mu,
            nu,
            tolerance,
            relative=relative,
            quantity=_options.quantity_object(quantity),
            method=_options.method_object("exact", query, seed),
        )
    answer = Answer()
    answer.note(
        found.sentence, length=found.length, squared_error=found.error, tolerance=found.tolerance
    )
    answer.print(as_json=as_json, as_csv=as_csv)
    raise typer.Exit(code=0 if found.length < float("inf") else 1)
