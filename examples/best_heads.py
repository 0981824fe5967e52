"""What do two heads gain over one?

For regression in context, against one head and linear attention. The risks are exact; each is the
best of several descents, an upper bound of the smallest risk.
"""

import argparse

import jax
import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("figure", nargs="?", help="a file to draw to: .pdf, .png or .svg")
parser.add_argument("--lengths", type=int, nargs="+", default=[1000])
parser.add_argument("--heads", type=int, nargs="+", default=[2])
chosen = parser.parse_args()
d = 5
task = lp.LinearRegression(np.eye(d), np.eye(d) / d, noise_variance=0.1)
names = ["one head", *(f"{n} heads" for n in chosen.heads), "linear, L - 1", "linear, L"]
print("| " + " | ".join(["L", *names]) + " |")
print("|---" * (1 + len(names)) + "|")
risks = []
for L in chosen.lengths:
    best = [task.minimiser(L), *(task.minimiser(L, heads=count) for count in chosen.heads)]
    best += [task.minimiser(L - 1, "linear"), task.minimiser(L, "linear")]
    risks.append([float(found.risk) for found in best])
    print(f"| {L} | " + " | ".join(f"{risk:.6f}" for risk in risks[-1]) + " |")
print("The risk of an infinite prompt is 0.05: half the variance of the noise.")
if chosen.figure:
    figure = Figure((6, 3), layout="constrained")
    axes = figure.subplots()
    for i, (L, row) in enumerate(zip(chosen.lengths, risks, strict=True)):
        bars = np.arange(len(names)) + 0.8 * (i + 0.5) / len(risks) - 0.4
        axes.bar(bars, np.array(row) - 0.05, 0.75 / len(risks), label=f"L = {L}")
    axes.set(yscale="log", ylabel="risk above that of an infinite prompt")
    axes.set_xticks(range(len(names)), names)
    axes.legend()
    figure.savefig(chosen.figure)
