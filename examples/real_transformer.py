"""Which heads of my transformer are nearly linear?

A recording has the queries, keys and values of every head on one prompt. For each head: the error
of the best affine map of the query, and the error of a compressed prompt of a tenth of the bytes.

    python examples/real_transformer.py heads.png recording.npz

`lp.models.record` makes a recording of a model, and `lp.models.probe` measures this and more of it.
Without a recording the heads are synthetic: two layers of three, with scores from flat to sharp.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import largeprompt as lp
from largeprompt.models import RecordedLayer, Recording


def synthetic() -> Recording:
    """Two layers of three heads with 400 keys, whose score deviations grow from 0.5 to 4."""
    rng, d, layers = np.random.default_rng(0), 16, []
    for deviations in ((0.5, 1.0, 1.5), (2.0, 3.0, 4.0)):
        shape = (3, 400, d)
        keys = rng.standard_t(5, shape) / (5 / 3) ** 0.5
        values = keys @ rng.normal(size=(d, d)) / 4 + rng.normal(size=shape)
        scale = np.array(deviations)[:, None, None] * d**-0.5
        queries = scale * (rng.normal(size=(3, 128, d)) + 0.5)
        arrays = (array.astype(np.float32) for array in (queries, keys, values))
        layers.append(RecordedLayer(*arrays, scaling=1.0))
    return Recording("synthetic", (tuple(layers),))


recording = Recording.load(sys.argv[2]) if len(sys.argv) > 2 else synthetic()
print(f"{recording.model}: {len(recording.layers)} layers")
print("layer  head  score deviation  not affine  compressed")
rows = []
for layer, number, (head, prompt, queries) in recording.heads():
    scores = queries @ np.asarray(head.U[: queries.shape[1]]).T @ np.asarray(prompt.keys).T
    deviation = scores.std(axis=1).mean()
    affine = float(lp.linearise(head, prompt, queries).residual.value)
    size = prompt.n * prompt.dim * prompt.dtype.itemsize // 10
    found = lp.compress(prompt, queries, size=size, head=head)
    small = found.error.mean if found.error else np.nan
    rows.append((deviation, affine, small))
    print(f"{layer:5d} {number:5d} {deviation:16.2f} {affine:11.3f} {small:11.4f}")
if len(sys.argv) > 1:  # a file to draw to: .pdf, .png or .svg
    figure = Figure((6, 3), layout="constrained")
    axes, (deviations, affine, small) = figure.subplots(), np.array(rows).T
    axes.plot(deviations, affine, "o", label="best affine map of the query")
    axes.plot(deviations, small, "s", label="a tenth of the bytes")
    axes.set(
        xlabel="standard deviation of the scores", ylabel="relative squared error", yscale="log"
    )
    axes.legend()
    figure.savefig(sys.argv[1])
