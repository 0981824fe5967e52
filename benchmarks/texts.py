"""Texts that ship with Debian and with Python: one of each kind to develop with, one to report."""

import argparse
import inspect
import tarfile
from pathlib import Path
from pydoc_data.topics import topics

_LICENCES = Path("/usr/share/common-licenses")


def development() -> dict[str, str]:
    """A licence, a Python source and chapters of the manual that methods were developed on."""
    return {
        "licence": _licences("GPL-3"),
        "source": inspect.getsource(argparse),
        "manual": _chapters("specialnames", "compound"),
    }


def reported() -> dict[str, str]:
    """Others of each kind, which numbers are reported on. All have more than 4100 tokens."""
    return {
        "licence": _licences("MPL-2.0", "Apache-2.0"),
        "source": inspect.getsource(tarfile),
        "manual": _chapters("formatstrings", "types", "import"),
    }


def _licences(*names: str) -> str:
    return "\n".join((_LICENCES / name).read_text(encoding="utf-8") for name in names)


def _chapters(*names: str) -> str:
    return "".join(topics[name] for name in names)
