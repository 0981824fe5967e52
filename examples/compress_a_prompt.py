"""How far can I compress a prompt?

A prompt of 1000 keys and values is replaced by measures of a few per cent of its bytes. The error
is measured on queries that took no part: squared, relative to how much the outputs vary.
"""

import sys
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp

rng = np.random.default_rng(0)
d, L = 16, 1000
keys = rng.normal(size=(L, d)) * np.linspace(1.5, 0.2, d)
values = keys @ rng.normal(size=(d, d)) + rng.normal(size=(L, d))
queries = 0.6 * rng.normal(size=(256, d)) + 0.2
prompt, key = lp.KeyValues(keys, values), jax.random.key(0)
full = prompt.n * prompt.dim * 4  # bytes in single precision

tokens = (10, 20, 40, 80)
methods: Any = ("gaussian tail", "most attended", "centroids", "random")
errors = {}
print("bytes of the prompt  " + "".join(f"{n / L:8.0%}" for n in tokens))
for method in methods:
    sizes = [n * prompt.dim * 4 for n in tokens]
    small: list[Any] = [lp.compress(prompt, queries, size=s, method=method, key=key) for s in sizes]
    errors[method] = [found.error.mean for found in small]
    print(f"{method:20} " + "".join(f"{error:8.4f}" for error in errors[method]))

best: Any = lp.compress(prompt, queries, size=full // 25)
exact, found = (lp.attend(lp.Head.key_value(d, d), mu, queries[0]) for mu in (prompt, best))
parts = f"{best.n} tokens and a Gaussian of rank {best.tail.rank}"
print(f"{best.nbytes / full:.1%} of the bytes: {parts}")
with np.printoptions(precision=2, floatmode="fixed"):
    print(f"at one query: {np.array(found[:4])} for {np.array(exact[:4])}")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((6, 3), layout="constrained")
    axes = figure.subplots()
    for name, values in errors.items():
        axes.semilogy([100 * n / L for n in tokens], values, "o-", label=name)
    axes.set(xlabel="% of the bytes of the prompt", ylabel="relative squared error")
    axes.legend(loc="center right")
    figure.savefig(sys.argv[1])
