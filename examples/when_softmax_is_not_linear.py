"""When is softmax attention not linear attention?

With Gaussian tokens the infinite prompt is linear attention. Tokens that are signs converge as
well, but to another limit.
"""

import sys

import jax
import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
head, query = lp.Head(U=np.eye(2), V=np.eye(2)), lp.Dirac(np.ones(2))
comparison = lp.limit_comparison(head, lp.Rademacher(2), query, np.geomspace(1, 1e9, 10))
for L, own, linear in zip(
    *(comparison[n].values for n in ("length", "own_limit", "linear")), strict=True
):
    print(f"L = {L:8.0e}   to its own limit {own:.2e}   to linear attention {linear:.4f}")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((6, 4), layout="constrained")
    lp.plots.curve(comparison, ax=figure.subplots()).set_title("signs")
    figure.savefig(sys.argv[1])
