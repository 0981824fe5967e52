"""Can a head learn my task in context?

A task is four things: the dimension of a token, the law of w, the tokens given w, and queries with
targets. Here y = tanh(w x), and a head is trained on prompts of 20 pairs (x, y).
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import largeprompt as lp


class Saturating(lp.AbstractTask):
    """y = tanh(w x), with x on a grid between -2 and 2."""

    dim: int = 2

    def sample_w(self, key):
        return jax.random.uniform(key, (), minval=-2.0, maxval=2.0)

    def tokens(self, w):
        x = jnp.linspace(-2.0, 2.0, 33)
        return lp.Empirical(jnp.stack([x, jnp.tanh(w * x)], axis=1))

    def sample_query(self, key, w):
        x = jax.random.uniform(key, (), minval=-2.0, maxval=2.0)
        return jnp.array([x, 0.0]), jnp.tanh(w * x)


task, start = Saturating(), lp.BlockParams(0.2 * jnp.eye(1), 0.2)
run = lp.descend(jax.random.key(0), task, start, 20, 200, 64, optax.adam(0.05), record_every=20)
print(run.status)
for name, params, risk in (("start", start, run.risk[0]), ("trained", run.final, run.risk[-1])):
    print(f"{name:8} A = {params.A.item():.2f}, b = {params.b:.2f}, risk {risk:.3f}")

# what the trained head predicts from the tokens of one w, at every query
w, x = 1.5, np.linspace(-2, 2, 41)
U, v = run.final.matrices()
head = lp.Head(U=U, V=v[None])
predicted = lp.attend(head, task.tokens(w), np.stack([x, np.zeros_like(x)], axis=1))[:, 0]
gap = np.abs(predicted - np.tanh(w * x)).max()
print(f"w = {w}: largest distance from tanh(w x) {gap:.2f}")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(run.steps, run.risk, "o-")
    left.set(xlabel="step", ylabel="risk", yscale="log", title="training")
    right.plot(x, predicted, label="trained head")
    right.plot(x, np.tanh(w * x), "--", label="tanh(w x)")
    right.set(xlabel="query x", title=f"w = {w}")
    right.legend()
    figure.savefig(sys.argv[1])
