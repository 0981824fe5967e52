"""Which code computes a cell: a function found by its import path, and a hash of the sources it may depend on."""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from .._message import message
from .._provenance import code_version


def import_path(function: str | Callable) -> str:
    """The name under which every process finds the function: "package.module:function"."""
    if isinstance(function, str):
        return function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", repr(function))
    if module in (None, "__main__") or "<" in name:
        raise ValueError(
            message(
                "a cell function must be importable from a module, so that other processes find it",
                f"{name} of {module}",
                "define it at the top level of a file of its own and import it from there",
            )
        )
    return f"{module}:{name}"


def load(path: str) -> Callable[[dict, Any], Any]:
    """The function of that import path."""
    module, _, name = path.partition(":")
    try:
        function = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            message(
                "a cell function must be named 'package.module:function' and be importable",
                f"{path!r} ({type(error).__name__}: {error})",
                "check the spelling, and that its module can be imported from where Python was started",
            )
        ) from error
    if not callable(function):
        raise ValueError(
            message("a cell function must be callable", f"{path!r}", "name a function")
        )
    return function


def function_version(function: Callable) -> str:
    """Code version of a cell function: the package's sources and those of the function's module."""
    source = getattr(sys.modules.get(function.__module__), "__file__", None)
    if source is None or not Path(source).is_file():
        raise ValueError(
            message(
                "a cell function must come from a source file, whose hash tells when it has changed",
                f"{function.__module__}",
                "define the function at the top level of a file and import it",
            )
        )
    return code_version(_module_source(function, source))


@cache
def _module_source(function: Callable, source: str) -> bytes:
    """Read once for a function object: after a reload the function is another object, and its source is read again."""
    del function  # only part of what is remembered
    return Path(source).read_bytes()
