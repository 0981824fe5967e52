"""Check types and shapes of arguments and results, once for each kind of call.

jaxtyping prepares a check whenever a function is defined, nested ones at each call of the outer
one, and checks every call: a seventh of the suite's time. What it finds depends on types, dtypes
and shapes only, and on short texts (`Literal`), so calls of a kind that has passed are not checked
again.
"""

import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterable
from functools import partial, update_wrapper, wraps
from types import CodeType, FunctionType
from typing import Any

import jax
import jaxtyping
import numpy as np
from beartype import beartype

_with_every_check = partial(jaxtyping.jaxtyped, typechecker=beartype)
_ARRAYS = (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)
_LONGEST = 40  # characters of a text that may be a `Literal`, and items of a container
_DEEPEST = 6  # containers in each other, those of the arguments included


def install(modules: Iterable[str]) -> None:
    """Check all functions and dataclasses of modules that are imported from now on."""
    jaxtyping.install_import_hook(list(modules), "beartype.beartype")
    # the decorator that the hook writes into their sources
    jaxtyping.jaxtyped = lambda typechecker: checked


def checked(item: Any) -> Any:
    """A function, or a dataclass, whose calls are checked."""
    if isinstance(item, classmethod | staticmethod):
        return type(item)(checked(item.__func__))
    if isinstance(item, property):
        return property(*(f and checked(f) for f in (item.fget, item.fset, item.fdel)))
    if inspect.isclass(item):
        if dataclasses.is_dataclass(item) and not hasattr(item.__init__, "is_checked"):
            item.__init__ = checked(item.__init__)
        return item
    plain = inspect.unwrap(item)
    if not getattr(plain, "__annotations__", None):
        return item
    if plain.__code__ not in _CHECKS:
        _CHECKS[plain.__code__] = _Check(item)
    return _CHECKS[plain.__code__].of(item)


class _Check:
    """The check of all functions with one code: closures differ in the variables that they see."""

    def __init__(self, function: Callable):
        self.like = function
        self.passed: dict[Any, set] = {}  # kinds of arguments, and of their results
        self.local = threading.local()
        self.with_check: Callable | None = None

    def of(self, function: Callable) -> Callable:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            given = kind(args), kind(kwargs) if kwargs else None
            results = self.passed.get(given)
            if results is None:
                found = self._checked(function, args, kwargs)
                self.passed[given] = {kind(found)}
                return found
            found = function(*args, **kwargs)
            result = kind(found)
            if result not in results:
                self._checked(lambda *args, **kwargs: found, args, kwargs)
                results.add(result)
            return found

        vars(call)["is_checked"] = True
        return call

    def _checked(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """The result of the function, with every check."""
        if self.with_check is None:
            self.with_check = self._prepared()
        waiting = vars(self.local).setdefault("waiting", [])
        before = len(waiting)
        waiting.append(function)
        try:
            return self.with_check(*args, **kwargs)
        finally:
            del waiting[before:]  # the function still waits if its arguments are wrong

    def _prepared(self) -> Callable:
        """jaxtyping's check of the signature; it calls the function that waits."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.local.waiting.pop()(*args, **kwargs)

        # annotations that are texts refer to names of the function's module
        names = inspect.unwrap(self.like).__globals__
        made = FunctionType(run.__code__, names, run.__name__, None, run.__closure__)
        return _with_every_check(update_wrapper(made, self.like))


_CHECKS: dict[CodeType, _Check] = {}


def kind(value: Any, depth: int = _DEEPEST) -> Any:
    """All that a check depends on: of arrays, type, dtype and shape; of containers, their items.

    Nothing is equal to the kind of containers that are deep or long, so that their checks repeat.
    """
    cls = type(value)
    sort = _SORTS.get(cls) or _sort(cls)
    if sort == "array":
        return cls, value.dtype, value.shape
    if sort == "other":
        return cls
    if sort == "constant":
        return value if cls is not str or len(value) <= _LONGEST else cls
    if not depth or len(value) > _LONGEST:
        return object()
    items = value.items() if cls is dict else value
    return cls, tuple([kind(item, depth - 1) for item in items])


_SORTS: dict[type, str] = {
    **dict.fromkeys((bool, type(None), str), "constant"),
    **dict.fromkeys((tuple, list, dict), "container"),
}


def _sort(cls: type) -> str:
    of_torch = cls.__module__.partition(".")[0] == "torch" and hasattr(cls, "dtype")
    _SORTS[cls] = "array" if of_torch or issubclass(cls, _ARRAYS) else "other"
    return _SORTS[cls]
