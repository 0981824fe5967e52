"""How often the error bar of one prompt holds, and what its diagnostic says."""

import argparse

import jax
import numpy as np

import largeprompt as lp

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--prompts", type=int, default=20, help="1000 in docs/one_prompt.md")
prompts = parser.parse_args().prompts
mu, rng = lp.Gaussian(np.zeros(1), np.eye(1)), np.random.default_rng(0)
print("| sigma | L | coverage | estimate / exact error | holds | too short |")
for sigma, L in [(s, L) for s in (0.5, 1, 1.5) for L in (100, 1000)] + [(2, 1000), (3, 1000)]:
    head, z = lp.Head(U=[[sigma]], V=[[1.0]]), np.ones(1)
    tokens = [lp.Empirical(rng.standard_normal((L, 1))) for _ in range(prompts)]
    bars = [lp.prompt_uncertainty(head, prompt, z) for prompt in tokens]
    covered = np.mean([bool(bar.contains([sigma])) for bar in bars])  # T = sigma
    ratio = np.mean([bar.squared_error for bar in bars]) / lp.output_error(head, mu, z, L)
    readings = [str(bar.reading) for bar in bars]
    holds, short = (np.mean([text in r for r in readings]) for text in ("holds", "too short"))
    print(f"| {sigma} | {L} | {covered:.2f} | {ratio:.2f} | {holds:.2f} | {short:.2f} |")
