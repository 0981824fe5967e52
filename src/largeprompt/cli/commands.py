"""The command `largeprompt` and its subcommands."""

import sys
from typing import Annotated, Any

import typer

from .. import __version__
from ._output import OneLineErrors
from .error_commands import curve, length, regime
from .model_commands import models, probe

_CHECKOUT = "in a checkout of largeprompt"
_GONE = {
    "reproduce": f"moved: run `python -m reproduction` {_CHECKOUT}",
    "studies": f"moved: run `python -m reproduction --list` {_CHECKOUT}",
    "report": f"moved: run `python -m reproduction --report DIR` {_CHECKOUT}",
    "explore": f"moved: run `make explorer` {_CHECKOUT}",
    "risk": "is Python now: lp.plots.risks(lp.dynamics.risk_curves(task, lengths, method))",
    "flow": "is Python now: lp.plots.flow(lp.dynamics.flow_curves(task, start, lengths))",
    "train": "is Python now: lp.dynamics.published_experiment(folder=folder)",
}


class _Commands(OneLineErrors):
    """The commands; one that is gone says where it went."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        if cmd_name in _GONE:
            raise ValueError(f"`largeprompt {cmd_name}` {_GONE[cmd_name]}")
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=_Commands,
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


for command in (curve, regime, length, probe):
    app.command()(command)
app.add_typer(models, name="models")
