"""The command line. Heavy imports happen inside the commands, so that `--help` answers at once."""

import sys

from .._extras import MissingExtra, require


def main() -> None:
    """Entry point of the `largeprompt` command."""
    from ._signals import catch_signals, exit_status, uncovered_interruptions

    catch_signals()
    try:
        for package in ("typer", "rich"):
            require(package, extra="cli")
        with uncovered_interruptions():
            from ._compiling import keep_compiled_programs
            from .commands import app

            keep_compiled_programs()
            app()
    except MissingExtra as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as interruption:  # before the command has begun
        sys.exit(exit_status(interruption))
