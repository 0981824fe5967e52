"""`largeprompt curve`, `largeprompt regime`, `largeprompt length`: errors of finite prompts."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from .._progress import progress_bar
from . import _options
from ._options import Covariance, Dim, Figure, Method, Out, Quantity, Query, Scale, Seed
from ._output import check_targets, print_table, use_float64, write_figure, write_netcdf

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
) -> None:
    """Squared error of a finite prompt against its length."""
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
    _print_curve(data)
    bound = None
    if np.any(lengths >= 2) and "sharp_exponent" in data.attrs:
        bound = bound_report(data)
        limit = "no larger one holds for all L"
        if not bound.attained:
            limit = f"below {bound.admissible_c2:.4g}, which no c_1 attains for all L"
        typer.echo(
            f"{bound.statement}: with c_2 = {bound.c2:.4g} ({limit}) the smallest c_1 on these "
            f"lengths is {bound.c1:.4g}; the bound exceeds the error by a factor "
            f"{bound.looseness[0]:.3g} (median)."
        )
    fit = None
    if method == "montecarlo" and len(lengths) > 1:
        fit = fit_slope(data)
        typer.echo(f"fitted slope {fit.slope:.4f}, 95% between {fit.low:.4f} and {fit.high:.4f}")
    if out is not None:
        write_netcdf(data, out)
    if figure is not None:
        from ..reproduce.report import plot_curve

        write_figure(plot_curve(data, bound=bound, fit=fit), figure)


def _print_curve(data: "xr.Dataset") -> None:
    attrs = data.attrs
    columns = (data[n].values for n in ("length", "value", "error", "local_slope"))
    rows = [
        [f"{L:.6g}", f"{value:.6e}", f"{error:.1e}", f"{slope:.4f}"]
        for L, value, error, slope in zip(*columns, strict=True)
    ]
    title = f"{attrs['quantity']}, d = {attrs['dim']}, {attrs['queries']} query ({attrs['method']})"
    print_table(["L", "squared error", "error of it", "local slope"], rows, title)
    if "kappa" in attrs:
        rate = f"L^-{attrs['sharp_exponent']:.4g}"
        if attrs.get("log_exponent"):
            rate += f" (ln L)^{attrs['log_exponent']:g}"
        typer.echo(f"kappa = {attrs['kappa']:.4g}, so the error falls like {rate}")
    if "upper_bound" in data and bool((data["upper_bound"] < math.inf).all()):
        constant = float(data["upper_bound"][0] * data["length"][0])
        typer.echo(f"proved for every L: the error is at most {constant:.4g} / L")


def regime(
    sigma: Annotated[float, typer.Argument(help="Standard deviation of the scores.")],
    length: Annotated[float, typer.Argument(help="Number of tokens of the prompt.")],
    figure: Figure = None,
) -> None:
    """Regime of the softmax weights: averaging, rare tokens or frozen."""
    check_targets(None, figure)
    from .. import concentration

    found = concentration.regime(sigma, length)
    typer.echo(f"{found.name}: sigma^2 / ln L = {found.x:.3g} (thresholds 2/3 and 2)")
    typer.echo(found.sentence)
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
) -> None:
    """Length of the shortest prompt whose squared error is below a tolerance.

    Exit status 1 if no prompt is long enough.
    """
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
    typer.echo(found.sentence)
    raise typer.Exit(code=0 if found.length < float("inf") else 1)
