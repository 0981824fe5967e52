"""How much several softmax heads gain in context, against one head and linear attention."""

import argparse

import jax
import numpy as np

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lengths", type=int, nargs="+", default=[1000])
parser.add_argument("--heads", type=int, nargs="+", default=[2])
chosen = parser.parse_args()
d = 5
task = lp.LinearRegression(np.eye(d), np.eye(d) / d, noise_variance=0.1)
counts = [f"{count} heads" for count in chosen.heads]
names = ["L", "one head", *counts, "linear, L - 1", "linear, L"]
print("| " + " | ".join(names) + " |")
print("|---" * len(names) + "|")
for L in chosen.lengths:
    best = [task.minimiser(L), *(task.minimiser(L, heads=count) for count in chosen.heads)]
    best += [task.minimiser(L - 1, "linear"), task.minimiser(L, "linear")]
    print(f"| {L} | " + " | ".join(f"{float(found.risk):.6f}" for found in best) + " |")
print("These are the best of several descents: upper bounds of the smallest risks.")
