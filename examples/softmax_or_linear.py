"""Softmax or linear attention for in-context regression? Exact risks of the best heads."""

import jax
import numpy as np

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
index = np.arange(2)
task = lp.LinearRegression(
    0.5 ** np.abs(index[:, None] - index), task_cov=np.eye(2) / 2, noise_variance=0.1
)
print("     L    softmax     linear      Bayes")
for L in (10, 100, 1000):
    bayes = task.bayes_risk(L, lp.MonteCarlo(jax.random.key(0)))
    softmax, linear = task.minimiser(L).risk, task.minimiser(L, "linear").risk
    print(f"{L:6d}   {softmax:.6f}   {linear:.6f}   {bayes.value:.6f}")
print(f"   inf   {task.bayes_risk(np.inf).value:.6f} for all three")
