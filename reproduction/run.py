"""Compute studies, store results, and show them: what `python -m reproduction` does."""

import argparse
import shlex
import sys
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import xarray as xr

import largeprompt as lp

from . import folder, table
from .catalogue import catalogue, find, load
from .record import compute, from_dataset, job
from .report import page


def reproduce(options: argparse.Namespace, executor: Executor | None = None) -> int:
    """Compute the studies that have no result, write figures and page; returns the exit status."""
    chosen = options.study or [name for name, file in catalogue().items() if not load(file).weights]
    files = {load(file).name: file for file in map(find, chosen)}
    if len(files) < len(set(map(find, chosen))):
        raise ValueError(f"studies must have different names; received {', '.join(chosen)}")
    out, scale = options.out, "full" if options.full else "quick"
    if not options.resume:  # otherwise the results may be there already
        _check_weights(files)
    folder.prepare(out, scale, options.seed, files, options.resume)
    try:
        _compute(options, scale, files, executor)
        return _finish(options, out, files, (scale, options.seed))
    except KeyboardInterrupt:
        stored = folder.stored_names(out)
        done = sum(name in stored for name in files)
        print(f"\ninterrupted: {done} of {len(files)} studies are stored in {out}", file=sys.stderr)
        print(f"continue with: {_command(options)}", file=sys.stderr)
        raise


def _check_weights(files: Mapping[str, Path]) -> None:
    """Raise unless all weights that these studies need were fetched and are unaltered."""
    for study in map(load, files.values()):
        try:
            for name in study.weights:
                lp.models.weights_path(name)
        except (OSError, ValueError) as cause:
            raise ValueError(
                f"{study.name} needs weights: {cause} `{page.fetching(study)}` fetches all of them."
            ) from cause


def _compute(
    options: argparse.Namespace, scale: str, files: Mapping[str, Path], executor: Executor | None
) -> None:
    """Compute and store the results that are missing, and draw their figures meanwhile."""
    out = options.out
    before = {name: record.attrs.get("date") for name, record in _records(out, files).items()}
    # those that take longest, which train, come last in the paper
    jobs = [job(file, scale, options.seed) for file in reversed([*files.values()])]
    print(f"computing what is missing of {len(jobs)} studies", file=sys.stderr)
    with ExitStack() as stack:
        where = executor or options.workers
        if options.cluster:
            from dask.distributed import Client

            where = stack.enter_context(Client(options.cluster)).get_executor()
        results = stack.enter_context(closing(lp.iterate(compute, jobs, out / folder.CELLS, where)))
        for configuration, found in results:
            name = configuration["study"]
            if not isinstance(found, xr.Dataset):
                folder.fail(out, name, found.reason)
                print(found.traceback, file=sys.stderr)
                print(f"error: {name} could not be computed: {found.reason}", file=sys.stderr)
            elif found.attrs["date"] == before.get(name):
                print(f"kept      {name}: same configuration, key and code", file=sys.stderr)
            else:
                folder.write(out, name, found)
                verdict, seconds = found.attrs["verdict"], float(found.attrs["seconds"])
                print(f"computed  {name}: {verdict} ({seconds:.1f} s)", file=sys.stderr)
                with suppress(OSError):  # said when the page is written
                    page.draw_figure(out, load(files[name]), from_dataset(found, load(files[name])))


def _records(out: Path, files: Mapping[str, Path]) -> dict[str, xr.Dataset]:
    found = {name: folder.read(out, name) for name in files}
    return {name: record for name, record in found.items() if record is not None}


def report(options: argparse.Namespace) -> int:
    """Write figures and page again from the stored results; returns the exit status."""
    own = {load(file).name: file for file in map(find, options.study)}
    return _finish(options, options.report, own, redraw=True)


def _finish(
    options: argparse.Namespace,
    out: Path,
    asked: Mapping[str, Path],
    kind: tuple[str, int] | None = None,
    redraw: bool = False,
) -> int:
    """Print the verdicts, and write figures and page; the verdicts also if that fails."""
    stored = folder.load_all(out, {**catalogue(), **asked}, asked, kind)
    found = {
        name: (load(stored.files[name]), from_dataset(record, load(stored.files[name])))
        for name, record in stored.records.items()
    }
    form: dict[str, Any] = {"as_json": options.json, "as_csv": options.csv}
    try:
        written = page.write(out, stored, found, redraw)
    finally:
        table.show(found, stored.lost, **form)
    print(f"page: {written}", file=sys.stderr)
    judged = asked if kind else {**found, **stored.lost}  # a report is about the whole folder
    held = [name in found and found[name][1].as_expected for name in judged]
    return 0 if held and all(held) else 1


def _command(options: argparse.Namespace) -> str:
    """The command that continues this one."""
    words = ["python", "-m", "reproduction", "--resume", "--out", str(options.out)]
    words += ["--full"] * options.full + [w for s in options.study for w in ("--study", s)]
    given = {"--seed": options.seed, "--workers": options.workers, "--cluster": options.cluster}
    return shlex.join(words + [str(w) for pair in given.items() if pair[1] for w in pair])


def show_list() -> None:
    """Print names, places in the paper and titles of the studies of this folder."""
    studies = [load(file) for file in catalogue().values()]
    rows = [("study", "source", "title"), *((s.name, s.source, s.title) for s in studies)]
    table.print_columns(rows)
    for study in studies:
        if study.weights:
            print(f"{study.name} runs if it is named; `{page.fetching(study)}` first.")
