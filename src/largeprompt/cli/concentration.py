"""`largeprompt curve`, `largeprompt regime`, `largeprompt length`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from .._files import FIGURES, check_target
from ._configuration import Covariance, Dim, Query, Scale, configuration
from ._output import use_float64, working, write_figure, write_netcdf

Quantity = Annotated[str, typer.Option("--quantity", help="output, gradient_U or gradient_V.")]
Figure = Annotated[Path | None, typer.Option("--figure", help="Draw to this .pdf, .png or .svg.")]


def curve(
    dim: Dim = 5,
    covariance: Covariance = "identity",
    scale: Scale = 0.5,
    query: Query = "gaussian",
    quantity: Quantity = "output",
    shortest: Annotated[float, typer.Option("--from", help="Shortest prompt.")] = 2.0,
    longest: Annotated[float, typer.Option("--to", help="Longest prompt.")] = 1e6,
    points: Annotated[int, typer.Option(help="Number of lengths, equally spaced in ln L.")] = 13,
    method: Annotated[str, typer.Option(help="exact, or montecarlo (samples prompts).")] = "exact",
    seed: Annotated[int, typer.Option(help="Seed, where random points or prompts are used.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the data to this .nc.")] = None,
    figure: Figure = None,
) -> None:
    """Error of a finite prompt against its length, exact and without sampling by default."""
    if out is not None:
        check_target(out, "data", (".nc",))
    if figure is not None:
        check_target(figure, "figure", FIGURES)
    use_float64()
    import jax
    import numpy as np

    from ..concentration import bound_report, concentration_curve, fit_slope
    from ..concentration._quantities import checked_quantity

    if points < 1 or not 1 <= shortest <= longest:
        raise ValueError(
            f"lengths need --points >= 1 and 1 <= --from <= --to; received {points}, {shortest:g}, {longest:g}. To fix: "
            "swap or enlarge them."
        )
    if method != "exact" and method != "montecarlo":
        raise ValueError(
            f"--method must be exact or montecarlo; received {method!r}. To fix: name one of them."
        )
    wanted = checked_quantity(quantity)
    head, mu, nu = configuration(dim, covariance, scale, query)
    lengths = np.geomspace(shortest, longest, points)
    if method == "montecarlo":
        lengths = np.unique(np.round(lengths))
    # sampling shows a bar of its own
    with working("computing the curve") if method == "exact" else nullcontext():
        data = concentration_curve(
            head, mu, nu, lengths, wanted, method, jax.random.key(seed), progress=True
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
            f"lengths is {bound.c1:.4g}; the bound is loose by a factor {bound.looseness[0]:.3g} (median)."
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


def _print_curve(data) -> None:
    from rich.console import Console
    from rich.table import Table

    attrs = data.attrs
    table = Table(
        title=f"{attrs['quantity']}, d = {attrs['dim']}, {attrs['queries']} query ({attrs['route']})"
    )
    for name in ("L", "squared error", "error of it", "local slope"):
        table.add_column(name, justify="right")
    rows = zip(*(data[n].values for n in ("length", "value", "error", "local_slope")), strict=True)
    for L, value, error, slope in rows:
        table.add_row(f"{L:.6g}", f"{value:.6e}", f"{error:.1e}", f"{slope:.4f}")
    Console().print(table)
    if "kappa" in attrs:
        typer.echo(
            f"kappa = {attrs['kappa']:.4g}, so the slope tends to -{attrs['sharp_exponent']:.4g}"
        )


def regime(
    sigma: Annotated[float, typer.Argument(help="Standard deviation of the scores, sqrt(u'Gu).")],
    length: Annotated[float, typer.Argument(help="Number of tokens of the prompt.")],
    figure: Figure = None,
) -> None:
    """Which regime softmax is in at a score deviation and a prompt length."""
    if figure is not None:
        check_target(figure, "figure", FIGURES)
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
    seed: Annotated[int, typer.Option(help="Seed, where random points are used.")] = 0,
) -> None:
    """The shortest prompt whose squared error is below a tolerance; exit status 1 if there is none."""
    use_float64()
    import jax

    from ..concentration import prompt_length_for
    from ..concentration._quantities import checked_quantity

    head, mu, nu = configuration(dim, covariance, scale, query)
    with working("searching"):
        found = prompt_length_for(
            head,
            mu,
            nu,
            tolerance,
            relative=relative,
            quantity=checked_quantity(quantity),
            key=jax.random.key(seed),
        )
    typer.echo(found.sentence)
    raise typer.Exit(code=0 if found.length < float("inf") else 1)
