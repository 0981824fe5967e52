"""Optional packages: import one, or say how to install what is missing."""

import re
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

# What each extra is for, as the subject and verb of the message.
_NEEDED_BY = {
    "report": "figures need",
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
        raise missing_extra(extra, package) from error


def missing_extra(extra: str, package: str) -> MissingExtra:
    """The error that names `package` and all other packages of the extra that are missing."""
    needs = _NEEDED_BY.get(extra, f"the extra {extra!r} needs")
    found = (re.match(r"[\w.-]+", line) for line in _requirements(extra))
    others = [name[0] for name in found if name and name[0] != package]
    missing = [package, *(name for name in others if find_spec(name) is None)]
    return MissingExtra(
        f"{needs} {', '.join(missing)}: run pip install {' '.join(missing)}, "
        f"or pip install '.[{extra}]' in a checkout of largeprompt",
        name=package,
    )


def _requirements(extra: str) -> list[str]:
    """Lines such as `rich>=14; extra == "cli"` of the installed package."""
    marker = re.compile(rf"""extra == ["']{extra}["']""")
    return [line for line in metadata.requires("largeprompt") or [] if marker.search(line)]
