"""Weights from files, without running anything that a file contains.

A checkpoint of PyTorch is a zip archive: a pickle that describes containers and tensors, and one
member for the bytes of each storage. A pickle can name any function and call it. The reader here
carries out the instructions of the pickle itself and knows three kinds of names (an ordered
dictionary, a tensor, the types of storages): it imports and calls nothing that a file names.
PyTorch is not needed.
"""

import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import jax.numpy as jnp  # has bfloat16, which NumPy lacks
import numpy as np

from .. import _checks
from .._extras import require

_LARGEST_PICKLE = 2**24  # bytes; that of a model with thousands of tensors has less than 2^20
_DTYPES = {
    "BFloat16Storage": np.dtype(jnp.bfloat16),
    "BoolStorage": np.dtype(np.bool_),
    "ByteStorage": np.dtype("<u1"),
    "CharStorage": np.dtype("<i1"),
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "IntStorage": np.dtype("<i4"),
    "LongStorage": np.dtype("<i8"),
    "ShortStorage": np.dtype("<i2"),
}


def read_checkpoint(path: str | Path) -> Any:
    """The containers of a `torch.save` file, with NumPy arrays (read-only) for tensors.

    Admits tensors, dict, OrderedDict, list, tuple, numbers, booleans, strings, bytes and None; keys
    of dictionaries are strings or integers.
    A file with anything else, such as a class, a function or a whole module, is not read further:
    nothing in it is called. Files that end in `.safetensors` give a dict of arrays.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return _safetensors(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except _NotPlain as error:
        _reject(path, str(error), "save its state_dict() with torch.save")
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged pickle or archive leads to
        _reject(path, f"{type(error).__name__}: {error}", "fetch or save the file again")


class _NotPlain(Exception):
    """The pickle names something other than tensors and plain containers."""


def _reject(path: Path, why: str, fix: str) -> NoReturn:
    reason = " ".join(why.split())
    raise _checks.error(
        "a checkpoint must be a torch.save file of tensors and plain containers",
        f"{str(path)!r} ({reason})",
        fix,
    ) from None


def _read(archive: zipfile.ZipFile) -> Any:
    members = {member.filename: member for member in archive.infolist()}
    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise ValueError(f"{len(pickles)} members are called data.pkl, and not one")
    folder = pickles[0].removesuffix("data.pkl")
    for member in members.values():
        # torch stores; a compressed member could unpack to more than memory holds
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed")
    if members[pickles[0]].file_size > _LARGEST_PICKLE:
        raise ValueError("its pickle is larger than 16 MiB")
    if f"{folder}byteorder" in members and archive.read(f"{folder}byteorder") != b"little":
        raise ValueError("its numbers are not little-endian")
    return _unpickled(archive.read(pickles[0]), _Storages(archive, folder))


class _Global(Enum):
    """The names that a pickle may use, besides those of types of storages."""

    ORDERED_DICT = "collections OrderedDict"
    TENSOR = "torch._utils _rebuild_tensor_v2"


class _Storages:
    """The numbers of storages, each read once."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._read: dict[str, np.ndarray] = {}

    def get(self, reference: Any) -> np.ndarray:
        """The numbers that a reference of the pickle stands for, read-only."""
        kind, dtype, key, _, size = reference
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise ValueError("a reference to something other than a storage")
        if _only(key, str) not in self._read:
            data = self._archive.read(f"{self._folder}data/{key}")  # checks its CRC
            if len(data) != size * dtype.itemsize:
                raise ValueError(f"storage {key} has {len(data)} bytes, and not {size} numbers")
            self._read[key] = np.frombuffer(data, dtype)
        return self._read[key]


def _unpickled(data: bytes, storages: _Storages) -> Any:
    """The object that a pickle describes.

    Instructions are carried out here, one by one. None of them looks up a name, calls an object,
    or sets an attribute; `REDUCE`, which calls in a general reader, knows two cases.
    """
    stack: list[Any] = []
    marks: list[int] = []  # where the entries of containers begin on the stack
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        found = stack[start:]
        del stack[start:]
        return found

    argument: Any
    for instruction, argument, _ in pickletools.genops(data):
        name = instruction.name
        if name in _NO_EFFECT:
            continue
        if name in _NUMBERS_AND_TEXT:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in _SHORT_TUPLES:
            size = _SHORT_TUPLES[name]
            stack[-size:] = [tuple(stack[-size:])]
        elif name in ("APPEND", "APPENDS"):
            entries = since_mark() if name == "APPENDS" else [stack.pop()]
            _only(stack[-1], list).extend(entries)
        elif name in ("SETITEM", "SETITEMS"):
            entries = since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            _fill(_only(stack[-1], dict), zip(entries[::2], entries[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_known_name(argument))
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_known_name(" ".join(_only(part, str) for part in stack[-2:]))]
        elif name == "BINPERSID":
            stack.append(storages.get(stack.pop()))
        elif name == "REDUCE":
            arguments = _only(stack.pop(), tuple)
            stack.append(_made(stack.pop(), arguments))
        elif name == "BUILD":  # attributes of a state_dict: versions of its modules
            stack.pop()
            _only(stack[-1], OrderedDict)
        elif name == "STOP":
            break
        else:
            raise _NotPlain(f"its pickle has the instruction {name}, which was not carried out")
    (found,) = stack
    return found


_NO_EFFECT = ("PROTO", "FRAME")
_NUMBERS_AND_TEXT = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES"),
    *("BINUNICODE", "SHORT_BINUNICODE"),
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _only(thing: Any, kind: type) -> Any:
    if not isinstance(thing, kind):
        raise ValueError(f"{type(thing).__name__} where {kind.__name__} belongs")
    return thing


def _fill(target: dict, pairs: Iterable[Any] = ()) -> dict:
    """Add pairs of key and value. Keys of nested tuples could take forever to hash."""
    for key, value in pairs:
        if type(key) not in (str, int):
            raise _NotPlain(f"it has a dictionary with a key of type {type(key).__name__}")
        target[key] = value
    return target


def _known_name(name: str) -> Any:
    module, _, last = name.partition(" ")
    if module == "torch" and last in _DTYPES:
        return _DTYPES[last]
    try:
        return _Global(name)
    except ValueError:
        raise _NotPlain(f"it asks for {module}.{last}, which was not imported") from None


def _made(function: Any, arguments: tuple) -> Any:
    if function is _Global.ORDERED_DICT:
        return _fill(OrderedDict(), *arguments)
    if function is _Global.TENSOR:
        return _tensor(*arguments)
    raise _NotPlain(f"it calls {type(function).__name__}, which was not done")


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *unused: Any) -> np.ndarray:
    """The view of a storage that a tensor is; gradients and hooks are left out."""
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("a tensor of impossible shape or strides")
    if 0 in shape:
        return np.zeros(shape, _only(storage, np.ndarray).dtype)
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if last >= _only(storage, np.ndarray).size:
        raise ValueError("a tensor beyond the end of its storage")
    apart = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, apart, writeable=False)


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    library = require("safetensors", extra="models")
    load = require("safetensors.numpy", extra="models").load_file
    try:
        return load(path)
    except FileNotFoundError:
        raise
    except (library.SafetensorError, KeyError, struct.error, OSError) as error:
        _reject(path, f"{type(error).__name__}: {error}", "fetch or save the file again")
