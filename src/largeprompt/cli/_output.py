"""Output that all commands share: files, and errors on one line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from .._extras import MissingExtra, require
from .._files import FIGURES, atomic_write, check_target
from ._compiling import hint_at_first_run
from ._signals import exit_status, uncovered_interruptions

if TYPE_CHECKING:
    import xarray as xr


class ErrorLineGroup(TyperGroup):
    """Command group that prints user errors on one line and exits with status 2.

    The exit status of an interrupted command is 130 (Ctrl-C) or 143 (SIGTERM).
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; `ValueError`, `OSError` and missing packages are user errors."""
        try:
            with uncovered_interruptions():
                return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            raise typer.Exit(exit_status(interruption)) from None
        except (ValueError, OSError, MissingExtra) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error


def use_float64() -> None:
    """Turn on 64-bit mode for the whole process; say at the first run that it compiles."""
    hint_at_first_run()
    import jax

    jax.config.update("jax_enable_x64", True)


def check_targets(out: Path | None, figure: Path | None) -> None:
    """Check before the computation that both files can be written afterwards."""
    if out is not None:
        check_target(out, "data", (".nc",))
    if figure is not None:
        check_target(figure, "figure", FIGURES)
        require("matplotlib", extra="report")


def write_netcdf(data: "xr.Dataset", path: Path) -> None:
    """Write a dataset; an existing file is replaced only when the new one is complete."""
    existed = path.exists()
    with atomic_write(path) as name:
        data.to_netcdf(name, engine="scipy")
    _announce(path, existed)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure; an existing file is replaced only when the new one is complete."""
    from ..reproduce.report import save_figure

    existed = path.exists()
    save_figure(figure, path)
    _announce(path, existed)


def _announce(path: Path, existed: bool) -> None:
    typer.echo(f"{'replaced' if existed else 'wrote'} {path}", err=True)
