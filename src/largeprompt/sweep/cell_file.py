"""File format of a stored cell: one line with a checksum, then a netCDF file.

The netCDF file holds the data of the cell and, as an attribute, a record of how they were made.
"""

import hashlib
import io
import json
from typing import Any

import numpy as np
import xarray as xr

from .._message import error, message

_MAGIC = b"largeprompt cell 1 sha256 "
_RECORD = "largeprompt_cell_record"
_ALLOWED = "non_finite_allowed"


class Damaged(Exception):
    """A stored cell differs from what was written."""


def encode(data: xr.Dataset, record: dict[str, Any]) -> bytes:
    """Encode a dataset and its record as bytes.

    Raises if the dataset has an empty dimension, if netCDF would change one of its values, or if it
    has non-finite numbers in variables or attributes that `data.attrs["non_finite_allowed"]` does
    not list.
    """
    _check_not_empty(data)
    body = bytes(data.assign_attrs({_RECORD: json.dumps(record)}).to_netcdf(engine="scipy"))
    encoded = _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    stored, _ = decode(encoded)
    _check_unchanged(data, stored)
    _check_finite(stored)
    return encoded


def decode(encoded: bytes) -> tuple[xr.Dataset, dict[str, Any]]:
    """Return the dataset and its record; raise `Damaged` if any bit has changed."""
    head, _, body = encoded.partition(b"\n")
    if head != _MAGIC + hashlib.sha256(body).hexdigest().encode():
        raise Damaged("truncated" if len(encoded) < len(_MAGIC) + 65 else "checksum does not match")
    with xr.open_dataset(io.BytesIO(body), engine="scipy", decode_timedelta=False) as file:
        data = _native(file.load())
    return data, json.loads(data.attrs.pop(_RECORD))


def _native(data: xr.Dataset) -> xr.Dataset:
    """Arrays in the byte order of this machine and text as NumPy strings; netCDF has neither."""
    variables = {}
    for name, variable in data.variables.items():
        values = variable.values.astype(str) if variable.dtype == object else variable.values
        values = values.astype(values.dtype.newbyteorder("="))
        variables[name] = (variable.dims, values, _plain_attributes(variable.attrs))
    coordinates = {name: variables.pop(name) for name in data.coords}
    return xr.Dataset(variables, coordinates, _plain_attributes(data.attrs))


def _plain_attributes(attributes: dict[Any, Any]) -> dict[Any, Any]:
    return {
        name: value if isinstance(value, str) else np.asarray(value).tolist()
        for name, value in attributes.items()
    }


def _check_not_empty(data: xr.Dataset) -> None:
    """Raise if a dimension has length 0: netCDF would read it back as unlimited."""
    empty = [str(name) for name, size in data.sizes.items() if not size]
    if empty:
        raise error(
            "each dimension that a cell returns must have at least one entry",
            f"none along {', '.join(empty)}",
            "leave the empty variables out",
        )


def _check_unchanged(data: xr.Dataset, stored: xr.Dataset) -> None:
    changed = [str(name) for name in data.variables if not stored[name].equals(data[name])]
    if changed:
        raise error(
            "a cell must return numbers and text that a netCDF file stores without change",
            f"{', '.join(changed)}, changed by storing",
            "return float64, float32, 32-bit integers, booleans or text",
        )


def _check_finite(data: xr.Dataset) -> None:
    allowed = str(data.attrs.get(_ALLOWED, "")).split()
    found = [*data.variables.items(), *data.attrs.items()]
    for variable in data.variables.values():
        found += variable.attrs.items()
    bad = [str(name) for name, value in found if name not in allowed and not _is_finite(value)]
    if bad:
        raise FloatingPointError(
            message(
                "a cell must return finite numbers, or declare which may be NaN or infinite",
                f"NaN or infinity in {', '.join(bad)}",
                f"set the dataset's attribute {_ALLOWED!r} to their names, separated by spaces",
            )
        )


def _is_finite(value: object) -> bool:
    values = np.asarray(value)
    if values.dtype.kind in "fc":
        return bool(np.all(np.isfinite(values)))
    return values.dtype.kind not in "mM" or not np.any(np.isnat(values))
