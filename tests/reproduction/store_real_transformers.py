"""Store a result for the tests: `python -m tests.reproduction.store_real_transformers X`.

X is the folder of `python -m reproduction --study real-transformers --out X`. The file has the
numbers that the study measured, in single precision, without checks; its attributes say what made
them.
"""

import sys
from pathlib import Path

import numpy as np
import xarray as xr

STORED = Path(__file__).parents[1] / "data" / "real_transformers.nc"


def main(folder: str) -> None:
    """Read the result in the folder and replace the stored one."""
    with xr.open_dataset(Path(folder) / "data" / "real-transformers.nc", engine="scipy") as found:
        data = found.load()
    data = data.drop_vars([name for name in data.variables if str(name).startswith("check_")])
    numbers = {name: variable.astype(np.float32) for name, variable in data.data_vars.items()}
    data.assign(numbers).to_netcdf(STORED, engine="scipy")


if __name__ == "__main__":
    main(sys.argv[1])
