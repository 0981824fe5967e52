"""Cell functions of the tests of sweeps; they import little, since every worker imports them."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import xarray as xr


def draws(cell, key):
    """Numbers by NumPy; says in a file, if the cell names one, that it was computed."""
    time.sleep(cell.get("sleep", 0))
    if "log" in cell:
        with open(cell["log"], "a") as log:
            log.write(f"{cell['seed']}\n")
    return {"value": expected(cell["seed"])}


def expected(seed: int) -> np.ndarray:
    """What `draws` returns."""
    return np.random.default_rng(seed).normal(size=8)


def faulty(cell, key):
    """`draws`, after the fault of the cell."""
    match cell.get("fault"):
        case "raises":
            raise ZeroDivisionError("on purpose")
        case "exits":
            raise SystemExit("on purpose")
        case "returns a list":
            return [1.0]
        case "returns nothing":
            return {"value": np.zeros(0)}
        case "returns a function":
            return {"value": faulty}
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "dies once" if not Path(cell["marker"]).exists():
            Path(cell["marker"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return draws(cell, key)


def steps(cell, key):
    """A dataset with its own dimension, of a size that depends on the cell."""
    n = cell["n"]
    data = {
        "square": ("step", np.arange(n) ** 2.0),
        "name": "a",
        "whole": np.int32(n),
        "sure": True,
    }
    axis = {"step": np.arange(n) / 2, "label": ("step", list("abc")[: len(np.arange(n))])}
    return xr.Dataset(data, axis, {"units": "seconds", "n": n})


def normal(cell, key):
    """Numbers by JAX."""
    import jax

    return {"value": jax.random.normal(key, (3,))}
