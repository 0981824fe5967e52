"""Decoders that read a compressed prompt: next-token loss and generation."""

from typing import Any, Literal

import numpy as np

from .. import _checks
from .._extras import require
from .._progress import progress_bar
from .._typing import KeyInput
from ..attention import Head
from ..compression import Compressed, compress
from ..measures import KeyValues
from .attention_interface import check_model, evaluation_mode
from .compressed_cache import compressed_attention, compressed_cache, is_compressed
from .compressed_rows import Rows
from .recording import RecordedLayer, Recording
from .rotary import Rotation, rotations
from .token_ids import check_ids, on_host

_FIRST, _LAST = 4, 28  # tokens that are kept by default: sinks, and the latest ones
_RANK = 8  # of the Gaussian, beside a given number of kept tokens
_AHEAD = 64  # positions; see docs/compressed_decoder.md


def compress_prompt(
    model: Any,
    recording: Recording,
    *,
    tokens: int | None = None,
    atoms: int | None = None,
    rank: int | Literal["auto"] | None = "auto",
    method: Any = "gaussian tail",
    first: int = _FIRST,
    last: int = _LAST,
    ahead: int = _AHEAD,
    key: KeyInput | None = None,
    progress: bool = True,
) -> Any:
    """A cache of transformers whose prompts `lp.compress` made small, for a causal model.

    Every key-value head of every layer is compressed for the recorded queries of all query heads
    that share it. The cache goes to `next_token_loss`, or as `past_key_values` to the model within
    `compressed_attention(model)`. Positions go on after the whole prompt, and tokens after it are
    cached as they are. Several prompts make a batch, padded on the left if their lengths differ:
    then `generate` needs the `attention_mask` of the padded prompts and the tokens after them.

    **Arguments:**

    - `recording`: `lp.models.record(model, prompt)`, whose last queries stand for later ones.
    - `tokens`: size of the compressed prompt in tokens of equal bytes, for each key-value head; its
      split between kept tokens and a Gaussian is that of the lowest held-out error. Or `atoms`, the
      number of kept tokens, and `rank` of the Gaussian (8 by default; None: no Gaussian).
    - `method`: as in `lp.compress`.
    - `first`, `last`: so many first and last tokens are always kept.
    - `ahead`: recorded queries are turned so many positions ahead if the model has rotary positions
      of whole heads, since the queries to come are later; 0 leaves them as they are.
    - `key`: for method="random".

    **Returns:** the cache. `errors` (prompts, layers, key-value heads) are the mean errors on
    held-out queries, `standard_errors` their own; both are None if a head has fewer than 64
    queries. `lengths` are those of the prompts, `nbytes` is the size of the tensors, which are in
    single precision.

    >>> import torch
    >>> import largeprompt as lp
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4))
    >>> prompt = [i % 50 for i in range(100)]
    >>> recording = lp.models.record(model.eval(), prompt)
    >>> cache = lp.models.compress_prompt(model, recording, tokens=40)
    >>> cache.get_seq_length()
    100
    >>> lp.models.next_token_loss(model, cache, [7, 8, 9]).shape
    (1, 2)
    """
    transformers = require("transformers", extra="models")
    if (tokens is None) == (atoms is None):
        raise _checks.error(
            "compress_prompt needs either tokens or atoms",
            f"tokens={tokens}, atoms={atoms}",
            "pass tokens=n, or atoms=n and rank=r",
        )
    for name, count in (("tokens", tokens), ("atoms", atoms)):
        if count is not None:
            _checks.count(name, count)
    for name, count in (("first", first), ("last", last), ("ahead", ahead)):
        _checks.count(name, count, least=0)
    lengths = _checked(transformers, model, recording, first + last)
    found, errors = [], []
    steps = len(recording.prompts) * len(recording.layers)
    turns = rotations(model, len(recording.layers), recording.layers[0].keys.shape[-1])
    with progress_bar("compressing prompts", steps, shown=progress and steps > 1) as advance:
        for turn, layers in zip(turns, zip(*recording.prompts, strict=True), strict=True):
            measures = []
            for layer in layers:
                later = _later_queries(layer, turn, ahead)
                keep = np.r_[0:first, layer.n - last : layer.n]
                measures.append(
                    [
                        _compressed(layer, group, queries, tokens, atoms, rank, method, keep, key)
                        for group, queries in enumerate(later)
                    ]
                )
                advance()
            errors.append([[_error(one) for one in groups] for groups in measures])
            found.append(Rows.of(measures, model.device))
    known = np.array(errors).swapaxes(0, 1)
    means, own = (None, None) if np.isnan(known).any() else np.moveaxis(known, -1, 0)
    return compressed_cache(found, lengths, means, own)


def _error(one: Compressed) -> tuple[float, float]:
    """Mean error and its standard error, NaN if no queries were held out."""
    found = one.error
    return (np.nan, np.nan) if found is None else (float(found.mean), float(found.standard_error))


def _later_queries(layer: RecordedLayer, turn: Rotation | None, ahead: int) -> list[np.ndarray]:
    """Queries that each key-value head should serve, in the order of time."""
    queries = layer.queries
    if turn is not None:
        queries = turn.moved(queries, ahead)
    heads, count, k = queries.shape
    share = heads // len(layer.keys)
    # heads of a group take turns, so that every k-th query is not always of the same head
    time = np.arange(count)[:, None]
    turns = (np.arange(share) + time // 2) % share
    return [one[turns, time].reshape(-1, k) for one in queries.reshape(-1, share, count, k)]


def _compressed(
    layer: RecordedLayer,
    group: int,
    queries: np.ndarray,
    tokens: int | None,
    atoms: int | None,
    rank: int | Literal["auto"] | None,
    method: Any,
    keep: np.ndarray,
    key: KeyInput | None,
) -> Any:
    """One key-value head, for the queries of all heads that share it."""
    keys, values = layer.keys[group], layer.values[group]
    k, v = keys.shape[1], values.shape[1]
    if atoms is not None:
        atoms = min(atoms, layer.n)
        rank = _RANK if rank == "auto" else rank
        rank = None if atoms == layer.n else rank
    return compress(
        KeyValues(keys, values),
        queries,
        atoms=atoms,
        rank=rank,
        size=None if tokens is None else tokens * (k + v) * keys.itemsize,
        keep=keep,
        method=method,
        head=Head.key_value(k, v, scale=layer.scaling),
        key=key,
    )


def _checked(transformers: Any, model: Any, recording: Recording, kept: int) -> list[int]:
    """The lengths of the prompts."""
    check_model(model, transformers, "AutoModelForCausalLM")
    layers = getattr(model.config, "num_hidden_layers", len(recording.layers))
    if recording.missing_layers and recording.depth == layers:
        raise _checks.error(
            "every layer must have attention",
            f"{recording.model}, where {len(recording.layers)} of {layers} have it",
            "compress its heads with lp.compress",
        )
    if layers != len(recording.layers):
        raise _checks.error(
            f"recording must be of this model, with {layers} layers",
            f"{len(recording.layers)} layers of {recording.model}",
            "record(model, prompt) and compress_prompt(model, ...) with the same model",
        )
    if any(layer.positions is None for layer in recording.layers):
        raise _checks.error(
            "compress_prompt takes causal models",
            f"{recording.model}, whose tokens see later ones",
            "compress its heads with lp.compress",
        )
    found = [getattr(module, "sliding_window", None) for module in model.modules()]
    windows = [window for window in found if window is not None]
    if windows:
        raise _checks.error(
            "every layer must attend to the whole prompt",
            f"{type(model).__name__} with a sliding window of {max(windows)} tokens",
            "such layers need no compression; use a model without them",
        )
    lengths = [prompt[0].n for prompt in recording.prompts]
    if kept > min(lengths):
        raise _checks.error(
            "first + last must be at most the length of the prompt",
            f"{kept} for a prompt of {min(lengths)} tokens",
            "keep fewer tokens, or record a longer prompt",
        )
    return lengths


def next_token_loss(model: Any, cache: Any, tokens: Any) -> np.ndarray:
    """Negative log probability of each token but the first, after a compressed prompt.

    `tokens` are ids of shape (tokens,) or (prompts, tokens) that follow the prompts of the cache,
    which stays as it is. Returns (prompts, tokens - 1): the loss of token i + 1 given the prompt
    and tokens 0 to i.
    """
    torch = require("torch", extra="models")
    check_model(model, require("transformers", extra="models"), "AutoModelForCausalLM")
    ids = torch.atleast_2d(torch.as_tensor(np.asarray(on_host("tokens", tokens))))
    if ids.ndim != 2 or ids.shape[1] < 2 or ids.is_floating_point():
        raise _checks.error(
            "tokens must be ids of shape (tokens,) or (prompts, tokens), at least 2 of each",
            f"shape {tuple(ids.shape)}, {ids.dtype}",
            "pass the tokens that follow the prompt",
        )
    if model.get_output_embeddings() is None:
        raise _checks.error(
            "next_token_loss needs a model with logits",
            f"a {type(model).__name__}",
            "load it with AutoModelForCausalLM",
        )
    if not is_compressed(cache):
        raise _checks.error(
            "cache must be one of compress_prompt",
            f"a {type(cache).__name__}",
            "pass compress_prompt(model, recording, ...)",
        )
    check_ids("tokens", ids, model)
    ids = ids.long().to(model.device)
    before = cache.get_seq_length()
    try:
        with torch.no_grad(), evaluation_mode(model), compressed_attention(model):
            logits = model(ids, past_key_values=cache, use_cache=True).logits
    finally:
        for layer in cache.layers:
            layer.crop(before - layer.get_seq_length())
    logs = logits[:, :-1].float().log_softmax(-1)
    return -logs.gather(-1, ids[:, 1:, None])[..., 0].cpu().numpy()
