"""The command `largeprompt` and its subcommands."""

import sys
from typing import Annotated

import typer

from .. import __version__
from ._output import ErrorLineGroup
from .error_commands import curve, length, regime
from .explore_commands import explore
from .model_commands import models
from .probe_commands import probe
from .training_commands import flow, risk, train

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=ErrorLineGroup,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,  # no boxes in a pipe
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
    """Softmax attention on measures of tokens, for finite and infinite prompts.

    Example: largeprompt length 0.01 --relative --dim 2
    """


COMMANDS = (curve, regime, length, risk, flow, train, explore, probe)
for command in COMMANDS:
    app.command()(command)
app.add_typer(models, name="models")
