"""`largeprompt reproduce`, `largeprompt studies`, `largeprompt report`."""

import json
import shlex
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._extras import require
from .._progress import progress_bar
from ._answer import Answer, AsCsv, AsJson, check_form
from ._compiling import compile_quickly, one_thread_for_matrices
from ._output import use_float64
from ._signals import uncovered_interruptions

if TYPE_CHECKING:
    import xarray as xr

    from ..sweep import Sweep

_REPORT = ("matplotlib", "jinja2", "latex2mathml")


def reproduce(
    full: Annotated[
        bool, typer.Option("--full", help="At the paper's scale, which takes hours.")
    ] = False,
    study: Annotated[
        list[str] | None, typer.Option("--study", help="Only this study; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path(
        "out/reproduce"
    ),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep the results in the folder, compute what is missing."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random keys of all studies.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Number of processes on this machine."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Address of a Dask scheduler to run on.")
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Test every statement of the paper and write data, figures and a report.

    Studies that need weights of models run if --study names them.

    Exit status 1 if a statement does not hold, or a study has no result. Ctrl-C and SIGTERM end
    it with status 130 and 143, and --resume continues.

    Example: largeprompt reproduce --study lemma-2.1 --out out/lemma
    """
    check_form(as_json, as_csv)
    one_thread_for_matrices()
    _require_report()
    if not full:
        compile_quickly()
    use_float64()
    from ..reproduce import folder
    from ..reproduce.studies import STUDIES, check_weights, find_study

    scale = "full" if full else "quick"
    names = [find_study(name).name for name in study or STUDIES]
    if not resume:  # otherwise the results may be there already
        check_weights(names)
    sweep, notes = folder.open_folder(out, scale, seed, names, resume)
    for note in notes:
        typer.echo(note, err=True)
    try:
        with uncovered_interruptions():
            failed = sweep is not None and _compute(sweep, out, workers, cluster)
            good = _finish(out, as_json, as_csv)
    except KeyboardInterrupt:
        stored = folder.stored_names(out)
        done = sum(name in stored for name in names)
        typer.echo(f"\ninterrupted: {done} of {len(names)} studies are stored in {out}", err=True)
        typer.echo(f"continue with: {_command(full, study, out, seed, workers, cluster)}", err=True)
        raise
    raise typer.Exit(code=0 if good and not failed else 1)


def _require_report() -> None:
    """Find out before minutes of computing that the report cannot be written."""
    for package in _REPORT:
        require(package, extra="report")


def _command(
    full: bool,
    study: list[str] | None,
    out: Path,
    seed: int,
    workers: int | None,
    cluster: str | None,
) -> str:
    """The command that continues this one."""
    words = ["largeprompt", "reproduce", "--resume", "--out", str(out), *["--full"] * full]
    words += [word for name in study or () for word in ("--study", name)]
    options = (("--seed", seed or None), ("--workers", workers), ("--cluster", cluster))
    words += [str(word) for option in options if option[1] is not None for word in option]
    return shlex.join(words)


def _compute(sweep: "Sweep", out: Path, workers: int | None, cluster: str | None) -> bool:
    """Compute and store studies that have no result; returns whether one of them failed."""
    from ..reproduce.folder import CELLS

    failed = False
    waiting = [json.loads(cell.configuration)["study"] for cell in sweep.cells]
    cells = sweep.iterate(out / CELLS, workers=workers, cluster=cluster)
    with closing(cells), progress_bar(waiting[0], len(waiting)) as advance:
        for cell in cells:
            name = cell.configuration["study"]
            if cell.failure is not None:
                failed = True
                typer.echo(cell.failure.traceback, err=True)
                reason = cell.failure.reason
                typer.echo(f"error: {name} could not be computed: {reason}", err=True)
            elif cell.data is not None:
                verdict, seconds = (cell.data.attrs[n] for n in ("verdict", "seconds"))
                typer.echo(f"computed  {name}: {verdict} ({seconds:.1f} s)", err=True)
                _draw_while_others_compute(out, cell.data, alone=not (workers or cluster))
            waiting.remove(name)
            advance(label=waiting[0] if waiting else "")
    return failed


def _draw_while_others_compute(out: Path, data: "xr.Dataset", alone: bool) -> None:
    """Draw a figure now if other processes compute; what fails here is done again by `_finish`."""
    from ..reproduce.report import page

    if not alone:
        with suppress(OSError):
            page.draw_figure(out, data)


def _finish(out: Path, as_json: bool, as_csv: bool) -> bool:
    """Print the summary, write data, figures and page; returns whether every statement holds.

    The summary is printed even if the page cannot be written.
    """
    from ..reproduce import folder
    from ..reproduce.record import from_dataset
    from ..reproduce.report import page
    from ._summary import summary

    stored = folder.load_all(out)
    found = {name: from_dataset(record) for name, record in stored.records.items()}
    answer, good = summary(found, stored.lost)
    try:
        folder.export(out, stored)
        written = page.write_report(out, stored)
        answer.note(f"report: {written}", report=str(written))
    finally:
        answer.print(as_json=as_json, as_csv=as_csv)
    return good


def studies(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the studies: their names, the place in the paper, and what they test.

    Example: largeprompt studies
    """
    check_form(as_json, as_csv)
    from ..reproduce.studies import every_study, fetching

    answer = Answer()
    found = every_study().values()
    for name in ("name", "source", "title"):
        heading = "study" if name == "name" else name
        answer.column(heading, heading, [getattr(study, name) for study in found])
    for study in found:
        if study.weights:
            answer.note(
                f"{study.name} is not part of the default run, since it needs weights: run "
                f"`{fetching(study)}` first.",
                **{study.name: {"needs_weights": list(study.weights)}},
            )
    answer.print(as_json=as_json, as_csv=as_csv)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder written by `largeprompt reproduce`.")],
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Write data, figures and page again from the stored results.

    Nothing is computed again except the verdicts. Exit status 1 if a statement does not hold, or
    a result is missing or damaged.

    Example: largeprompt report out/reproduce
    """
    check_form(as_json, as_csv)
    _require_report()
    raise typer.Exit(code=0 if _finish(folder, as_json, as_csv) else 1)
