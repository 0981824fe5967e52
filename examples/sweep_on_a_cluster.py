"""How do I run a sweep on a cluster?

Pass the executor of a Dask client. Here the cluster is started on this machine, with two workers;
on SLURM it comes from `dask_jobqueue`. Each finished cell is stored at once: run the script again
and it computes only what is missing.
"""

import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from distributed import Client, LocalCluster
from matplotlib.figure import Figure

import largeprompt as lp

HEAD = lp.Head(U=np.eye(1), V=np.eye(1))


def sampled_error(cell, key):
    """Squared errors of 500 prompts of L tokens N(0, sigma^2) at the query 1."""
    tokens = cell["sigma"] * jax.random.normal(key, (500, cell["L"]))
    outputs = jnp.sum(jax.nn.softmax(tokens) * tokens, axis=1)
    return {"error": (outputs - cell["sigma"] ** 2) ** 2}


if __name__ == "__main__":  # workers that are processes import this file
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "protocol": "tcp"}
    options |= {"processes": False, "dashboard_address": ":0"}  # threads, which start faster
    cluster: Any = LocalCluster(**options)
    grid = {"sigma": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5], "L": [100]}
    folder = tempfile.mkdtemp()  # choose a permanent folder
    with cluster, Client(cluster) as client:
        data = lp.sweep(sampled_error, grid, folder, client.get_executor(), seed=0)
    print(f"{data.sizes['sigma']} cells, failures: {data.attrs['failures'] or 'none'}")

    sigma, errors = data.sigma.values, data.error.sel(L=100).values
    sampled, bars = errors.mean(axis=1), errors.std(axis=1) / errors.shape[1] ** 0.5
    exact = [lp.output_error(HEAD, lp.Gaussian([0.0], [[s**2]]), [1.0], 100) for s in sigma]
    print("sigma   sampled              exact")
    for s, found, bar, known in zip(sigma, sampled, bars, exact, strict=True):
        print(f"{s:5}   {found:.5f} +- {bar:.5f}   {known:.5f}")
    if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
        figure = Figure((6, 3), layout="constrained")
        axes = figure.subplots()
        axes.errorbar(sigma, sampled, 2 * bars, fmt="o", label="sampled on the cluster")
        axes.plot(sigma, exact, label="exact")
        axes.set(xlabel="standard deviation of the tokens", yscale="log")
        axes.set(ylabel="squared error", title="prompts of 100 tokens")
        axes.legend()
        figure.savefig(sys.argv[1])
