"""Merge cells into one dataset: stacked along `cell` if they have one form, else side by side."""

import json
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray as xr

Found = tuple[xr.Dataset, dict[str, Any]]
_OF_THE_SWEEP = ("function", "code", "largeprompt")
_OF_EACH_CELL = (
    "address", "configuration", "key", "seconds", "date", "python", "numpy", "jax", "backend",
)  # fmt: skip


def consolidate(found: Sequence[Found], *, missing: int, failures: Sequence[str]) -> xr.Dataset:
    """Merge all cells into one dataset, with every number and attribute of every cell."""
    datasets, records = [data for data, _ in found], [record for _, record in found]
    made = {
        f"cell_{name}": ("cell", [record[name] for record in records]) for name in _OF_EACH_CELL
    }
    made["cell_attributes"] = ("cell", [json.dumps(data.attrs) for data in datasets])
    reserved = {"cell", *made} & {*datasets[0].variables, *datasets[0].dims}
    alike = not reserved and all(_form(data) == _form(datasets[0]) for data in datasets[1:])
    merged = _stacked(datasets) if alike else _side_by_side(datasets)
    merged = merged.assign(made)
    settings = [json.loads(record["configuration"]) for record in records]
    merged = merged.assign_coords(_axes(settings, taken={*merged.variables, *merged.dims}))
    merged.attrs = {name: records[0][name] for name in _OF_THE_SWEEP}
    merged.attrs["layout"] = "stacked" if alike else "side by side"
    merged.attrs["cells"] = np.int32(len(found))
    merged.attrs["missing_cells"] = np.int32(missing)
    merged.attrs["failures"] = json.dumps(list(failures))
    return merged


def _form(data: xr.Dataset) -> Any:
    """Names, dimensions, types, attributes and axes: equal for cells that can be stacked."""
    variables = sorted(
        (
            str(name),
            v.dims,
            v.shape,
            v.dtype.kind if v.dtype.kind == "U" else v.dtype.str,
            str(v.attrs),
        )
        for name, v in data.variables.items()
    )
    axes = sorted(
        (str(name), data.variables[name].to_numpy().tolist()) for name in _axis_names(data)
    )
    return variables, sorted(map(str, data.coords)), axes


def _axis_names(data: xr.Dataset) -> list[Hashable]:
    return [name for name in data.coords if name in data.dims]


def _stacked(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    first = datasets[0]
    coordinates = {name: first.variables[name] for name in _axis_names(first)}
    stacked = {
        name: (
            ("cell", *variable.dims),
            np.stack([data[name].values for data in datasets]),
            variable.attrs,
        )
        for name, variable in first.variables.items()
        if name not in coordinates
    }
    more = {name: stacked.pop(name) for name in first.coords if name in stacked}
    return xr.Dataset(stacked, coordinates | more)


def _side_by_side(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Variables and dimensions of cell i carry the prefix `cell<i>_`."""
    renamed = [
        data.drop_attrs(deep=False).rename(
            {name: f"cell{i}_{name}" for name in {*data.variables, *data.dims}}
        )
        for i, data in enumerate(datasets)
    ]
    return xr.merge(renamed, compat="equals", join="exact")


def _axes(settings: Sequence[dict[str, Any]], taken: set) -> dict[str, Any]:
    """Coordinates from the entries that are one number, text or truth value in every cell."""
    axes = {}
    for name in settings[0]:
        values: list[Any] = [setting.get(name) for setting in settings]
        kinds = {type(value) for value in values}
        simple = kinds <= {int, float} or kinds in ({str}, {bool})
        if simple and name.isidentifier() and name not in taken:
            too_large = kinds == {int} and max(map(abs, values)) >= 2**31  # for netCDF integers
            axes[name] = ("cell", np.array(values, float if too_large else None))
    return axes
