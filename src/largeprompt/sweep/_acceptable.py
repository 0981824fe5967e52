"""What a cell may return: finite numbers, or declared exceptions, that a netCDF file keeps exactly."""

import numpy as np
import xarray as xr

from .._message import message

ALLOWED = "non_finite_allowed"


def refuse_empty(data: xr.Dataset) -> None:
    """Raise for a dimension of length 0, which the file format reads back as something else."""
    empty = [str(name) for name, size in data.sizes.items() if not size]
    if empty:
        raise ValueError(
            message(
                "each dimension that a cell returns must have at least one entry",
                f"none along {', '.join(empty)}",
                "leave the empty variables out",
            )
        )


def refuse_changed(data: xr.Dataset, kept: xr.Dataset) -> None:
    """Raise if storing has changed a value."""
    changed = [str(name) for name in data.variables if not kept[name].equals(data[name])]
    if changed:
        raise ValueError(
            message(
                "a cell must return numbers and text that a netCDF file keeps exactly",
                f"{', '.join(changed)}, changed by storing",
                "return float64, float32, 32-bit integers, booleans or text",
            )
        )


def refuse_non_finite(data: xr.Dataset) -> None:
    """Raise unless each variable and attribute that is not finite is declared in the dataset's attribute `ALLOWED`."""
    allowed = str(data.attrs.get(ALLOWED, "")).split()
    found = [*data.variables.items(), *data.attrs.items()]
    for variable in data.variables.values():
        found += variable.attrs.items()
    bad = [str(name) for name, value in found if name not in allowed and not _finite(value)]
    if bad:
        raise FloatingPointError(
            message(
                "a cell must return finite numbers, or declare which variables may be NaN or infinite",
                f"NaN or infinity in {', '.join(bad)}",
                f"mend the computation, or set the dataset's attribute {ALLOWED!r} to their names, separated by spaces",
            )
        )


def _finite(value: object) -> bool:
    values = np.asarray(value)
    if values.dtype.kind in "fc":
        return bool(np.all(np.isfinite(values)))
    return values.dtype.kind not in "mM" or not np.any(np.isnat(values))
