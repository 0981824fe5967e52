"""`largeprompt explore`: the page with sliders."""

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ._answer import Answer, AsCsv, AsJson, check_form


def explore(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the page to this .html file and keep it."),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the page, print its path only.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Open a page with sliders: errors, regimes and risks as you move them.

    One HTML file that needs no server and no network.

    Example: largeprompt explore --output explorer.html
    """
    check_form(as_json, as_csv)
    from ..reproduce.explorer import write_page

    if output is None:
        output = Path(tempfile.mkdtemp(prefix="largeprompt-")) / "explorer.html"
    path = write_page(output).resolve()
    answer = Answer()
    answer.note(f"explorer: {path}", page=str(path), bytes=path.stat().st_size)
    answer.print(as_json=as_json, as_csv=as_csv)
    if not no_browser and not webbrowser.open(path.as_uri()):
        typer.echo("no browser was found: open the file yourself", err=True)
