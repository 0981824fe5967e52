"""Weights that PyTorch saved, read without PyTorch and without calling what a file names.

A file of `torch.save` is a zip archive: a pickle that describes containers and tensors, and one
member with the bytes of each storage. Such files are read once, when they are fetched and their
SHA-256 is the known one; what is kept is a `.safetensors` file.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from .. import _checks
from .._extras import require

_LARGEST_PICKLE = 2**24  # bytes; that of a model with thousands of tensors has less than 2^20
_DTYPES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2"}
_DTYPES |= {"LongStorage": "<i8", "IntStorage": "<i4", "BoolStorage": "?"}


def read_checkpoint(path: Path) -> Any:
    """Containers of a `torch.save` file, with read-only NumPy arrays for tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise pickle.UnpicklingError("it has compressed members")
            if archive.getinfo(name).file_size > _LARGEST_PICKLE:
                raise pickle.UnpicklingError("its pickle is larger than 16 MiB")
            return _Unpickler(archive, name.removesuffix("data.pkl"), archive.read(name)).load()
    except FileNotFoundError:
        raise
    except Exception as cause:  # whatever a damaged archive or pickle leads to
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        rule = "a checkpoint must be a torch.save file of tensors and plain containers"
        raise _checks.error(rule, f"{str(path)!r} ({reason})") from cause


class _Unpickler(pickle.Unpickler):
    """Admits tensors, their storages and ordered dictionaries, and no other name."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "torch" and name in _DTYPES:
            return np.dtype(_DTYPES[name])
        known = {"torch._utils": ("_rebuild_tensor_v2", _tensor)}
        known |= {"collections": ("OrderedDict", OrderedDict)}
        if known.get(module, ("",))[0] != name:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which was not imported")
        return known[module][1]

    def persistent_load(self, reference: Any, /) -> np.ndarray:
        _, dtype, key, _, size = reference
        data = self._archive.read(f"{self._folder}data/{key}")  # checks its CRC
        return np.frombuffer(data, dtype, size)


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *unused: Any) -> np.ndarray:
    """The view of a storage that a tensor is; gradients and hooks are left out."""
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if min(offset, *shape, *strides, 0) < 0 or (0 not in shape and last >= len(storage)):
        raise pickle.UnpicklingError("it has a tensor outside of its storage")
    apart = [step * storage.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, apart, writeable=False)


def keep_as_safetensors(path: Path) -> None:
    """Replace a TabPFN v1 checkpoint by its tensors and number of heads in a .safetensors file."""
    save = require("safetensors.numpy", extra="models").save
    state, _, settings = read_checkpoint(path)
    tensors = {name: np.ascontiguousarray(value) for name, value in state.items()}
    path.write_bytes(save(tensors, metadata={"nhead": str(settings["nhead"])}))
