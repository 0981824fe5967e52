"""`largeprompt reproduce`, `largeprompt studies`, `largeprompt report`."""

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._compiling import compile_quickly
from ._output import use_float64

if TYPE_CHECKING:
    import xarray as xr

    from ..reproduce.report.folder import Runner
    from ..reproduce.studies.record import Job


def reproduce(
    full: Annotated[bool, typer.Option("--full", help="The paper's scale: hours.")] = False,
    study: Annotated[
        list[str] | None, typer.Option("--study", help="Only this study; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path(
        "out/reproduce"
    ),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep what the folder holds and compute what is missing."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random key every study starts from.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Run on this many processes of this machine."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Run on the Dask scheduler at this address.")
    ] = None,
) -> None:
    """Check every statement of the paper: data, figures and a report.

    Exit status 1 if a verdict is not as stated, or a study has no result.
    """
    if not full:
        compile_quickly()
    use_float64()
    from ..reproduce.report import folder
    from ..reproduce.studies import STUDIES
    from ..reproduce.studies.record import Job, find_study

    scale = "full" if full else "quick"
    jobs = [Job(find_study(name).name, scale, seed) for name in study or STUDIES]
    run = _runner(out, workers, cluster)
    folder.open_folder(out, scale, seed, resume, [job.study for job in jobs])
    missing = [job for job in jobs if not _is_kept(out, job)]
    try:
        failures = _compute(missing, out, run)
    except KeyboardInterrupt:
        done = sum(_is_kept(out, job, say=False) for job in jobs)
        typer.echo(f"\ninterrupted: {done} of {len(jobs)} studies are stored in {out}", err=True)
        typer.echo(f"continue with: {_command(full, study, out, seed, workers, cluster)}", err=True)
        raise typer.Exit(130) from None
    for job, error in failures:
        typer.echo(f"error: {job.study} could not be computed: {error!r}", err=True)
    good = _finish(out)
    raise typer.Exit(code=0 if good and not failures else 1)


def _is_kept(out: Path, job: "Job", say: bool = True) -> bool:
    """Whether the folder holds this computation; says what happens to the stored one."""
    from ..reproduce.report import folder

    try:
        current = folder.is_current(out, job)
        why = "computed by other code"
    except folder.Damaged as error:
        current, why = False, f"damaged, {error}"
    if say and current:
        typer.echo(f"kept      {job.study}: same configuration, key and code", err=True)
    elif say and folder.data_file(out, job.study).exists():
        typer.echo(f"replacing {job.study}: {why}", err=True)
    return current


def _runner(out: Path, workers: int | None, cluster: str | None) -> "Runner":
    if workers is None and cluster is None:
        from ..reproduce.report.folder import one_after_the_other

        return one_after_the_other
    from ..reproduce.report.runners import by_sweep

    return by_sweep(out, workers, cluster)


def _command(
    full: bool,
    study: list[str] | None,
    out: Path,
    seed: int,
    workers: int | None,
    cluster: str | None,
) -> str:
    """The command that continues this one, on workers again: their finished cells are reused."""
    words = ["largeprompt", "reproduce", "--resume", "--out", str(out), *["--full"] * full]
    words += [word for name in study or () for word in ("--study", name)]
    options = (("--seed", seed or None), ("--workers", workers), ("--cluster", cluster))
    words += [str(word) for option in options if option[1] is not None for word in option]
    return shlex.join(words)


def _compute(
    jobs: "list[Job]", out: Path, run: "Runner"
) -> "list[tuple[Job, xr.Dataset | Exception]]":
    """Run the jobs, store each as it ends, with a bar on a terminal; what failed comes back."""
    import traceback

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    from ..reproduce.report import folder

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    failures = []
    with (
        closing(run(jobs)) as finished,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task(jobs[0].study if jobs else "", total=len(jobs))
        waiting = [job.study for job in jobs]
        for job, found, reused in finished:
            waiting.remove(job.study)
            if isinstance(found, Exception):
                failures.append((job, found))
                console.print("".join(traceback.format_exception(found)), markup=False)
            else:
                folder.store(out, found)
                took = float(found.attrs["seconds"])
                console.print(
                    f"{'reused   ' if reused else 'computed '} {job.study}: "
                    f"{found.attrs['verdict']} ({took:.1f} s)",
                    highlight=False,
                    markup=False,
                )
            bar.update(task, advance=1, description=waiting[0] if waiting else "")
    return failures


def _finish(out: Path) -> bool:
    """Summary, figures, page; whether every verdict is as stated.

    The summary comes first: it is printed whatever happens to the page.
    """
    from ..reproduce.report import folder, page
    from ..reproduce.studies.record import from_dataset
    from ._summary import print_summary

    stored = folder.load_all(out)
    found = {name: from_dataset(record) for name, record in stored.records.items()}
    good = print_summary(found, stored.lost)
    typer.echo(f"report: {page.write_report(out, stored)}")
    return good


def studies() -> None:
    """List the studies: what each examines, and where the statement stands in the paper."""
    from rich.console import Console
    from rich.table import Table

    from ..reproduce.studies import STUDIES

    table = Table()
    for column in ("study", "source", "title"):
        table.add_column(column)
    for study in STUDIES.values():
        table.add_row(study.name, study.source, study.title)
    Console().print(table)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder written by `largeprompt reproduce`.")],
) -> None:
    """Rebuild figures and page from the stored data; nothing is computed again but the verdicts.

    Exit status 1 if a verdict is not as stated, or a study is missing or damaged.
    """
    raise typer.Exit(code=0 if _finish(folder) else 1)
