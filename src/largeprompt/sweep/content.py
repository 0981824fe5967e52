"""The bytes of a stored cell: one line with a checksum, then a netCDF file with the data and how they were made."""

import hashlib
import io
import json
from typing import Any

import numpy as np
import xarray as xr

_MARK = b"largeprompt cell 1 sha256 "
_RECORD = "largeprompt_cell_record"


class Damaged(Exception):
    """A stored cell that is not what was written."""


def encode(data: xr.Dataset, record: dict[str, Any]) -> bytes:
    """A dataset and the record of its making as bytes."""
    body = bytes(data.assign_attrs({_RECORD: json.dumps(record)}).to_netcdf(engine="scipy"))
    return _MARK + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(content: bytes) -> tuple[xr.Dataset, dict[str, Any]]:
    """The dataset and the record; `Damaged` if a single bit differs from what was written."""
    head, _, body = content.partition(b"\n")
    if head != _MARK + hashlib.sha256(body).hexdigest().encode():
        raise Damaged("truncated" if len(content) < len(_MARK) + 65 else "checksum does not match")
    with xr.open_dataset(io.BytesIO(body), engine="scipy", decode_timedelta=False) as file:
        data = _native(file.load())
    return data, json.loads(data.attrs.pop(_RECORD))


def _native(data: xr.Dataset) -> xr.Dataset:
    """Arrays in the byte order of this machine and text as NumPy text; netCDF knows neither."""
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
