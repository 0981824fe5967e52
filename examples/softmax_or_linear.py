"""Softmax or linear attention at my length?

For linear regression in context: exact risks of the best softmax head, the best linear head and
ridge regression, which is the Bayes predictor. All three end at the noise floor; at the lengths in
between linear attention is ahead of one softmax head.
"""

import sys

import jax
import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
d, lengths = 5, (10, 30, 100, 300, 1000)
task = lp.LinearRegression(np.eye(d), task_cov=np.eye(d) / d, noise_variance=0.1)
floor = float(task.bayes_risk(np.inf).value)
risks = {
    "softmax": [float(task.minimiser(L).risk) for L in lengths],
    "linear": [float(task.minimiser(L, "linear").risk) for L in lengths],
    "Bayes": [float(task.bayes_risk(L).value) for L in lengths],
}
print("     L    softmax     linear      Bayes")
for L, *row in zip(lengths, *risks.values(), strict=True):
    print(f"{L:6d}   " + "   ".join(f"{risk:.6f}" for risk in row))
print(f"   inf   {floor:.6f} for all three")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((6, 3), layout="constrained")
    axes = figure.subplots()
    for name, values in risks.items():
        axes.loglog(lengths, np.array(values) - floor, "o-", label=name)
    axes.set(xlabel="prompt length $L$", ylabel="risk above the noise floor")
    axes.legend()
    figure.savefig(sys.argv[1])
