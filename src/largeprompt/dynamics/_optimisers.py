"""One object for all optimisers that do the same, so that a fresh `optax.sgd(0.1)` does not compile
its program again.

Programs are compiled for the functions of an optimiser, which Python compares by identity. Two
functions with the same code and equal defaults and closures compute the same, as long as they read
no global variable that may have changed in between: optimisers of optax are closures over numbers,
schedules and other such functions, and are compared by that.
"""

import types
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.core import Tracer

_MOST = 256  # optimisers remembered

_seen: dict[Any, optax.GradientTransformation] = {}


def shared(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """The first optimiser seen that does what this one does."""
    key = _meaning(optimiser, ())
    if len(_seen) >= _MOST and key not in _seen:
        _seen.pop(next(iter(_seen)))
    return _seen.setdefault(key, optimiser)


class _Same:
    """Anything whose meaning is not known: equal to itself only, and kept alive so that its
    identity is not used again.
    """

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _meaning(thing: Any, above: tuple[int, ...]) -> Any:
    """A hashable value, equal for things that do the same; `above` are the functions around it."""
    kind, within = type(thing), (*above, id(thing))
    if thing is None or kind in (bool, int, str, bytes, types.CodeType):
        return kind, thing
    if kind in (float, complex):
        return kind, repr(thing)  # 0.0 is not -0.0
    if isinstance(thing, (np.ndarray, np.generic)) and thing.dtype != object:
        return kind, str(thing.dtype), thing.shape, thing.tobytes()
    if isinstance(thing, jax.Array) and not isinstance(thing, Tracer):
        return kind, thing.weak_type, _meaning(np.asarray(thing), within)
    if isinstance(thing, tuple):  # optimisers and states are named tuples
        return kind, tuple(_meaning(part, within) for part in thing)
    if id(thing) in above:  # a function that calls itself
        return "above", len(above) - above.index(id(thing))
    if isinstance(thing, types.FunctionType):
        if not thing.__module__.startswith("optax.") and _reads_globals(thing):
            return _Same(thing)
        try:
            held = [cell.cell_contents for cell in thing.__closure__ or ()]
        except ValueError:  # a cell that is still empty
            return _Same(thing)
        parts = (thing.__defaults__, tuple(sorted((thing.__kwdefaults__ or {}).items())), *held)
        meanings = tuple(_meaning(part, within) for part in parts)
        return kind, thing.__code__, _Same(thing.__globals__), meanings
    if isinstance(thing, partial):
        options = tuple(sorted(thing.keywords.items()))
        return kind, tuple(_meaning(part, within) for part in (thing.func, thing.args, options))
    return _Same(thing)


def _reads_globals(function: types.FunctionType) -> bool:
    """Whether a function, or one defined inside it, names a global variable."""
    codes = [function.__code__]
    for code in codes:
        if not function.__globals__.keys().isdisjoint(code.co_names):
            return True
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return False
