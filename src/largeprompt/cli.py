"""The command line. Heavy imports happen inside the commands, so that `--help` answers at once."""

from typing import Annotated

import typer

from . import __version__

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


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


@app.command()
def reproduce(
    seed: Annotated[int, typer.Option(help="Seed of the random key every study starts from.")] = 0,
) -> None:
    """Check the statements implemented so far and print what was computed for each."""
    import jax

    jax.config.update("jax_enable_x64", True)  # this process is ours: exact numbers are float64

    from .studies import run_all
    from .studies.table import show

    checks = run_all(jax.random.key(seed))
    raise typer.Exit(code=0 if show(checks) else 1)


def main() -> None:
    """Entry point of the `largeprompt` command."""
    app()
