"""`largeprompt curve`, `largeprompt regime`, `largeprompt length`: errors of finite prompts."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .._message import error
from .._progress import progress_bar
from ._output import (
    Answer,
    AsCsv,
    AsJson,
    check_form,
    check_targets,
    in_options,
    write_figure,
    write_netcdf,
)

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from ..attention import Head
    from ..measures import AbstractMeasure, Gaussian
    from ..prompts import AbstractMethod, AbstractQuantity

QuantityName = Literal["output", "gradient-U", "gradient-V"]
QueryName = Literal["gaussian", "tokens", "sphere"]

Dim = Annotated[
    int | None,
    typer.Option(
        "--dim", "-d", min=1, help="Dimension of tokens and queries: 5, or that of --covariance."
    ),
]
Covariance = Annotated[
    Path | None,
    typer.Option(
        "--covariance",
        metavar="FILE",
        help="Covariance of the tokens, a matrix in a .npy, .csv or .txt file: the identity by "
        "default.",
    ),
]
Scale = Annotated[
    float, typer.Option("--scale", "-s", help="Scale of the head: U = scale x identity.")
]
Query = Annotated[
    QueryName,
    typer.Option(
        "--query", help="Law of the query: N(0, I), the law of the tokens, or the sphere |z|^2 = d."
    ),
]
Quantity = Annotated[
    QuantityName,
    typer.Option("--quantity", help="Output of attention, or its derivative in U or V."),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed, where random numbers are used.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the data to this .nc file.")]
FigureFile = Annotated[
    Path | None, typer.Option("--figure", help="Draw to this .pdf, .png or .svg file.")
]


def _quantity(name: QuantityName) -> "AbstractQuantity":
    from ..prompts import GradientError, OutputError

    return OutputError() if name == "output" else GradientError("U" if name[-1] == "U" else "V")


def _method(name: Literal["exact", "montecarlo"], query: QueryName, seed: int) -> "AbstractMethod":
    """The method of that name; queries on a sphere may need points."""
    import jax

    from ..prompts import Exact, MonteCarlo, QuasiMonteCarlo

    key = jax.random.key(seed)
    if name == "montecarlo":
        return MonteCarlo(key, progress=True)
    return QuasiMonteCarlo(key) if query == "sphere" else Exact()


def _configuration(
    dim: int | None, covariance: Path | None, scale: float, query: QueryName
) -> tuple["Head", "Gaussian", "AbstractMeasure"]:
    """Head, law of the tokens and law of the query, in 64-bit mode."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    from ..attention import Head
    from ..measures import Gaussian, Sphere

    cov = np.eye(dim or 5) if covariance is None else _matrix(covariance)
    d = len(cov)
    if dim is not None and dim != d:
        raise ValueError(f"--dim must be that of --covariance, {d}, or left out; received {dim}")
    if not math.isfinite(scale):
        raise ValueError(f"--scale must be finite; received {scale}")
    with in_options("--covariance: "):
        mu = Gaussian(np.zeros(d), cov)
    match query:
        case "gaussian":
            nu = Gaussian(np.zeros(d), np.eye(d))
        case "tokens":
            nu = mu
        case "sphere":
            nu = Sphere(d, d**0.5)
    return Head(U=scale * np.eye(d), V=np.eye(d)), mu, nu


def _matrix(path: Path) -> "np.ndarray":
    import numpy as np

    try:
        if path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            delimiter = "," if path.suffix == ".csv" else None
            found = np.loadtxt(path, delimiter=delimiter, ndmin=2, encoding="utf-8")
        if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size:
            raise ValueError(f"shape {found.shape}")
    except (OSError, ValueError) as cause:
        raise error(
            "--covariance must be a file with a square matrix (.npy, .csv or .txt)",
            f"{str(path)!r} ({cause})",
        ) from cause
    return found


def curve(
    dim: Dim = None,
    covariance: Covariance = None,
    scale: Scale = 0.5,
    query: Query = "gaussian",
    quantity: Quantity = "output",
    shortest: Annotated[float, typer.Option("--from", help="Shortest prompt.")] = 2.0,
    longest: Annotated[float, typer.Option("--to", help="Longest prompt.")] = 1e6,
    points: Annotated[
        int, typer.Option(min=1, help="Number of lengths, equally spaced in ln L.")
    ] = 13,
    method: Annotated[
        Literal["exact", "montecarlo"],
        typer.Option(help="Exact in the prompt length, or an average over sampled prompts."),
    ] = "exact",
    seed: Seed = 0,
    out: Out = None,
    figure: FigureFile = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Squared error of a finite prompt against its length.

    Example: largeprompt curve --dim 5 --scale 0.5 --to 1e4 --points 5
    """
    check_form(as_json, as_csv)
    check_targets(out, figure)
    if not 1 <= shortest <= longest < math.inf:
        raise ValueError(
            "--from and --to must be finite, with 1 <= --from <= --to; "
            f"received {shortest:g} and {longest:g}"
        )
    head, mu, nu = _configuration(dim, covariance, scale, query)
    import numpy as np

    from ..concentration import bound_report, concentration_curve, fit_slope

    sampled = method == "montecarlo"
    lengths = np.geomspace(shortest, longest, points)
    if sampled:
        lengths = np.unique(np.round(lengths))
    with in_options(), progress_bar("computing the curve", shown=not sampled):
        how = _method(method, query, seed)  # sampling has its own bar
        data = concentration_curve(head, mu, nu, lengths, _quantity(quantity), how)
    answer = _curve_answer(data)
    bound = fit = None
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
    if sampled and len(lengths) > 1:
        fit = fit_slope(data)
        answer.note(
            f"fitted slope {fit.slope:.4f}, 95% between {fit.low:.4f} and {fit.high:.4f}",
            fitted_slope=fit.slope,
        )
    answer.print(as_json, as_csv)
    if out is not None:
        write_netcdf(data, out)
    if figure is not None:
        from .. import plots

        write_figure(figure, plots.curve, data, bound=bound, fit=fit)


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
    figure: FigureFile = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Regime of the softmax weights: self-averaging, rare tokens or frozen.

    Example: largeprompt regime 2.5 1000
    """
    check_form(as_json, as_csv)
    check_targets(None, figure)
    from .. import concentration

    with in_options():
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
    answer.print(as_json, as_csv)
    if figure is not None:
        from .. import plots

        data = concentration.regime_map(max(8.0, 1.25 * sigma), min(max(1e8, 10 * length), 1e15))
        marks = [(sigma, max(length, 2.0), "here")]
        write_figure(figure, plots.regimes, data, marks=marks)


def length(
    tolerance: Annotated[float, typer.Argument(help="Squared error to reach.")],
    dim: Dim = None,
    covariance: Covariance = None,
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
    if relative and quantity != "output":
        raise ValueError(f"--relative goes with --quantity output; received {quantity}")
    head, mu, nu = _configuration(dim, covariance, scale, query)
    from ..concentration import prompt_length_for

    how = _method("exact", query, seed)
    with in_options():
        found = prompt_length_for(
            head, mu, nu, tolerance, relative=relative, quantity=_quantity(quantity), method=how
        )
    answer = Answer()
    answer.note(
        found.sentence, length=found.length, squared_error=found.error, tolerance=found.tolerance
    )
    answer.print(as_json, as_csv)
    raise typer.Exit(code=0 if found.length < math.inf else 1)
