"""`largeprompt reproduce`."""

from typing import Annotated

import typer

from ._output import use_float64


def reproduce(
    seed: Annotated[int, typer.Option(help="Seed of the random key every study starts from.")] = 0,
) -> None:
    """Check the statements implemented so far and print what was computed for each."""
    use_float64()
    import jax

    from .. import studies
    from ..studies.table import show

    checks = studies.run_all(jax.random.key(seed))
    raise typer.Exit(code=0 if show(checks) else 1)
