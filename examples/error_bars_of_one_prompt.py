"""Can I trust the error bar of one prompt?

`lp.prompt_uncertainty` needs the tokens of one prompt and no law. Here the law is known, so we can
count how often its region contains the infinite prompt, and what its diagnostic says.
"""

import argparse

import jax
import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("figure", nargs="?", help="a file to draw to: .pdf, .png or .svg")
parser.add_argument("--prompts", type=int, default=20, help="1000 in docs/one_prompt.md")
chosen = parser.parse_args()
mu, rng = lp.Gaussian(np.zeros(1), np.eye(1)), np.random.default_rng(0)
rows = []
print("| sigma | L | coverage | estimate / exact error | holds | too short |")
for sigma, L in [(s, L) for s in (0.5, 1, 1.5) for L in (100, 1000)] + [(2, 1000), (3, 1000)]:
    head, z = lp.Head(U=[[sigma]], V=[[1.0]]), np.ones(1)
    tokens = [lp.Empirical(rng.standard_normal((L, 1))) for _ in range(chosen.prompts)]
    bars = [lp.prompt_uncertainty(head, prompt, z) for prompt in tokens]
    covered = np.mean([bool(bar.contains([sigma])) for bar in bars])  # T = sigma
    ratio = np.mean([bar.squared_error for bar in bars]) / lp.output_error(head, mu, z, L)
    readings = [str(bar.reading) for bar in bars]
    holds, short = (np.mean([text in r for r in readings]) for text in ("holds", "too short"))
    print(f"| {sigma} | {L} | {covered:.2f} | {ratio:.2f} | {holds:.2f} | {short:.2f} |")
    rows.append((sigma, L, covered, short))
if chosen.figure:
    figure = Figure((6, 3), layout="constrained")
    axes = figure.subplots()
    sigmas, _, covered, short = zip(*(row for row in rows if row[1] == 1000), strict=True)
    axes.plot(sigmas, covered, "o-", label="the 95% region contains T")
    axes.plot(sigmas, short, "s--", label="reads “too short to know”")
    axes.axhline(0.95, color="black", linestyle="dotted")
    axes.set(xlabel="score deviation $\\sigma$", ylabel="share of prompts", title="L = 1000")
    axes.legend()
    figure.savefig(chosen.figure)
