"""The command line. Heavy imports happen inside the commands, so that `--help` answers at once."""

import os
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from . import concentration, reproduce, training
from ._output import LineOfErrors

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, cls=LineOfErrors
)


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"largeprompt {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def largeprompt(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Is softmax attention linear yet? Attention on measures, at finite and infinite prompt length."""


for command in (
    reproduce.reproduce,
    reproduce.studies,
    reproduce.report,
    concentration.curve,
    concentration.regime,
    concentration.length,
    training.risk,
    training.flow,
    training.train,
):
    app.command()(command)


def _keep_compiled_programs() -> None:
    """Let JAX keep what it compiles between commands, in the user's cache folder, unless the user chose otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "largeprompt" / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # nowhere to write: everything is compiled again
    if os.access(folder, os.W_OK):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def main() -> None:
    """Entry point of the `largeprompt` command."""
    _keep_compiled_programs()
    app()
