"""Compressed prompts at equal bytes: `python -m benchmarks.compression [FOLDER] [CASE ...]`.

Real heads are those of the recordings in FOLDER (`python -m benchmarks.record_heads FOLDER`), and
the few in benchmarks/data. A decoder's heads have 960 tokens; the first 4 and the last 28 always
stay, and sizes are beyond these. Compressions see the last 128 queries of the prompt and serve the
next 64, which they do not see: `decoder` passes these 128 as they are, `decoder later` turns them
to the positions of the next 64 (`lp.models.rotate`), which needs no future token. An encoder's
queries of even positions are those at hand, the others are served. An in-context learner sees the
queries of its labelled rows and serves those of other rows.

Synthetic heads have keys and values that are latent variables with heavy tails seen through random
matrices, plus noise, and a sink that the mean query attends to. Three laws of queries make scores
of growing deviation. A last table compares with Gaussian tokens, where the answer of the infinite
prompt is known (Lemma 2.1): a compressed prompt need not be nearer to it than the prompt is.

Errors are squared, relative to the output's deviation from the mean value, averaged over the
queries of a head. Every case is stored as soon as it ends, in results/compression.json and
compression.md. `python -m benchmarks.compression tables` only measures time and Gaussian tokens
(results/compression_tables.json); `ahead` prints where other methods win in the stored run.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

import largeprompt as lp
from largeprompt.compression.compress import Choose, Method
from largeprompt.compression.compressed import draft_of
from largeprompt.compression.draft import outputs
from largeprompt.models import RecordedLayer, Recording

from .record_heads import AT_HAND, DATA, LENGTH, TO_SERVE
from .timing import machine

RESULTS = Path(__file__).parent / "results"
TABLES = RESULTS / "compression_tables.json"
_SIZES = (4, 16, 65, 130, 260)  # tokens' worth of bytes
_BASE = 100_000.0  # of the decoder's rotary positions
_KEEP = np.r_[0:4, LENGTH - 28 : LENGTH]
_PAUSE = 0.3  # seconds before a call is timed: threads of the one before wait actively for a while
_TOKENS, _DIM, _LATENT, _QUERIES, _HEADS = 1000, 64, 16, 320, 8


class Family(NamedTuple):
    """Scale of the mean query and of the deviations of queries from it."""

    mean: float
    deviation: float


_FAMILIES = {
    "scores of deviation 2": Family(1.5, 1.0),
    "scores of deviation 3.5": Family(3.0, 1.5),
    "scores of deviation 5": Family(4.0, 3.0),
}


def head(seed: int, family: Family) -> tuple[lp.KeyValues, np.ndarray]:
    """Keys and values of a synthetic head, and its queries."""
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.normal(size=(_DIM, _LATENT)))[0].T
    scales = np.exp(-np.arange(_LATENT) / 5)
    scales /= np.sqrt(np.mean(scales**2))
    latent = 0.8 * rng.standard_t(5, size=(_TOKENS, _LATENT))
    keys = (latent * scales) @ frame + 0.3 * rng.normal(size=(_TOKENS, _DIM))
    values = latent @ rng.normal(size=(_LATENT, _DIM)) / 4 + rng.normal(size=(_TOKENS, _DIM))
    steps = family.deviation * rng.normal(size=(_QUERIES, _LATENT)) / 4
    centre = family.mean * rng.normal(size=_LATENT) / 4
    queries = (centre + steps) @ frame + 0.1 * rng.normal(size=(_QUERIES, _DIM))
    mean = queries.mean(axis=0)
    keys[0] = mean / np.sum(mean**2) * rng.uniform(5, 9)
    values[0] *= 0.1
    keys, values, queries = (a.astype(np.float32) for a in (keys, values, queries))
    return lp.KeyValues(keys, values), queries


class Case(NamedTuple):
    """One head; `layer` tells which heads add up to an output, by `matrix` (width, v)."""

    prompt: lp.KeyValues
    at_hand: np.ndarray
    served: np.ndarray
    keep: np.ndarray
    layer: str
    matrix: np.ndarray | None = None

    def error(self, size: int, rule: dict[str, Any]) -> "Gap":
        """Error of a compression of the size of so many tokens besides those to keep."""
        budget = (len(self.keep) + size) * self.prompt.dim * self.prompt.dtype.itemsize
        found = lp.compress(
            self.prompt, self.at_hand, size=budget, keep=self.keep, key=jax.random.key(0), **rule
        )
        assert found.nbytes <= budget
        keys, values, z = (
            np.asarray(a, np.float64) for a in (self.prompt.keys, self.prompt.values, self.served)
        )
        terms = np.exp(z @ keys.T - np.max(z @ keys.T, axis=1, keepdims=True))
        exact = terms @ values / terms.sum(axis=1, keepdims=True)
        error, deviation = outputs(draft_of(found), z) - exact, exact - values.mean(axis=0)
        return Gap(error, deviation)


class Gap(NamedTuple):
    """Errors and deviations of outputs, (q, v) each."""

    error: np.ndarray
    deviation: np.ndarray

    @property
    def relative(self) -> float:
        """Mean squared error over mean squared deviation."""
        return float(np.sum(self.error**2) / np.sum(self.deviation**2))


@dataclass(frozen=True)
class Errors:
    """One method at one size: statistics over heads, and the median over layers of the error after
    the output matrix, where a layer has all its heads.
    """

    method: str
    size: int
    heads: int
    median: float
    mean: float
    percentile_90: float
    percentile_99: float
    after_output: float | None


def measured(cases: list[Case], rules: dict[str, dict[str, Any]]) -> Iterator[Errors]:
    """Errors of every rule at every size."""
    for name, rule in rules.items():
        for size in _SIZES:
            gaps = [case.error(size, rule) for case in cases]
            errors = [gap.relative for gap in gaps]
            yield Errors(
                name,
                size,
                len(errors),
                float(np.median(errors)),
                float(np.mean(errors)),
                float(np.percentile(errors, 90)),
                float(np.percentile(errors, 99)),
                _after_output(cases, gaps),
            )
            print(f"{name:30} {size:4} {np.median(errors):.5f}", file=sys.stderr, flush=True)


def _after_output(cases: list[Case], gaps: list[Gap]) -> float | None:
    sums: dict[str, list[Gap]] = {}
    for case, gap in zip(cases, gaps, strict=True):
        if case.matrix is not None:
            seen = Gap(gap.error @ case.matrix.T, gap.deviation @ case.matrix.T)
            sums.setdefault(case.layer, []).append(seen)
    totals = [Gap(*(np.sum(part, axis=0) for part in zip(*s, strict=True))) for s in sums.values()]
    return float(np.median([total.relative for total in totals])) if totals else None


METHODS: dict[str, dict[str, Any]] = {method: {"method": method} for method in get_args(Method)}
RULES = METHODS | {
    f"gaussian tail by {rule}": {"choose": rule} for rule in get_args(Choose) if rule != "leverage"
}


def decoder(recording: Recording, later: bool, every: int = 1) -> Iterator[Case]:
    """Heads of every so many layers, on all prompts."""
    for text, layers in zip(recording.texts, recording.prompts, strict=True):
        for layer in layers[::every]:
            for number in range(layer.heads):
                yield _decoder_case(layer, number, later, f"{text} {layer.name}")


def _decoder_case(layer: RecordedLayer, number: int, later: bool, name: str) -> Case:
    queries, group = layer.scaling * layer.queries[number], layer.group(number)
    assert layer.positions is not None
    at_hand, served = queries[:AT_HAND], queries[AT_HAND:]
    if later:
        positions = LENGTH + np.arange(AT_HAND) * TO_SERVE // AT_HAND
        at_hand = lp.models.rotate(at_hand, positions - layer.positions[:AT_HAND], base=_BASE)
    prompt = lp.KeyValues(layer.keys[group, :LENGTH], layer.values[group, :LENGTH])
    return Case(prompt, at_hand, served, _KEEP, name, _matrix(layer, number))


def _matrix(layer: RecordedLayer, number: int) -> np.ndarray | None:
    if layer.output_matrix is None:
        return None
    width = layer.values.shape[-1]
    return layer.output_matrix[:, number * width : (number + 1) * width]


def encoder(recording: Recording, every: int = 1) -> Iterator[Case]:
    """Heads whose queries of even positions are those at hand, others are served."""
    for layer in recording.layers[::every]:
        for number in range(layer.heads):
            queries, group = layer.scaling * layer.queries[number], layer.group(number)
            prompt = lp.KeyValues(layer.keys[group], layer.values[group])
            matrix = _matrix(layer, number)
            yield Case(prompt, queries[::2], queries[1::2], np.arange(0), layer.name, matrix)


def learner(recording: Recording, every: int = 1) -> Iterator[Case]:
    """Heads that see the queries of labelled rows and serve those of others."""
    for layer_number, (served, own) in enumerate(zip(*recording.prompts, strict=True)):
        for number in range(served.heads if layer_number % every == 0 else 0):
            prompt = lp.KeyValues(served.keys[number], served.values[number])
            at_hand, asked = (layer.scaling * layer.queries[number] for layer in (own, served))
            matrix = _matrix(served, number)
            yield Case(prompt, at_hand, asked, np.arange(0), str(layer_number), matrix)


def synthetic(family: Family) -> Iterator[Case]:
    """Heads of one family; a fifth of the queries is served."""
    for seed in range(_HEADS):
        prompt, queries = head(seed, family)
        cut = 4 * len(queries) // 5
        yield Case(prompt, queries[:cut], queries[cut:], np.arange(0), str(seed))


def cases(folder: Path | None) -> dict[str, Callable[[], Iterator[Case]]]:
    """What can be measured: recordings of FOLDER, stored heads, synthetic ones."""
    found: dict[str, Callable[[], Iterator[Case]]] = {}
    for where, name, every in ((folder, "", 6), (DATA, "stored ", 1)):
        if where is None:
            continue
        if (path := where / "decoder.npz").exists():
            recorded = Recording.load(path)
            found[f"{name}decoder"] = lambda r=recorded, e=every: decoder(r, False, e)
            found[f"{name}decoder later"] = lambda r=recorded, e=every: decoder(r, True, e)
        if (path := where / "encoder.npz").exists():
            recorded = Recording.load(path)
            found[f"{name}encoder"] = lambda r=recorded, e=every: encoder(r, max(1, e // 3))
        if (path := where / "learner.npz").exists():
            recorded = Recording.load(path)
            found[f"{name}learner"] = lambda r=recorded, e=every: learner(r, max(1, e // 2))
    for name, family in _FAMILIES.items():
        found[f"synthetic, {name}"] = lambda f=family: synthetic(f)
    return found


def store(name: str, lines: list[Errors]) -> None:
    """Replace one case of the stored run."""
    path = RESULTS / "compression.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found[name] = {
        "where": machine(),
        "date": str(date.today()),
        "lines": [asdict(line) for line in lines],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "compression.md").write_text(as_text(found))


def as_text(found: dict[str, Any]) -> str:
    """Markdown of stored cases."""
    blocks = []
    for name, case in sorted(found.items()):
        lines = case["lines"]
        blocks.append(
            f"## {name}: {lines[0]['heads']} heads\n\n"
            "Median / mean / 90th / 99th percentile over heads; in brackets the median over "
            "layers after the output matrix.\n\n"
            f"{_table(lines)}\n\n{case['date']}, {case['where']}.\n"
        )
    return "\n".join(blocks)


def _table(lines: list[dict[str, Any]]) -> str:
    sizes = sorted({line["size"] for line in lines})
    rows = ["| method | " + " | ".join(f"{size} tokens" for size in sizes) + " |"]
    rows.append("|---" * (len(sizes) + 1) + "|")
    names = ("median", "mean", "percentile_90", "percentile_99")
    for method in dict.fromkeys(line["method"] for line in lines):
        cells = []
        for size in sizes:
            line = next(x for x in lines if (x["method"], x["size"]) == (method, size))
            cell = " / ".join(f"{line[name]:.2g}" for name in names)
            after = line["after_output"]
            cells.append(cell if after is None else f"{cell} ({after:.2g})")
        rows.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def ahead(found: dict[str, Any]) -> str:
    """Where another method has a smaller error than the Gaussian tail, from stored cases."""
    names = ("median", "mean", "percentile_90", "percentile_99", "after_output")
    rows = ["| case | tokens | statistic | gaussian tail | ahead |", "|---" * 5 + "|"]
    for case in sorted(found):
        lines = [line for line in found[case]["lines"] if line["method"] in METHODS]
        for own in (line for line in lines if line["method"] == "gaussian tail"):
            others = [line for line in lines if line["size"] == own["size"] and line is not own]
            for name in names:
                better = [x for x in others if own[name] is not None and x[name] < own[name]]
                better.sort(key=lambda line, name=name: line[name])
                if better:
                    who = ", ".join(f"{line['method']} {line[name]:.3g}" for line in better)
                    label = name.replace("percentile_", "percentile ").replace("_", " ")
                    rows.append(f"| {case} | {own['size']} | {label} | {own[name]:.3g} | {who} |")
    return "\n".join(rows)


def gaussian_tokens() -> list[dict[str, Any]]:
    """Errors against the infinite prompt, for Gaussian tokens."""
    rng = np.random.default_rng(0)
    d = 8
    factor = rng.normal(size=(2 * d, 2 * d)) / (2 * d) ** 0.5
    law, reader = lp.Gaussian.from_factor(np.zeros(2 * d), factor), lp.Head.key_value(d, d)
    tokens = np.asarray(law.sample(jax.random.key(0), 4000).points)
    prompt = lp.KeyValues(tokens[:, :d], tokens[:, d:])
    queries = 0.7 * rng.normal(size=(200, d)) + 0.3
    limit = np.asarray(lp.attend(reader, law, queries))
    deviation = np.mean(np.sum(limit**2, axis=1))
    lines = []
    rows: dict[str, Any] = {"the prompt": prompt}
    rows["its Gaussian, rank 8"] = lp.compress(prompt, queries, atoms=0, rank=d)
    rows["9 most attended tokens"] = lp.compress(prompt, queries, atoms=9, method="most attended")
    for name, measure in rows.items():
        gap = np.asarray(lp.attend(reader, measure, queries)) - limit
        leaves = jax.tree.leaves((measure.keys, measure.values, getattr(measure, "tail", None)))
        error = np.mean(np.sum(gap**2, axis=1)) / deviation
        size = sum(leaf.nbytes for leaf in leaves)
        lines.append({"measure": name, "bytes": size, "error": float(error)})
    return lines


# tokens, queries, and prompts in a row
_TIMED = (
    (10_000, 64, 8),
    (100_000, 64, 1),
    (100_000, 64, 8),
    (100_000, 256, 8),
    (1_000_000, 64, 1),
)


def times(dim: int = 64) -> list[dict[str, Any]]:
    """Seconds to compress and to attend, beside one pass of full attention, for each prompt.

    CPU time of all threads, which others on the machine disturb less than wall time. Several
    prompts in a row are the heads of a layer: a single one also pays for code that is not in the
    cache. The fastest of rounds in which everything takes turns. Set OPENBLAS_NUM_THREADS=1:
    threads of BLAS that wait count too.
    """
    lines = []
    for L, queries, prompts in _TIMED:
        heads = [_TimedHead(np.random.default_rng(h), L, queries, dim) for h in range(prompts)]
        calls: dict[str, Callable[[_TimedHead], Any]] = {
            "compress": lambda head: head.compressed(),
            "plain": lambda head: _plain(head.prompt.keys, head.prompt.values, head.z),
            "full": lambda head: lp.attend(head.reader, head.prompt, head.z),
            "small": lambda head: lp.attend(head.reader, head.small, head.z),
        }
        if find_spec("torch"):
            import torch  # pyright: ignore[reportMissingImports]  # an optional extra

            sdpa: Any = torch.nn.functional.scaled_dot_product_attention
            for head in heads:
                head.tensors = [torch.from_numpy(a)[None, None] for a in (head.z, *head.arrays)]
            calls["torch"] = lambda head, sdpa=sdpa: sdpa(*head.tensors, scale=1.0)
        cpu: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(10):
            for name, call in calls.items():
                time.sleep(_PAUSE)
                start = time.process_time()
                for head in heads:
                    jax.block_until_ready(call(head))
                if turn:  # the first compiles
                    cpu[name].append((time.process_time() - start) / prompts)
        lines.append(
            {"L": L, "queries": queries, "prompts": prompts}
            | {name: min(spent) for name, spent in cpu.items()}
        )
    return lines


@jax.jit
def _plain(keys: jax.Array, values: jax.Array, z: jax.Array) -> jax.Array:
    return jax.nn.softmax(z @ keys.T) @ values


class _TimedHead:
    """Random tokens of one head, queries, and its compression to 128 atoms and rank 8."""

    def __init__(self, rng: np.random.Generator, L: int, queries: int, dim: int):
        self.arrays = [rng.normal(size=(L, dim)).astype(np.float32) for _ in range(2)]
        self.z = (rng.normal(size=(queries, dim)) / dim**0.5).astype(np.float32)
        self.prompt, self.reader = lp.KeyValues(*self.arrays), lp.Head.key_value(dim, dim)
        self.small, self.tensors = self.compressed(), []

    def compressed(self) -> lp.compression.Compressed:
        return lp.compress(self.prompt, self.z, atoms=128, rank=8)


def store_tables() -> None:
    """Measure times and Gaussian tokens, and store them."""
    tables = {"times": times(), "gaussian tokens": gaussian_tokens()}
    stored = {"where": machine(), "date": str(date.today())} | tables
    TABLES.write_text(json.dumps(stored, indent=1) + "\n")


def times_as_text(lines: list[dict[str, Any]]) -> str:
    """Markdown: milliseconds for each prompt, and ratios to passes of full attention."""
    peers = {"plain": "plain JAX", "torch": "torch", "full": "`attend`"}
    heads = ("`compress`", *peers.values())
    titles = ["L", "queries", "prompts", *heads, *(f"compress / {name}" for name in peers.values())]
    rows = ["| " + " | ".join([*titles, "`attend` to the result"]) + " |"]
    rows.append("|---" * (len(titles) + 1) + "|")
    for line in lines:
        cells = [f"{line['L']:,}", f"{line['queries']}", f"{line['prompts']}"]
        cells += [_milliseconds(line.get(name, np.nan)) for name in ("compress", *peers)]
        cells += [f"{line['compress'] / line.get(name, np.nan):.2f}" for name in peers]
        rows.append("| " + " | ".join([*cells, _milliseconds(line["small"])]) + " |")
    return "\n".join(rows)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if seconds >= 0.01 else f"{1e3 * seconds:.2g}"


def gaussian_tokens_as_text(lines: list[dict[str, Any]]) -> str:
    """Markdown of errors against the infinite prompt."""
    rows = ["| measure | bytes | error against the infinite prompt |", "|---|---|---|"]
    rows += [f"| {x['measure']} | {x['bytes']:,} | {x['error']:.2g} |" for x in lines]
    return "\n".join(rows)


def main(arguments: list[str]) -> None:
    """Measure the cases named, or all, and store them."""
    if arguments == ["tables"]:
        store_tables()
        return
    if arguments == ["ahead"]:
        print(ahead(json.loads((RESULTS / "compression.json").read_text())))
        return
    folder = next((Path(a) for a in arguments if Path(a).is_dir()), None)
    wanted = [a for a in arguments if folder is None or Path(a) != folder]
    known = cases(folder)
    if unknown := set(wanted) - set(known):
        raise SystemExit(f"unknown cases {sorted(unknown)}; there are {', '.join(known)}")
    for name in wanted or known:
        rules = RULES if name.startswith("stored") else METHODS
        store(name, list(measured(list(known[name]()), rules)))
    if not wanted:
        store_tables()


if __name__ == "__main__":
    main(sys.argv[1:])
