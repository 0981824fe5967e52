"""The command line. Heavy imports happen inside the commands, so that `--help` answers at once."""

import sys

from .._extras import MissingExtra, require


def main() -> None:
    """Entry point of the `largeprompt` command."""
    try:
        for package in ("typer", "rich"):
            require(package, extra="cli")
    except MissingExtra as error:
        sys.exit(f"error: {error}")
    from ._compiling import keep_compiled_programs
    from ._signals import catch_signals
    from .commands import app

    catch_signals()
    keep_compiled_programs()
    app()
