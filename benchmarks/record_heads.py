"""Recordings of real heads: `python -m benchmarks.record_heads FOLDER [--small]`.

Needs the extra `models` and weights in `$LARGEPROMPT_MODELS`: `smollm2/`, with a `.gguf` file of
SmolLM2-135M-Instruct; `minilm/`, all-MiniLM-L6-v2; `tabpfn/`, the checkpoint of TabPFN v1. Models
that are not there are left out. The texts ship with Debian and with Python.

FOLDER gets whole recordings for `python -m benchmarks.compression FOLDER`. `--small`
writes a few heads of each to benchmarks/data for tests, 4 MB in all. All are in half precision.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import largeprompt as lp
from largeprompt.models import RecordedLayer, Recording

from . import texts

DATA = Path(__file__).parent / "data"
LENGTH, AT_HAND, TO_SERVE = 960, 128, 64  # tokens of a prompt, its last queries, the next ones
_ROWS, _TEST_ROWS = 600, 200  # of the in-context learner


def named_texts() -> dict[str, str]:
    """Those that the method was developed on, then those to report."""
    first = {f"{name}, development": text for name, text in texts.development().items()}
    return first | texts.reported()


def decoder(path: Path, names: list[str]) -> Recording:
    """Every head of SmolLM2 on texts, with the queries of the last 128 + 64 positions."""
    model, tokenizer = lp.models.load_pretrained(path)
    found = named_texts()
    ids = [tokenizer(found[name])["input_ids"][: LENGTH + TO_SERVE] for name in names]
    recording = lp.models.record(model, ids, queries=AT_HAND + TO_SERVE)
    return Recording("SmolLM2-135M-Instruct", recording.prompts, tuple(names))


def encoder(path: Path) -> Recording:
    """Every head of all-MiniLM-L6-v2 on the 512 first tokens of a licence."""
    model, tokenizer = lp.models.load_pretrained(path)
    recording = lp.models.record(
        model, texts.reported()["licence"], tokenizer=tokenizer, length=512
    )
    return Recording("all-MiniLM-L6-v2", recording.prompts, ("licence",))


def learner(path: Path) -> Recording:
    """Every head of TabPFN on 600 rows of five features with logistic labels.

    Prompt 0 has the queries of test rows, prompt 1 those of the labelled rows.
    """
    models: Any = lp.models
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_ROWS + _TEST_ROWS, 5))
    p = 1 / (1 + np.exp(-X @ np.array([2.0, -1.5, 1.0, 0.5, 0.0])))
    y = (rng.random(len(X)) < p).astype(int)
    return models.TabPFN.load(path).record(X[:_ROWS], y[:_ROWS], X[_ROWS:])


def part(layer: RecordedLayer, groups: list[int], heads: int, queries: slice) -> RecordedLayer:
    """Some key-value heads, the first `heads` query heads of each, some queries."""
    size = layer.heads // len(layer.keys)
    index = [group * size + head for group in groups for head in range(min(heads, size))]
    return RecordedLayer(
        layer.queries[index][:, queries],
        layer.keys[groups],
        layer.values[groups],
        layer.scaling,
        None,
        None if layer.positions is None else layer.positions[queries],
        layer.error,
        layer.name,
    )


def small(recording: Recording, layers: dict[int, list[int]], heads: int, step: int) -> Recording:
    """These layers and groups only, with every `step`-th query."""
    prompts = tuple(
        tuple(part(whole[layer], groups, heads, np.s_[::step]) for layer, groups in layers.items())
        for whole in recording.prompts
    )
    return Recording(recording.model, prompts, recording.texts)


def main(folder: Path, also_small: bool) -> None:
    """Record what there are weights for."""
    weights = Path(os.environ["LARGEPROMPT_MODELS"])
    folder.mkdir(parents=True, exist_ok=True)
    names = list(named_texts())
    for path in sorted((weights / "smollm2").rglob("*.gguf")):
        for kind, chosen in (("decoder", names[3:]), ("development", names[:3])):
            found = decoder(path, chosen)
            found.save(folder / f"{kind}.npz", dtype=np.float16)
            if also_small and kind == "decoder":
                few = small(found, {4: [0], 15: [1], 26: [2]}, 2, 1)
                few.save(DATA / "decoder.npz", dtype=np.float16)
    if (weights / "minilm" / "config.json").exists():
        found = encoder(weights / "minilm")
        found.save(folder / "encoder.npz", dtype=np.float16)
        if also_small:
            few = small(found, {1: [0, 6], 4: [0, 6]}, 1, 2)
            few.save(DATA / "encoder.npz", dtype=np.float16)
    for path in sorted((weights / "tabpfn").rglob("*.safetensors")):
        found = learner(path)
        found.save(folder / "learner.npz", dtype=np.float16)
        if also_small:
            few = small(found, {4: [0]}, 1, 1)
            few = Recording(few.model, tuple(_halved(layers) for layers in few.prompts), few.texts)
            few.save(DATA / "learner.npz", dtype=np.float16)


def _halved(layers: tuple[RecordedLayer, ...]) -> tuple[RecordedLayer, ...]:
    """With at most 200 queries."""
    heads = layers[0].heads
    return tuple(
        part(layer, list(range(len(layer.keys))), heads, np.s_[:_TEST_ROWS]) for layer in layers
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--small" in sys.argv)
