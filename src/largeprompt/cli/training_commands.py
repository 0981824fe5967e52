"""`largeprompt risk`, `largeprompt flow`, `largeprompt train`: linear regression in context."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .._extras import require
from .._files import atomic_write
from .._progress import progress_bar
from ._answer import Answer, AsCsv, AsJson, check_form
from ._options import Covariance, Dim, Figure, Out, covariance_matrix
from ._output import check_targets, use_float64, write_figure, write_netcdf
from ._signals import uncovered_interruptions

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
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Risk of linear regression in context: best softmax head, best linear head and ridge.

    Example: largeprompt risk --dim 5 --noise 0.1 --lengths 10,100
    """
    check_form(as_json, as_csv)
    check_targets(out, figure)
    wanted = _lengths(lengths)
    use_float64()
    import jax

    from ..dynamics import risk_curves
    from ..prompts import MonteCarlo

    task = _task(dim, covariance, noise, task_scale)
    with progress_bar("minimising"):
        data = risk_curves(task, wanted, MonteCarlo(jax.random.key(seed)))
    answer = Answer("risk of the best head")
    answer.column("L", "length", data["length"].values, "{:g}".format)
    for name, heading in (
        ("softmax", "softmax"),
        ("linear", "linear"),
        ("ridge", "ridge (Bayes)"),
    ):
        answer.column(heading, name, data[name].values, "{:.6f}".format)
    answer.column("error of it", "ridge_error", data["ridge_error"].values, "{:.1e}".format)
    floor = data.attrs["bayes_risk"]
    answer.note(f"noise floor {floor:g}; heads are exact, ridge is sampled", noise_floor=floor)
    answer.print(as_json=as_json, as_csv=as_csv)
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
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Gradient flow of the exact risk from the balanced initialisation.

    Exit status 1 if a flow did not become stationary.

    Example: largeprompt flow --dim 1 --covariance identity --lengths 100,inf
    """
    check_form(as_json, as_csv)
    check_targets(out, figure)
    wanted = _lengths(lengths)
    use_float64()
    from ..dynamics import admissible_alpha, balanced_init, flow_curves

    task = _task(dim, covariance, noise, task_scale)
    largest = admissible_alpha(task)
    start = balanced_init(task, largest / 2 if alpha is None else alpha)
    with progress_bar("integrating the flows"):
        data = flow_curves(task, start, wanted, attention, until=until)
    answer = _flow_answer(data)
    answer.note(
        f"balanced initialisation: alpha = {float(start.b):.4g}, admissible below {largest:.4g}",
        alpha=float(start.b),
        admissible_alpha=largest,
    )
    answer.print(as_json=as_json, as_csv=as_csv)
    if out is not None:
        write_netcdf(data, out)
    if figure is not None:
        from ..reproduce.report import plot_flow

        write_figure(plot_flow(data), figure)
    arrived = until is not None or bool((data["phase"] == "stationary").all())
    raise typer.Exit(code=0 if arrived else 1)


def _flow_answer(data: "xr.Dataset") -> Answer:
    answer = Answer(f"gradient flow, {data.attrs['attention']} attention")
    answer.column("L", "length", data["length"].values, "{:g}".format)
    answer.column("stopped in phase", "phase", map(str, data["phase"].values))
    answer.column(
        "valley entered",
        "valley_entered",
        data["valley_entered"].values,
        # an infinite prompt ends where it meets the valley: nothing drifts
        lambda time: "never" if math.isinf(time) else f"{time:.4g}",
    )
    answer.column("time", "time", data["stopped"].values, "{:.4g}".format)
    answer.column("risk", "risk", data["final_risk"].values, "{:.6g}".format)
    answer.column("|gradient|", "gradient_norm", data["gradient_norm"].values, "{:.1e}".format)
    answer.column("b", "b", data["b"].values[:, -1], "{:.4f}".format)
    for status in json.loads(data.attrs["status"]):
        answer.note(status)
    return answer


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
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Train softmax and linear attention as in the paper's experiment.

    A run that was stopped continues with --resume and gives the same result.

    Example: largeprompt train --steps 200 --lengths 10,100
    """
    check_form(as_json, as_csv)
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
        with uncovered_interruptions():
            data = published_experiment(
                folder=folder, **options | {"method": estimators[options["method"]]}
            )
    except KeyboardInterrupt:
        if folder is not None:
            typer.echo(f"stopped; continue with: largeprompt train --resume {folder}", err=True)
        raise
    _experiment_answer(data).print(as_json=as_json, as_csv=as_csv)
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


def _experiment_answer(data: "xr.Dataset") -> Answer:
    final = data["final_risk"]
    if "seed" in final.dims:
        final = final.mean("seed")
    answer = Answer(f"final test risk, variant {data.attrs['variant']}")
    answer.column("L", "length", data["length"].values, "{:g}".format)
    for kind in ("softmax", "linear"):
        best = data["minimiser_risk"].sel(attention=kind).values
        trained = final.sel(attention=kind).values
        answer.column(f"{kind}, trained", f"{kind}_trained", trained, "{:.4f}".format)
        answer.column(f"best {kind}", f"{kind}_best", best, "{:.4f}".format)
    answer.column("ridge (Bayes)", "ridge", data["bayes_risk"].values, "{:.4f}".format)
    if "seed" in data["route_ratio"].dims:
        from ..dynamics.experiment import BLOCK_CLASS

        arrived = (data["route_ratio"] < BLOCK_CLASS).sum("seed")
        for kind in ("softmax", "linear"):
            counts = arrived.sel(attention=kind).values
            answer.column(f"{kind}, in block form", f"{kind}_in_block_form", counts)
        seeds = data.sizes["seed"]
        risks = "one seed" if seeds == 1 else f"{seeds} seeds; trained risks are means over them"
        answer.note(
            f"{risks}; the last two columns count seeds that end in block form", seeds=seeds
        )
    return answer
