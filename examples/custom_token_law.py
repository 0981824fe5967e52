"""What if my tokens follow another law?

A law is a class with the logarithm of its moment generating function and a way to sample. Here
tokens are counts. Attention on an infinite prompt of them is a logistic function of the query, far
from linear attention, which reads only the first two moments. A law that also lists its atoms has
exact errors at every length.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.special import comb

import largeprompt as lp

jax.config.update("jax_enable_x64", True)


class Binomial(lp.AbstractAutodiffMeasure):
    """Number of heads in n tosses of a coin: log E e^(ux) = n log(1 - p + p e^u)."""

    p: jax.Array
    n: int = 20
    dim: int = 1

    def log_mgf(self, u):
        return jnp.sum(self.n * jnp.log1p(self.p * jnp.expm1(jnp.asarray(u))))

    def sample(self, key, n):
        tosses = jax.random.bernoulli(key, self.p, (n, self.n))
        return lp.Empirical(tosses.sum(axis=1, keepdims=True).astype(float))

    def atoms(self):  # optional: with it averages over prompts are exact
        k = np.arange(self.n + 1)
        return lp.Empirical(
            k[:, None] * 1.0, comb(self.n, k) * self.p**k * (1 - self.p) ** (self.n - k)
        )


counts, head = Binomial(p=jnp.array(0.1)), lp.Head(U=np.eye(1), V=np.eye(1))
queries = np.linspace(-3, 4, 15)[:, None]
infinite = lp.attend(head, counts, queries)[:, 0]
linear = lp.attend_linear(head, counts, queries)[:, 0]
finite = lp.attend(head, counts.sample(jax.random.key(0), 1000), queries)[:, 0]
errors = lp.output_error(head, counts, queries, 1000)
print("query   infinite   1000 tokens   expected error   linear attention")
for i in (0, 6, 8, 10, 14):
    outputs = f"{infinite[i]:8.3f}   {finite[i]:11.3f}   {errors[i] ** 0.5:14.3f}"
    print(f"{queries[i, 0]:5}   {outputs}   {linear[i]:16.1f}")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(queries, infinite, label="infinite prompt")
    axes.errorbar(
        queries[:, 0], finite, 2 * errors**0.5, fmt="o", label="1000 counts, 2 deviations"
    )
    axes.plot(queries, linear, "--", label="linear attention")
    axes.set(xlabel="query $z$", ylabel="output", ylim=(-5, 25))
    axes.legend()
    figure.savefig(sys.argv[1])
