"""The arrays of a curve."""

import numpy as np
import xarray as xr

from .. import _checks


def columns(curve: xr.Dataset, *attrs: str) -> list[np.ndarray]:
    """Lengths, values and errors of a curve, which must also have these attributes."""
    names = ("length", "value", "error")
    missing = [name for name in names if name not in curve.variables]
    missing += [name for name in attrs if name not in curve.attrs]
    if missing:
        raise _checks.error(
            "curve must be a dataset that concentration_curve returned",
            f"a dataset without {', '.join(missing)}",
            "select lengths of it with curve.sel, which keeps the rest",
        )
    return [np.atleast_1d(np.asarray(curve[name].values, np.float64)) for name in names]
