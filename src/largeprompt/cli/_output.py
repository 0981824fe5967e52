"""What all commands share: errors in one line, waiting with a sign of life, files written whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from .._files import whole

if TYPE_CHECKING:
    import xarray as xr


class LineOfErrors(TyperGroup):
    """Commands whose mistakes of use end in one line and exit status 2, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a `ValueError` or an unwritable file is the user's to mend."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error


def use_float64() -> None:
    """Set 64-bit mode: this process is ours, and exact numbers are float64."""
    import jax

    jax.config.update("jax_enable_x64", True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on a terminal, nothing in a pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def announce(path: Path, existed: bool) -> None:
    """Say where a file went, and whether one was there before."""
    typer.echo(f"{'replaced' if existed else 'wrote'} {path}", err=True)


def write_netcdf(data: "xr.Dataset", path: Path) -> None:
    """Write a dataset; an existing file is replaced only when the new one is complete."""
    existed = path.exists()
    with whole(path) as name:
        data.to_netcdf(name, engine="scipy")
    announce(path, existed)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure and say so."""
    from ..reproduce.report import save_figure

    existed = path.exists()
    save_figure(figure, path)
    announce(path, existed)
