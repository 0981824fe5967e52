"""Fields of equinox modules that are part of the type, not data: `dim: int` and its like.

JAX traces every leaf of a module. A number that decides a shape must not be traced, so it has to
be a static field. Base classes call `make_static` when a subclass is created, and a user's
`dim: int = 2` means `dim: int = eqx.field(static=True, default=2)`.
"""

import dataclasses
import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin

import equinox as eqx

_STATIC = (int, bool, str, type(None))
_NAMES = {"int", "bool", "str", "None"}


def make_static(cls: type) -> None:
    """Make the fields of `cls` annotated as int, bool or str static; defaults are kept.

    Unions of these, `None` and `Literal[...]` count too. Call it from `__init_subclass__`, which
    runs before equinox turns the class into a dataclass.
    """
    for name, annotation in inspect.get_annotations(cls).items():
        default = cls.__dict__.get(name, dataclasses.MISSING)
        if not _is_static(annotation) or isinstance(default, property):
            continue
        if not isinstance(default, dataclasses.Field):
            options = {} if default is dataclasses.MISSING else {"default": default}
            setattr(cls, name, eqx.field(static=True, **options))
        elif "static" not in default.metadata:
            default.metadata = types.MappingProxyType({**default.metadata, "static": True})


def _is_static(annotation: Any) -> bool:
    if isinstance(annotation, str):  # under `from __future__ import annotations`
        return all(part.strip() in _NAMES for part in annotation.split("|"))
    if get_origin(annotation) in (Union, types.UnionType):
        return all(_is_static(part) for part in get_args(annotation))
    return annotation in _STATIC or get_origin(annotation) is Literal
