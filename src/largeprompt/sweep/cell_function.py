"""The function that computes a cell: found by its import path, with the version of its code."""

import json
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from .._message import error
from .._provenance import code_version


def import_path(function: str | Callable) -> str:
    """The name under which every process finds the function: "package.module:function"."""
    if isinstance(function, str):
        return function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", repr(function))
    if module in (None, "__main__") or "<" in name:
        raise error(
            "a cell function must be importable from a module, so that other processes find it",
            f"{name} of {module}",
            "define it at the top level of another file and import it from there",
        )
    return f"{module}:{name}"


def load(path: str) -> Callable[[dict, Any], Any]:
    """Import the function with that import path."""
    module, _, name = path.partition(":")
    try:
        function = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as cause:
        raise error(
            "a cell function must be named 'package.module:function' and be importable",
            f"{path!r} ({type(cause).__name__}: {cause})",
            "check the spelling, and that Python finds the module from where it was started",
        ) from cause
    if not callable(function):
        raise error("a cell function must be callable", f"{path!r}", "name a function")
    return function


def function_version(function: Callable, configuration: str) -> str:
    """Code version of a cell: sources of the package and of the function's module.

    A cell function for which not all of them count has a method `code_version(configuration)`.
    """
    own = getattr(function, "code_version", None)
    if own is not None:
        return own(json.loads(configuration))
    source = getattr(sys.modules.get(function.__module__), "__file__", None)
    if source is None or not Path(source).is_file():
        raise error(
            "a cell function must come from a source file, whose hash shows changes",
            f"{function.__module__}",
            "define the function at the top level of a file and import it",
        )
    return code_version(_module_source(function, source))


@cache
def _module_source(function: Callable, source: str) -> bytes:
    """Source of a function's module, read once for each function object."""
    del function  # only a part of the cache key
    return Path(source).read_bytes()
