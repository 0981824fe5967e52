"""The command line. Heavy imports happen inside the commands, so that `--help` answers at once."""

from typing import Annotated

import typer

from .. import __version__
from . import concentration, reproduce, training
from ._compiling import keep_compiled_programs
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


def main() -> None:
    """Entry point of the `largeprompt` command."""
    keep_compiled_programs()
    app()
