"""Softmax or linear attention at my length?

For regression in context. The risks of the best heads are exact; ridge regression, the Bayes
predictor, is sampled.
"""

import sys

import jax
import numpy as np

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
index = np.arange(2)
task = lp.LinearRegression(
    0.5 ** np.abs(index[:, None] - index), task_cov=np.eye(2) / 2, noise_variance=0.1
)
curves = lp.risk_curves(task, [10, 100, 1000], lp.MonteCarlo(jax.random.key(0)))
print("     L    softmax     linear      Bayes")
for L, *risks in zip(
    *(curves[name].values for name in ("length", "softmax", "linear", "ridge")), strict=True
):
    print(f"{L:6.0f}   " + "   ".join(f"{risk:.6f}" for risk in risks))
print(f"   inf   {task.bayes_risk(np.inf).value:.6f} for all three")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    lp.save_figure(lp.plot_risks(curves), sys.argv[1])
