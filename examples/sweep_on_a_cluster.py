"""How do I run a sweep on a cluster?

Pass the address of a Dask scheduler. Here the cluster is started on this machine, with two workers;
on SLURM it comes from `dask_jobqueue`. Each finished cell is stored at once: run the script again
and it computes only what is missing.
"""

import sys
import tempfile
from typing import Any

import numpy as np
from distributed import LocalCluster
from matplotlib.figure import Figure

import largeprompt as lp

cells = lp.grid(sigma=[0.25, 0.5, 0.75, 1.0, 1.25, 1.5], L=[100], draws=[500])
sweep = lp.Sweep("largeprompt.sweep.example:sampled_error", cells, seed=0)
folder = tempfile.mkdtemp()  # choose a permanent folder
if __name__ == "__main__":  # workers that are processes import this file
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "protocol": "tcp"}
    options |= {"processes": False, "dashboard_address": None}  # threads, which start faster
    cluster: Any = LocalCluster(**options)
    with cluster:
        result = sweep.run(folder, cluster=cluster.scheduler_address)
    print(f"{result.computed} cells computed, {len(result.failures)} failed")
    print(f"again: {sweep.run(folder).reused} cells found")

    data, head = result.consolidate(), lp.Head(U=np.eye(1), V=np.eye(1))
    sigma, sampled = data.sigma.values, data.squared_error.mean("draw").values
    bars = data.squared_error.std("draw").values / 500**0.5
    exact = [lp.output_error(head, lp.Gaussian([0.0], [[s**2]]), [1.0], 100) for s in sigma]
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
