"""Optional packages: import one, or say which extra of largeprompt installs it."""

from importlib import import_module
from typing import Any

# What each extra is for, as the subject and verb of the message.
_NEEDED_BY = {
    "report": "figures and reports need",
    "cli": "the command line needs",
    "cluster": "running on a cluster needs",
    "models": "real models need",
}


class MissingExtra(ImportError):
    """A package of an extra is not installed."""


def require(module: str, *, extra: str) -> Any:
    """Import `module`, which comes with the extra `extra`, and return it.

    Raises `MissingExtra`, an `ImportError` that says what to install, if the package is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # the package is there, and something it needs is missing
        needs = _NEEDED_BY.get(extra, f"the extra {extra!r} needs")
        text = f"{needs} {package}: pip install 'largeprompt[{extra}]'"
        raise MissingExtra(text, name=package) from error
