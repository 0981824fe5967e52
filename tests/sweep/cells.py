"""Cell functions for the tests: cheap, most without JAX, some with faults."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import xarray as xr

SIZE = 4000  # numbers a cell: long enough to be caught half-written


def draws(configuration, key):
    """Random numbers from a seed of the configuration, after a short sleep."""
    assert key is None
    time.sleep(configuration.get("sleep", 0.0))
    values = np.random.default_rng(configuration["seed"]).normal(size=configuration.get("size", 8))
    return xr.Dataset({"value": ("draw", values)}, attrs={"seed": configuration["seed"]})


def faulty(configuration, key):
    """Like `draws`, with the fault that the configuration names."""
    fault = configuration.get("fault")
    if fault == "raises":
        raise ZeroDivisionError("on purpose")
    if fault == "exits":
        sys.exit("on purpose")
    if fault == "dies once" and not Path(configuration["marker"]).exists():
        Path(configuration["marker"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return draws(configuration, key)


def returns(configuration, key):
    """Return what the configuration names, allowed or not."""
    value = {
        "finite": np.ones(2),
        "nan": np.array([1.0, np.nan]),
        "infinite": np.array([1.0, np.inf]),
        "none": np.array([1.0, None]),
        "large": np.array([2**40]),
        "complex": np.array([1j]),
        "empty": np.zeros(0),
    }[configuration["what"]]
    data = xr.Dataset({"value": ("entry", value)})
    if configuration.get("allowed"):
        data.attrs["non_finite_allowed"] = "slope value"
    if configuration.get("attribute"):
        data.value.attrs["bound"] = float("nan")
    return {"list": [1.0], "number": 2.0} if configuration.get("plain") else data


def kinds(configuration, key):
    """One variable of each kind that a cell may return."""
    return xr.Dataset(
        {
            "double": ("x", np.array([0.1, -0.0, 5e-324])),
            "single": ("x", np.array([0.1, 1e-45, 3e38], np.float32)),
            "whole": ("x", np.arange(3)),
            "truth": ("x", [True, False, True]),
            "text": ("x", ["é", "", "longer"]),
            "number": ((), 1.5, {"units": "seconds", "between": [1.0, 2.0]}),
        },
        coords={"x": [1.0, 2.0, 4.0], "label": ("x", ["a", "b", "c"])},
        attrs={"statement": "Lemma 2.1", "holds": 1, "value": 0.25},
    )


def ragged(configuration, key):
    """Results of varying length, one of them under a name that the consolidated file uses."""
    n = configuration["n"]
    return xr.Dataset(
        {"value": ("x", np.arange(n) / 2.0), "cell_seconds": ((), n)}, {"x": np.arange(n)}
    )


def jax_draws(configuration, key):
    """Random numbers in the precision that the sweep sets; imports JAX when called."""
    import jax
    import jax.numpy as jnp

    values = jax.random.normal(key, (4,)) if key is not None else jnp.arange(3) / 7
    return {"value": values, "bits": np.int32(64 * (values.dtype == jnp.float64))}
