"""Is my prompt long enough?

For tokens like yours, a head like yours, and the length you have. Replace `tokens`, `head` and `L`
by your own: embeddings of a layer (n, d), its K'Q / sqrt(d_head) and V, and your prompt length.
"""

import sys

import jax
import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
d, L = 16, 2000
tokens = rng.normal(size=(5000, d)) * np.linspace(1.0, 0.3, d)
U, V = rng.normal(size=(d, d)) / d, rng.normal(size=(d, d)) / d**0.5
head = lp.Head(U=U, V=V)

# tokens as a Gaussian of the same mean and covariance, queries like the tokens
law = lp.Gaussian(tokens.mean(axis=0), np.cov(tokens.T))
deviation = float(np.sqrt(np.trace(U.T @ law.cov() @ U @ law.cov())))
here = lp.regime(deviation, L)
print(f"scores have a standard deviation of about {deviation:.2f}: {here.name}")
print(f"softmax averages over {1 / here.p2:.0f} of {L} tokens")

curve = lp.concentration_curve(head, law, law, np.geomspace(2, 2e6, 13))
error = float(curve.value.sel(length=L, method="nearest"))
print(f"mean squared distance of {L} tokens to the infinite prompt: {error:.2e}")
print("1% accuracy:", lp.prompt_length_for(head, law, law, 0.01, relative=True).sentence)

# is the Gaussian a fair stand-in? the same query against the tokens themselves
z = tokens[0]
gap = lp.attend(head, lp.Empirical(tokens), z) - lp.attend(head, law, z)
size = np.linalg.norm(lp.attend(head, law, z))
distance = np.linalg.norm(gap) / size
print(f"relative distance of {len(tokens)} real tokens to the Gaussian limit: {distance:.2f}")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((6, 4), layout="constrained")
    lp.plots.curve(curve, ax=figure.subplots())
    figure.savefig(sys.argv[1])
