"""`largeprompt risk`, `largeprompt flow`, `largeprompt train`: linear regression in context."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .._extras import require
from .._files import atomic_write
from .._progress import progress_bar
from ._options import Covariance, Dim, Figure, Out, covariance_matrix
from ._output import check_targets, print_table, use_float64, write_figure, write_netcdf

if TYPE_CHECKING:
    import xarray as xr

    from ..icl import LinearRegression

Lengths = Annotated[
    str, typer.Option("--lengths", "-L", help="Prompt lengths, as in 10,100,1e9,inf.")
]
Noise = Annotated[float, typer.Option("--noise", help="Variance tau^2 of the label noise.")]
TaskScale = Annotated[float, typer.Option("--task-scale", help="Covariance of w: scale x I.")]
_OPTIONS = "options.json"


def _lengths(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            "--lengths must be numbers separated by commas, as in 10,100,1e9,inf; "
            f"received {text!r}"
        ) from error


def _task(dim: int, covariance: str, noise: float, task_scale: float) -> "LinearRegression":
    import numpy as np

    from ..icl import LinearRegression

    cov = covariance_matrix(covariance, dim)
    return LinearRegression(cov, task_scale * np.eye(len(cov)), noise)


def risk(
    dim: Dim = 5,
    covariance: Covariance = "identity",
    noise: Noise = 0.1,
    task_scale: TaskScale = 0.2,
    lengths: Lengths = "10,30,100,300,1000",
    seed: Annotated[int, typer.Option(help="Seed of the average for ridge regression.")] = 0,
    out: Out = None,
    figure: Figure = None,
) -> None:
    """Risk of linear regression in context: best softmax head, best linear head and ridge."""
    check_targets(out, figure)
    wanted = _lengths(lengths)
    use_float64()
    import jax

    from ..dynamics import risk_curves
    from ..prompts import MonteCarlo

    task = _task(dim, covariance, noise, task_scale)
    with progress_bar("minimising"):
        data = risk_curves(task, wanted, MonteCarlo(jax.random.key(seed)))
    columns = [data[n].values for n in ("length", "softmax", "linear", "ridge", "ridge_error")]
    rows = [
        [f"{L:g}", f"{s:.6f}", f"{li:.6f}", f"{r:.6f} ± {e:.1e}"]
        for L, s, li, r, e in zip(*columns, strict=True)
    ]
    print_table(["L", "softmax", "linear", "ridge (Bayes)"], rows, "risk of the best head")
    typer.echo(f"noise floor {data.attrs['bayes_risk']:g}; heads are exact, ridge is sampled")
    if out is not None:
        write_netcdf(data, out)
    if figure is not None:
        from ..reproduce.report import plot_risks

        write_figure(plot_risks(data), figure)


def flow(
    dim: Dim = 5,
    covariance: Covariance = "rho:0.5",
    noise: Noise = 0.0,
    task_scale: TaskScale = 1.0,
    lengths: Lengths = "100,10000,inf",
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Scale of the balanced initialisation; by default half the largest admissible one."
        ),
    ] = None,
    attention: Annotated[
        Literal["softmax", "linear"], typer.Option(help="Kind of attention to train.")
    ] = "softmax",
    until: Annotated[
        float | None, typer.Option(help="Stop at this time instead of at stationarity.")
    ] = None,
    out: Out = None,
    figure: Figure = None,
) -> None:
    """Gradient flow of the exact risk from the balanced initialisation.

    Exit status 1 if a flow did not become stationary.
    """
    check_targets(out, figure)
    wanted = _lengths(lengths)
    use_float64()
    from ..dynamics import admissible_alpha, balanced_init, flow_curves

    task = _task(dim, covariance, noise, task_scale)
    largest = admissible_alpha(task)
    start = balanced_init(task, largest / 2 if alpha is None else alpha)
    typer.echo(
        f"balanced initialisation: alpha = {float(start.b):.4g}, admissible below {largest:.4g}"
    )
    with progress_bar("integrating the flows"):
        data = flow_curves(task, start, wanted, attention, until=until)
    _print_flows(data)
    if out is not None:
        write_netcdf(data, out)
    if figure is not None:
        from ..reproduce.report import plot_flow

        write_figure(plot_flow(data), figure)
    arrived = until is not None or bool((data["phase"] == "stationary").all())
    raise typer.Exit(code=0 if arrived else 1)


def _print_flows(data: "xr.Dataset") -> None:
    names = ("length", "phase", "valley_entered", "stopped", "final_risk", "gradient_norm")
    rows = []
    for (L, phase, entered, stopped, risk, norm), b in zip(
        zip(*(data[n].values for n in names), strict=True), data["b"].values[:, -1], strict=True
    ):
        # an infinite prompt ends where it meets the valley: nothing drifts
        when = f"{entered:.4g}" if entered >= 0 else "no drift" if math.isinf(L) else "never"
        rows.append(
            [f"{L:g}", str(phase), when, f"{stopped:.4g}", f"{risk:.6g}", f"{norm:.1e}", f"{b:.4f}"]
        )
    heads = ["L", "stopped in phase", "valley entered", "time", "risk", "|gradient|", "b"]
    print_table(heads, rows, f"gradient flow, {data.attrs['attention']} attention")
    for status in json.loads(data.attrs["status"]):
        typer.echo(status)


def train(
    variant: Annotated[
        Literal["paper", "released-code", "theory"],
        typer.Option(help="The experiment as described, as distributed, or as in the theory."),
    ] = "paper",
    steps: Annotated[int, typer.Option(help="Steps of SGD; the paper has 300,000.")] = 3000,
    lengths: Lengths = "10,100,1000",
    seeds: Annotated[int, typer.Option(help="Independent repetitions.")] = 1,
    method: Annotated[
        Literal["exact", "scores", "whole-tokens"],
        typer.Option(
            help="Gradients exact given task and query, or sampled from scores alone, or from "
            "whole tokens."
        ),
    ] = "scores",
    full: Annotated[bool, typer.Option("--full", help="Steps and lengths of the paper.")] = False,
    seed: Annotated[int, typer.Option(help="Seed; the paper has 327.")] = 327,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder for checkpoints, data and figures.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Continue the run in this folder, with its options."),
    ] = None,
) -> None:
    """Train softmax and linear attention as in the paper's experiment.

    A run that was stopped continues with --resume and gives the same result.
    """
    options = {
        "variant": variant,
        "steps": steps,
        "lengths": _lengths(lengths),
        "seeds": seeds,
        "method": method,
        "seed": seed,
    }
    folder = _train_folder(out, resume)
    if resume is not None:
        options = _saved_options(resume)
    if folder is not None:
        require("matplotlib", extra="report")
    use_float64()
    from ..dynamics import published_experiment
    from ..dynamics.experiment import PUBLISHED
    from ..prompts import Exact, MonteCarlo

    if full and resume is None:
        options |= {"steps": PUBLISHED.steps, "lengths": list(PUBLISHED.lengths)}
    if folder is not None and resume is None:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / _OPTIONS) as name:
            Path(name).write_text(json.dumps(options))
    estimators = {
        "exact": Exact(),
        "scores": MonteCarlo(),
        "whole-tokens": MonteCarlo(whole_tokens=True),
    }
    try:
        data = published_experiment(
            folder=folder, **options | {"method": estimators[options["method"]]}
        )
    except KeyboardInterrupt:
        if folder is not None:
            typer.echo(f"stopped; continue with: largeprompt train --resume {folder}", err=True)
        raise
    _print_experiment(data)
    if folder is not None:
        from ..reproduce.report import plot_experiment

        write_netcdf(data, folder / "experiment.nc")
        for suffix in (".png", ".pdf"):
            write_figure(plot_experiment(data), folder / f"experiment{suffix}")
    raise typer.Exit(code=0 if _all_finite(data) else 1)


def _all_finite(data: "xr.Dataset") -> bool:
    """Whether every final risk is finite; print the status of all runs if not."""
    import numpy as np

    good = bool(np.all(np.isfinite(data["final_risk"].values)))
    if not good:
        for status in dict.fromkeys(str(words) for words in data["status"].values.ravel()):
            typer.echo(status, err=True)
    return good


def _train_folder(out: Path | None, resume: Path | None) -> Path | None:
    if out is not None and resume is not None:
        raise ValueError("--out and --resume exclude each other; received both")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"--out must be a new or empty folder; received {str(out)!r}. "
            "To fix: choose another one, or pass --resume."
        )
    return out if resume is None else resume


def _saved_options(folder: Path) -> dict:
    try:
        return json.loads((folder / _OPTIONS).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            "--resume must name a folder made by `largeprompt train --out`; "
            f"received {str(folder)!r} ({error})"
        ) from error


def _print_experiment(data: "xr.Dataset") -> None:
    final = (
        data["final_risk"].mean("seed") if "seed" in data["final_risk"].dims else data["final_risk"]
    )
    rows = []
    for L in data["length"].values:
        trained = [float(final.sel(length=L, attention=a)) for a in ("softmax", "linear")]
        best = [
            float(data["minimiser_risk"].sel(length=L, attention=a)) for a in ("softmax", "linear")
        ]
        ridge = float(data["bayes_risk"].sel(length=L))
        values = (trained[0], best[0], trained[1], best[1], ridge)
        rows.append([f"{L:g}", *(f"{value:.4f}" for value in values)])
    heads = ["L", "softmax, trained", "best", "linear, trained", "best", "ridge (Bayes)"]
    if "seed" in data["route_ratio"].dims:
        from ..dynamics.experiment import BLOCK_CLASS

        arrived, runs = (data["route_ratio"] < BLOCK_CLASS).sum("seed"), data.sizes["seed"]
        for a in ("softmax", "linear"):
            heads.append(f"{a}, in block form")
            for row, count in zip(rows, arrived.sel(attention=a).values, strict=True):
                row.append(f"{count} of {runs}")
    print_table(heads, rows, f"final test risk, variant {data.attrs['variant']}")
