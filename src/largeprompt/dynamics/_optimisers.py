"""What an optimiser of optax computes, as a value that can be compared and stored.

Programs are compiled for the functions of an optimiser, which Python compares by identity. Two
functions with the same code and equal defaults and closures compute the same, as long as the global
variables they read are equal: optimisers of optax are closures over numbers, schedules and other
such functions, and are compared by that. So a fresh `optax.sgd(0.1)` does not compile its program
again (`shared`), and a checkpoint is resumed only with the optimiser that began it (`fingerprint`).
"""

import dataclasses
import dis
import enum
import hashlib
import sys
import types
from functools import partial
from importlib import metadata
from typing import Any

import jax
import numpy as np
import optax
from jax.core import Tracer

from .. import _checks

_MOST = 256  # optimisers remembered
# packages whose objects are known by name and version; the code of others may change unnoticed
_RELEASED = {"builtins", "chex", "equinox", "jax", "jaxlib", "jaxtyping", "numpy", "optax", "scipy"}

_seen: dict[Any, optax.GradientTransformation] = {}


def shared(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """The first optimiser seen that does what this one does."""
    key = _Meaning(stored=False).of(optimiser)
    if len(_seen) >= _MOST and key not in _seen:
        _seen.pop(next(iter(_seen)))
    return _seen.setdefault(key, optimiser)


def fingerprint(optimiser: optax.GradientTransformation) -> str:
    """A digest of all an optimiser computes, equal in every process for equal optimisers.

    Made of the code of its functions, their constants, defaults and closures, the global variables
    they read, and the versions of the packages they come from. Raises if a part of the optimiser is
    an object whose state cannot be read.
    """
    meaning = repr(_Meaning(stored=True).of(optimiser))
    return hashlib.sha256(meaning.encode()).hexdigest()[:16]


class _Identity:
    """An object compared by identity; kept alive so that its id is not used again."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


class _Meaning:
    """Nested tuples of plain values, equal for objects that compute the same.

    `stored`: values are compared across processes, so they name packages and versions, hold the
    global variables that functions read now, and no identities. Otherwise they are compared within
    this process, and a function outside optax that reads global variables, which may change later,
    is compared by identity.
    """

    def __init__(self, *, stored: bool):
        self.stored = stored
        self.above: list[int] = []  # ids of the objects around the current one

    def of(self, thing: Any) -> Any:
        kind = type(thing)
        if thing is None or kind in (bool, int, str, bytes):
            return kind.__name__, thing
        if kind in (float, complex):
            return kind.__name__, repr(thing)  # 0.0 is not -0.0
        if isinstance(thing, np.dtype):
            return "dtype", str(thing)
        if isinstance(thing, (np.ndarray, np.generic)) and thing.dtype != object:
            return "array", str(thing.dtype), thing.shape, thing.tobytes()
        if isinstance(thing, jax.Array) and not isinstance(thing, Tracer):
            return "jax", thing.weak_type, self.of(np.asarray(thing))
        if id(thing) in self.above:  # a function that calls itself
            return "above", len(self.above) - self.above.index(id(thing))
        self.above.append(id(thing))
        try:
            return self._compound(thing)
        finally:
            self.above.pop()

    def _compound(self, thing: Any) -> Any:
        kind = type(thing)
        if isinstance(thing, (tuple, list)):  # optimisers and their states are named tuples
            return _name(kind), tuple(self.of(part) for part in thing)
        if isinstance(thing, dict):
            return "dict", tuple((self.of(key), self.of(value)) for key, value in thing.items())
        if isinstance(thing, (set, frozenset)):
            return kind.__name__, tuple(sorted((self.of(part) for part in thing), key=repr))
        if isinstance(thing, types.FunctionType):
            return self._function(thing)
        if isinstance(thing, types.MethodType):
            return "method", self.of(thing.__func__), self.of(thing.__self__)
        if isinstance(thing, partial):
            return "partial", *(self.of(part) for part in (thing.func, thing.args, thing.keywords))
        if isinstance(thing, types.ModuleType):
            return "module", thing.__name__, _version(thing.__name__)
        if isinstance(thing, enum.Enum):
            return "enum", _name(kind), thing.name
        released = _released(thing)
        if released is not None:
            return released
        if isinstance(thing, type):
            return self._class(thing)
        if dataclasses.is_dataclass(thing):  # equinox modules too
            fields = [field.name for field in dataclasses.fields(thing)]
            parts = tuple((name, self.of(getattr(thing, name, None))) for name in fields)
            return "dataclass", self.of(kind), parts
        if kind.__module__.startswith("jax") and hasattr(thing, "__wrapped__"):  # jit(function)
            return _name(kind), self.of(thing.__wrapped__)
        if self.stored and isinstance(getattr(thing, "__dict__", None), dict):
            return "object", self.of(kind), self.of(vars(thing))
        return self._opaque(thing)

    def _class(self, kind: type) -> Any:
        """Names and methods of a class and of those above it, up to released packages."""
        methods = []
        for name, value in sorted(vars(kind).items()):
            function = getattr(value, "method", value)  # equinox wraps methods
            if isinstance(function, types.FunctionType) and not name.startswith("__init"):
                methods.append((name, self.of(function)))
        bases = tuple(self.of(base) for base in kind.__bases__ if base is not object)
        return "class", _name(kind), tuple(methods), bases

    def _function(self, thing: types.FunctionType) -> Any:
        package = thing.__module__.partition(".")[0]
        if self.stored and thing.__closure__ is None and _released(thing) is not None:
            return _released(thing)
        known = package in _RELEASED if self.stored else package == "optax"
        read = [] if known else _globals_read(thing)
        if read and not self.stored:
            return _Identity(thing)
        try:
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        except ValueError:  # a cell that is still empty
            return self._opaque(thing)
        parts = (thing.__defaults__, tuple(sorted((thing.__kwdefaults__ or {}).items())), *cells)
        inside = tuple(self.of(part) for part in parts)
        outside = tuple((name, self.of(thing.__globals__[name])) for name in read)
        module = _Identity(thing.__globals__)
        if self.stored:
            module = (thing.__module__, _version(thing.__module__))
        return "function", _code(thing.__code__), module, inside, outside

    def _opaque(self, thing: Any) -> Any:
        if not self.stored:
            return _Identity(thing)
        raise _checks.error(
            "the optimiser of a run saved in a folder must be made of functions, numbers and "
            "plain objects, so that it can be compared when the run is resumed",
            f"a {_name(type(thing))} inside it",
            "write that part as a function, or leave folder out",
        )


def _code(code: types.CodeType) -> Any:
    """A function's code without file names and line numbers."""
    constants = tuple(
        _code(const)
        if isinstance(const, types.CodeType)
        else tuple(sorted(map(repr, const)))
        if isinstance(const, frozenset)
        else (type(const).__name__, repr(const))
        for const in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_code, constants, names, code.co_flags


def _globals_read(function: types.FunctionType) -> list[str]:
    """Global variables that a function, or one defined inside it, reads."""
    codes, found = [function.__code__], set()
    for code in codes:
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found.add(step.argval)
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return sorted(found & function.__globals__.keys())


def _released(thing: Any) -> Any:
    """Module, name and version of an object of a released package, otherwise None."""
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", ""))
    module = getattr(thing, "__module__", None) or ""
    package = module.partition(".")[0]
    if package not in _RELEASED and package not in sys.stdlib_module_names:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return ("imported", module, name, _version(module)) if found is thing else None


def _version(module: str) -> str:
    """The version of the package of a module; empty if it is not installed."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
