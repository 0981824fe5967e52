"""A decoder with compressed prompts: `python -m benchmarks.compressed_decoder MODEL [LENGTH ...]`.

MODEL is what `lp.models.load_pretrained` reads. For each text of `benchmarks.texts` that is there
to report on (a licence, a source and a manual), prompts of LENGTH tokens (default 1000) are
compressed by every method of `lp.compress`, and the model predicts the 64 tokens after them. All
methods keep the first 4 and the last 28 tokens; sizes are those beyond these 32, in tokens of equal
bytes for each key-value head. Tables have the mean Kullback-Leibler divergence from the model's own
law of the next token, in nats, and in brackets the loss minus that of full attention with its
standard error; both over the tokens of all prompts (two from each text). `--methods=a,b`,
`--sizes=16,65`, `--prompts=1`, `--queries=64` (recorded positions), `--ahead=0` and
`--development=1` (the texts that methods were developed on) choose.

`python benchmarks/compressed_decoder.py gpu` times one token on a GPU against full attention: first
the attention of one layer on random keys and values, which needs PyTorch alone, then a model of 8
such layers with random weights, if transformers and largeprompt are installed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

_SIZES = (16, 65, 130, 260)
_KEPT, _AFTER, _QUERIES, _AHEAD = 32, 64, 128, 64
_HEADS, _GROUPS, _DIM, _ATOMS, _RANK, _LAYERS = 32, 8, 128, 256, 8, 8  # on a GPU


def losses(
    path: str,
    length: int,
    methods: tuple[str, ...] | None = None,
    sizes: tuple[int, ...] = _SIZES,
    prompts: int = 2,
    queries: int = _QUERIES,
    ahead: int = _AHEAD,
    development: int = 0,
) -> None:
    """Print one table for each text."""
    import jax
    import numpy as np

    import largeprompt as lp
    from benchmarks import texts
    from largeprompt.compression.compress import Method

    model, tokenizer = lp.models.load_pretrained(path)
    for name, text in (texts.development() if development else texts.reported()).items():
        ids = np.asarray(tokenizer(text, verbose=False)["input_ids"])
        total = prompts * (length + _AFTER)
        if len(ids) < total:
            raise SystemExit(f"the text {name!r} has only {len(ids)} tokens, not {total}")
        ids = ids[:total].reshape(prompts, -1)
        after = ids[:, length:]
        recording = lp.models.record(model, ids[:, :length], queries=queries, progress=False)
        whole = lp.models.compress_prompt(model, recording, atoms=length, progress=False)
        own = _log_probabilities(model, whole, after)
        loss = lp.models.next_token_loss(model, whole, after)
        rows, places = np.ogrid[:prompts, : _AFTER - 1]
        print(f"\n{name}, {length} tokens: loss {loss.mean():.3f} with full attention\n")
        print("| method | " + " | ".join(f"32 + {size}" for size in sizes) + " | seconds |")
        print("|---" * (len(sizes) + 2) + "|", flush=True)
        for method in methods or get_args(Method):
            cells, start = [], time.process_time()
            for size in sizes:
                cache = lp.models.compress_prompt(
                    model,
                    recording,
                    tokens=_KEPT + size,
                    method=method,
                    ahead=ahead,
                    key=jax.random.key(0),
                    progress=False,
                )
                found = _log_probabilities(model, cache, after)
                divergence = (own.exp() * (own - found)).sum(-1).mean()
                gap = -found.numpy()[rows, places, after[:, 1:]] - loss
                error = gap.std() / gap.size**0.5
                cells.append(f"{divergence:.3f} ({gap.mean():+.3f} \u00b1 {error:.3f})")
            spent = (time.process_time() - start) / len(sizes) / prompts
            print(f"| {method} | " + " | ".join(cells) + f" | {spent:.1f} |", flush=True)


def _log_probabilities(model: Any, cache: Any, tokens: Any) -> Any:
    """Of every next token, (prompts, tokens - 1, vocabulary)."""
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    import largeprompt as lp

    with torch.no_grad(), lp.models.compressed_attention(model):
        logits = model(torch.as_tensor(tokens), past_key_values=cache).logits
    cache.reset()
    return logits[:, :-1].log_softmax(-1)


def gpu(lengths: tuple[int, ...] = (2**14, 2**16)) -> None:
    """Print seconds for the attention of one new token, full and compressed, in one layer.

    Grouped heads as in a model of 8 billion parameters: 32 query and 8 key-value heads of 128
    coordinates, in bfloat16. The compressed prompt has 256 kept tokens and a Gaussian of rank 8, in
    single precision. Full attention is PyTorch's, the faster of grouped heads and of heads of a
    group as rows of queries. Both are replayed from CUDA graphs, which hides the host's delays.
    """
    import importlib.util

    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    # the file alone: the package needs JAX
    file = Path(__file__).parents[1] / "src/largeprompt/models/compressed_rows.py"
    spec = importlib.util.spec_from_file_location("compressed_rows", file)
    assert spec is not None
    assert spec.loader is not None
    rows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rows)
    torch.manual_seed(0)
    heads, groups, dim, rank = _HEADS, _GROUPS, _DIM, _RANK
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| prompts | tokens | full, us | compressed, us | times faster | without graphs, us |")
    print("|---" * 6 + "|")
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for prompts in (1, 8, 32):
        for length in lengths:
            shape = (prompts, groups, length, dim)
            if 4 * prompts * groups * length * dim > 60e9:
                continue
            q = torch.randn(prompts, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
            keys, values = (
                torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)
            )
            small = rows.Rows(*_random_rows(prompts), rank)
            new = torch.randn(2, prompts, groups, 1, dim, device="cuda", dtype=torch.bfloat16)

            def full(q: Any = q, keys: Any = keys, values: Any = values) -> Any:
                return sdpa(q, keys, values, enable_gqa=True)

            def packed(q: Any = q, keys: Any = keys, values: Any = values) -> Any:
                return sdpa(q.reshape(len(q), groups, -1, dim), keys, values)

            def compressed(q: Any = q, small: Any = small, new: Any = new) -> Any:
                return rows.attend_to_rows(q, small.appended(*new), None, dim**-0.5)

            times = [min(_graphed(full), _graphed(packed)), _graphed(compressed)]
            plain = [min(_seconds(full), _seconds(packed)), _seconds(compressed)]
            print(
                f"| {prompts} | {length:,} | {times[0] * 1e6:.1f} | {times[1] * 1e6:.1f} | "
                f"{times[0] / times[1]:.1f} | {plain[0] * 1e6:.1f}, {plain[1] * 1e6:.1f} |",
                flush=True,
            )


def _random_rows(prompts: int, device: str = "cuda") -> tuple[Any, Any, Any]:
    """Keys, values and biases of compressed prompts."""
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    count = _RANK + 1 + _ATOMS
    shapes = [(count, _DIM), (count, _DIM), (1, count)]
    keys, values, biases = (
        torch.randn(prompts, _GROUPS, *shape, device=device) / _DIM**0.25 for shape in shapes
    )
    return keys, values, biases


def gpu_model(
    lengths: tuple[int, ...] = (2**14, 2**16), device: str = "cuda", width: int = 4096
) -> None:
    """Print milliseconds for one new token of a model of 8 layers as transformers runs it.

    No CUDA graphs: delays of the host and the growing cache of full attention are in these times.
    cuDNN plans its attention again for every length, on the host, so full attention is timed with
    and without cuDNN; the ratio is to the faster.
    """
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    import largeprompt as lp
    from largeprompt.models.compressed_cache import compressed_cache
    from largeprompt.models.compressed_rows import Rows

    # not by `import`: its types take the type checker 9 s
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=7 * width // 2,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_GROUPS,
        head_dim=_DIM,
        max_position_embeddings=2**17,
    )
    with torch.device(device):
        model: Any = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).eval()
    columns = ("prompts", "tokens", "full, ms", "full without cuDNN, ms", "compressed, ms")
    print(f"\n| {' | '.join(columns)} | times faster |\n" + "|---" * 6 + "|")
    for prompts in (1, 8, 32):
        for length in lengths:
            token = torch.ones(prompts, 1, dtype=torch.long, device=device)
            full = transformers.DynamicCache()
            shape = (prompts, _GROUPS, length, _DIM)
            for layer in range(_LAYERS):
                keys, values = (
                    torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2)
                )
                full.update(keys, values, layer)
            layers = [Rows(*_random_rows(prompts, device), _RANK) for _ in range(_LAYERS)]
            small = compressed_cache(layers, [length] * prompts, None)
            with torch.no_grad():
                before = []
                for cudnn in (True, False):
                    torch.backends.cuda.enable_cudnn_sdp(cudnn)
                    step = _seconds(lambda c=full, t=token: model(t, past_key_values=c), 5, 7)
                    before.append(step)
                torch.backends.cuda.enable_cudnn_sdp(True)
                del full
                with lp.models.compressed_attention(model):
                    after = _seconds(lambda c=small, t=token: model(t, past_key_values=c), 5, 7)
            times = " | ".join(f"{1e3 * time:.2f}" for time in (*before, after))
            cells = f"{times} | {min(before) / after:.1f}"
            print(f"| {prompts} | {length:,} | {cells} |", flush=True)


def _graphed(call: Callable[[], Any]) -> float:
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    return _seconds(graph.replay) / 20


def _seconds(call: Callable[[], Any], repeats: int = 20, rounds: int = 15) -> float:
    """Median time of a call that only queues work on the GPU."""
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    found = []
    for turn in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        if turn > 1:
            found.append((time.perf_counter() - start) / repeats)
    return statistics.median(found)


def main(arguments: list[str]) -> None:
    """Run what the arguments name."""
    chosen: dict[str, Any] = {}
    for option in [one for one in arguments if one.startswith("--")]:
        name, _, value = option[2:].partition("=")
        match name:
            case "methods":
                chosen[name] = tuple(value.split(","))
            case "sizes":
                chosen[name] = tuple(map(int, value.split(",")))
            case "prompts" | "queries" | "ahead" | "development":
                chosen[name] = int(value)
            case _:
                raise SystemExit(f"unknown option {option}")
    path, *rest = [one for one in arguments if not one.startswith("--")] or [""]
    if not path:
        raise SystemExit(__doc__)
    if path == "gpu":
        gpu()
        if find_spec("transformers") and find_spec("largeprompt"):
            gpu_model()
        return
    for length in map(int, rest or ["1000"]):
        losses(path, length, **chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
