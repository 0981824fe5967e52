"""`record`: queries, keys and values of models of the transformers library.

Such models call one function for attention, chosen by name in their configuration. While a model
is recorded the name is that of a function which calls the original one and keeps its arguments,
after rotary positions and before grouped heads are repeated. Prompts run one at a time and without
padding, so every recorded array belongs to tokens of the prompt.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _checks
from .._extras import require
from .._progress import progress_bar
from .attention_interface import attention_named, check_model, check_scores, evaluation_mode
from .recording import RecordedLayer, Recording, relative_error, squared_differences
from .token_ids import check_ids, on_host

_NAME = "largeprompt_recording_"  # followed by the implementation that is called
_WRAPPED = ("sdpa", "eager")  # others are recorded through the first
_OUTPUTS = ("o_proj", "c_proj", "out_proj", "dense", "out_lin", "Wo", "output.dense")
_CHUNK = 2048  # tokens of a causal model at a time
_MOST_QUERIES, _SHARE = 256, 4  # by default, of causal models: 256, at most a quarter of the prompt
_HIDDEN = -1e4  # entries of a mask below this hide a key
_NAME_LENGTH = 60  # characters of a text in its name


def record(
    model: Any,
    inputs: Any,
    *,
    tokenizer: Any = None,
    queries: int | Literal["all"] | None = None,
    length: int | None = None,
    chunk: int | None = None,
    progress: bool = True,
) -> Recording:
    """Queries, keys, values, scaling and output matrix of every layer and head of a model.

    The model must be one of the transformers library whose layers go through its attention
    interface, such as the GPT-2, Llama, Qwen and BERT families. Its weights stay as they are;
    training mode and attention implementation are restored, also after an error. Arrays are
    recorded in single precision, whatever the model computes in.

    **Arguments:**

    - `inputs`: a text or several, for which `tokenizer` is needed; token ids, of one prompt or of
      several; or the dictionary that a tokenizer returns, whose padding is removed.
    - `queries`: record those of the last `queries` positions, or of "all". By default all of an
      encoder, and the last quarter of a causal model's prompt, at most 256.
    - `length`: only the first `length` tokens of every prompt.
    - `chunk`: tokens that pass through a causal model at a time, which bounds memory.
    - `progress`: show a progress bar if there are several prompts or chunks.

    **Returns:** a `Recording`, which says if layers have no attention, as in hybrid models (`depth`
    is the number of all layers). `error` of each layer is the root mean square of attention
    recomputed from the recorded arrays minus the model's own, relative to the latter.

    >>> import largeprompt as lp
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4))
    >>> recording = lp.models.record(model, list(range(40)), queries=8)
    >>> recording.layers[0].queries.shape, recording.layers[0].keys.shape
    ((4, 8, 4), (4, 40, 4))
    >>> max(layer.error for layer in recording.layers) < 1e-5
    True
    """
    torch = require("torch", extra="models")
    transformers = require("transformers", extra="models")
    check_model(model, transformers, "AutoModel")
    if queries is not None and queries != "all":
        queries = _checks.count("queries", queries)
    prompts, texts = _prompts(torch, model, inputs, tokenizer, length)
    for prompt in prompts:
        _check_length(model, prompt, queries)
    backbone = getattr(model, "base_model", model)  # without the matrix of the vocabulary
    recorded = []
    with _recording(torch, transformers, model) as recorder:
        chunks = [_chunks(backbone, prompt, chunk) for prompt in prompts]
        steps = sum(map(len, chunks))
        label = f"recording {type(model).__name__}"
        with progress_bar(label, steps, shown=progress and steps > 1) as advance:
            for prompt, parts in zip(prompts, chunks, strict=True):
                recorder.start(queries, prompt.length)
                for _ in _forward(backbone, prompt, parts):
                    recorder.next_part()
                    advance()
                recorded.append(recorder.layers(model))
    depth = getattr(model.config, "num_hidden_layers", None)
    return Recording(_model_name(model), tuple(recorded), texts, depth)


class _Prompt(NamedTuple):
    """Arguments of the model's call for one prompt, without padding, and its number of tokens."""

    arguments: dict[str, Any]
    length: int


def _model_name(model: Any) -> str:
    path = str(getattr(model, "name_or_path", None) or "")
    return path.rstrip("/").rpartition("/")[2] or type(model).__name__


# Inputs


def _prompts(
    torch: Any, model: Any, inputs: Any, tokenizer: Any, length: int | None
) -> tuple[list[_Prompt], tuple[str, ...]]:
    """The prompts without padding, and names of those that are texts."""
    length = None if length is None else _checks.count("length", length)
    texts: list[str] = []
    if isinstance(inputs, Mapping):
        rows = _rows(torch, {name: on_host(name, value) for name, value in inputs.items()})
    else:
        texts = _texts(inputs)
        rows = _tokenised(tokenizer, texts) if texts else _ids(on_host("inputs", inputs))
    found = []
    for number, row in enumerate(rows):
        arguments = {}
        tokens = len(row["input_ids"]) if "input_ids" in row else 0
        if "input_ids" in row and not tokens:
            raise _checks.error(
                "a prompt must have at least one token",
                f"prompt {number} without any",
                "pass a text that is not empty, and drop rows that are padding alone",
            )
        for name, value in row.items():
            tensor = torch.as_tensor(np.asarray(value) if isinstance(value, list) else value)
            if name == "input_ids":
                check_ids(name, tensor, model)
            if tokens and length is not None and tensor.shape[:1] == (tokens,):
                tensor = tensor[:length]
            arguments[name] = tensor[None].to(model.device)
        found.append(_Prompt(arguments, min(tokens, length or tokens)))
    names = [" ".join(text.split())[:_NAME_LENGTH] for text in texts]
    return found, tuple(names)


def _texts(inputs: Any) -> list[str]:
    """The texts if `inputs` are texts, otherwise none."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, (list, tuple)) or not texts or not isinstance(texts[0], str):
        return []
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise _checks.error(
                "every text must have at least one word",
                "an empty text" if isinstance(text, str) else f"a {type(text).__name__}",
                "drop it",
            )
    return list(texts)


def _tokenised(tokenizer: Any, texts: list[str]) -> list[dict[str, Any]]:
    if tokenizer is None:
        raise _checks.error(
            "texts need tokenizer=",
            "tokenizer=None",
            "pass AutoTokenizer.from_pretrained(path), or token ids instead of texts",
        )
    rows = []
    for text in texts:
        row = dict(tokenizer(text, verbose=False))
        row.pop("attention_mask", None)
        rows.append(row)
    return rows


def _ids(inputs: Any) -> list[dict[str, Any]]:
    """Rows of token ids: one row, a matrix, or rows of different lengths."""
    try:
        arrays = [np.asarray(inputs)]
        if arrays[0].ndim == 2:
            arrays = list(arrays[0])
    except ValueError:  # rows of different lengths
        arrays = [np.asarray(row) for row in inputs]
    for array in arrays:
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise _checks.error(
                "inputs must be texts, token ids of shape (tokens,) or (prompts, tokens), or "
                "what a tokenizer returns",
                f"{type(inputs).__name__} with shape {array.shape} and dtype {array.dtype}",
                "pass tokenizer(texts) or lists of integers",
            )
    return [{"input_ids": array.astype(np.int64)} for array in arrays]


def _rows(torch: Any, inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """A tokenizer's dictionary, prompt by prompt and without padding."""
    mask = inputs.pop("attention_mask", None)
    if mask is not None and np.ndim(mask) > 2:
        raise _checks.error(
            "attention_mask must have shape (prompts, tokens)",
            f"shape {np.shape(mask)}",
            "pass the mask of the tokenizer; causal masks are made by the model",
        )
    if not inputs:
        raise _checks.error("inputs must have input_ids", "none", "pass the tokenizer's output")
    if not len(next(iter(inputs.values()))):
        raise _checks.error(
            "inputs must have at least one prompt", "none", "pass ids that are not empty"
        )
    single = np.ndim(next(iter(inputs.values()))[0]) == 0
    if single:
        inputs = {name: [value] for name, value in inputs.items()}
        mask = None if mask is None else [mask]
    rows = []
    for number in range(len(next(iter(inputs.values())))):
        row = {name: torch.as_tensor(value[number]) for name, value in inputs.items()}
        if mask is not None:
            seen = torch.as_tensor(mask[number]).bool()
            _check_padding(seen.numpy(), next(iter(row.values())).shape[0])
            row = {
                name: value[seen] if value.shape[:1] == seen.shape else value
                for name, value in row.items()
            }
        rows.append(row)
    return rows


def _check_padding(seen: np.ndarray, tokens: int) -> None:
    """Check that a mask of one prompt hides tokens at its ends only."""
    places = np.flatnonzero(seen)
    if seen.shape != (tokens,):
        raise _checks.error(
            "attention_mask must have one number for each token",
            f"{seen.size} numbers for {tokens} tokens",
            "pass the mask that the tokenizer returned with the ids",
        )
    if len(places) and len(places) != places[-1] - places[0] + 1:
        raise _checks.error(
            "attention_mask may hide padding only, at the ends of a prompt",
            f"a mask that hides token {int(places[0] + np.argmin(seen[places[0] :]))}",
            "drop hidden tokens from the ids",
        )


def _check_length(model: Any, prompt: _Prompt, queries: int | str | None) -> None:
    if isinstance(queries, int) and 0 < prompt.length < queries:
        raise _checks.error(
            "a prompt must be at least as long as the window of recorded queries",
            f"a prompt of {prompt.length} tokens, queries={queries}",
            "pass a longer prompt or fewer queries",
        )
    most = getattr(model.config, "max_position_embeddings", None)
    if isinstance(most, int) and prompt.length > most:
        raise _checks.error(
            f"a prompt of this model has at most {most} tokens",
            f"{prompt.length} tokens",
            f"pass length={most} to cut it",
        )


# Running the model


def _chunks(model: Any, prompt: _Prompt, chunk: int | None) -> list[slice]:
    """Slices of the prompt; one, unless every layer is causal."""
    if chunk is not None:
        chunk = _checks.count("chunk", chunk)
    flags = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    causal = bool(flags) and all(flags) and not getattr(model.config, "is_encoder_decoder", False)
    if not causal or not prompt.length or set(prompt.arguments) != {"input_ids"}:
        if chunk is not None and chunk < prompt.length:
            raise _checks.error(
                "chunk is for token ids and models whose layers are all causal",
                f"{type(model).__name__} with {', '.join(prompt.arguments)}",
                "leave chunk out",
            )
        return [slice(None)]
    size = chunk or _CHUNK
    return [slice(start, start + size) for start in range(0, prompt.length, size)]


def _forward(model: Any, prompt: _Prompt, parts: list[slice]) -> Iterator[None]:
    """Run the model on one part after the other; yields after each."""
    cache: dict[str, Any] = {}
    for part in parts:
        arguments = prompt.arguments
        if len(parts) > 1:
            arguments = {"input_ids": arguments["input_ids"][:, part], "use_cache": True, **cache}
        found = model(**arguments)
        if len(parts) > 1:
            cache = {"past_key_values": found.past_key_values}
        yield


_CURRENT: ContextVar["_Recorder"] = ContextVar("recorder")


@contextmanager
def _recording(torch: Any, transformers: Any, model: Any) -> Iterator["_Recorder"]:
    """The model in evaluation mode, with attention that records itself; restored afterwards."""
    masks = transformers.AttentionMaskInterface()
    for name in _WRAPPED:
        transformers.AttentionInterface.register(_NAME + name, _attention)
        transformers.AttentionMaskInterface.register(_NAME + name, masks[name])
    functions = transformers.AttentionInterface()
    names = {id(module): name for name, module in model.named_modules()}
    recorder = _Recorder(lambda module: _original(module, functions), names)

    def renamed(name: str) -> str:
        return _NAME + (name if name in _WRAPPED else _WRAPPED[0])

    token = _CURRENT.set(recorder)
    try:
        with torch.no_grad(), evaluation_mode(model), attention_named(model, renamed):
            yield recorder
    finally:
        _CURRENT.reset(token)


def _original(module: Any, functions: Mapping[str, Callable]) -> Callable:
    """The attention function that the module would have called."""
    name = module.config._attn_implementation.removeprefix(_NAME)
    if name != "eager":
        return functions[name]
    for kind in type(module).__mro__:
        file = sys.modules.get(kind.__module__)
        if hasattr(file, "eager_attention_forward"):
            return file.eager_attention_forward  # type: ignore[union-attr]
    return functions["sdpa"]


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **others: Any
) -> tuple[Any, Any]:
    """The function that transformers calls instead of its own."""
    recorder = _CURRENT.get()
    output, weights = recorder.original(module)(module, query, key, value, attention_mask, **others)
    recorder.keep(module, query, key, value, attention_mask, others, output)
    return output, weights


# What is kept


class _Kept(NamedTuple):
    """One module's queries so far, with keys and values of its latest call."""

    queries: list[np.ndarray]
    positions: list[np.ndarray]
    keys: np.ndarray
    values: np.ndarray
    scaling: float
    causal: bool
    squares: tuple[float, float]  # of differences and of outputs


class _Recorder:
    """Collects what attention functions are called with, for one prompt at a time."""

    def __init__(self, original: Callable[[Any], Callable], names: Mapping[int, str]) -> None:
        self.original, self._names = original, names
        self.start(None, 0)

    def start(self, queries: int | str | None, length: int) -> None:
        """Begin a prompt of `length` tokens."""
        self._queries, self._length = queries, length
        self._kept: dict[tuple[int, int], tuple[Any, _Kept]] = {}
        self._calls: Counter[int] = Counter()

    def next_part(self) -> None:
        """Begin the next chunk of the prompt. Until then a second call of a module, as in ALBERT,
        is that of another layer.
        """
        self._calls.clear()

    def keep(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        others: Mapping[str, Any],
        output: Any,
    ) -> None:
        """Record one call: arrays of shape (1, heads, tokens, dimension)."""
        check_scores(module, others, "record another model")
        count, total = query.shape[2], key.shape[2]
        causal = others.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
        causal = causal and count <= total
        positions = np.arange(total - count, total) if causal else np.arange(count)
        rows = positions >= self._first(causal, total, count)
        positions = positions[rows]
        _check_mask(module, mask, rows, positions if causal else None, total)
        scaling = others.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        index = np.flatnonzero(rows)
        first = int(index[0]) if len(index) else count
        queries = _array(query[0, :, first:])
        keys, values = _array(key[0]), _array(value[0])
        for array in (queries, keys, values):
            if not np.all(np.isfinite(array)):
                raise _checks.error(
                    "queries, keys and values must be finite",
                    f"NaN or infinity in {self._names.get(id(module), type(module).__name__)}",
                    "run the model in a wider number type, such as model.float()",
                )
        place = id(module), self._calls[id(module)]
        self._calls[id(module)] += 1
        _, before = self._kept.get(place, (None, None))
        squares = (0.0, 0.0) if before is None else before.squares
        if len(index):
            seen = positions if causal else None
            layer = RecordedLayer(queries, keys, values, scaling, positions=seen)
            new = squared_differences(layer, _array(output[0, first:]).swapaxes(0, 1))
            squares = (squares[0] + new[0], squares[1] + new[1])
        self._kept[place] = (
            module,
            _Kept(
                [*(before.queries if before else []), queries],
                [*(before.positions if before else []), positions],
                keys,
                values,
                scaling,
                causal,
                squares,
            ),
        )

    def _first(self, causal: bool, total: int, count: int) -> int:
        """First position whose query is kept."""
        length = self._length if causal and self._length else total if causal else count
        if self._queries == "all" or (self._queries is None and not causal):
            return 0
        if self._queries is None:
            return length - max(1, min(_MOST_QUERIES, length // _SHARE))
        return max(0, length - int(self._queries))

    def layers(self, model: Any) -> tuple[RecordedLayer, ...]:
        """The recorded layers, in the order of their first call."""
        if not self._kept:
            raise _checks.error(
                "a model must go through the attention interface of transformers",
                f"{type(model).__name__}, which calls its own attention",
                "record a model of the GPT-2, Llama, Qwen or BERT family, or another whose "
                "set_attn_implementation works",
            )
        found = []
        for module, kept in self._kept.values():
            name = self._names.get(id(module), "")
            queries = np.concatenate(kept.queries, axis=1)
            found.append(
                RecordedLayer(
                    queries,
                    kept.keys,
                    kept.values,
                    kept.scaling,
                    _output_matrix(model, module, name, len(queries) * kept.values.shape[-1]),
                    np.concatenate(kept.positions) if kept.causal else None,
                    relative_error(*kept.squares),
                    name,
                )
            )
        return tuple(found)


def _array(tensor: Any) -> np.ndarray:
    return np.array(tensor.detach().float().cpu().numpy(), np.float32)


def _check_mask(
    module: Any, mask: Any, rows: np.ndarray, positions: np.ndarray | None, total: int
) -> None:
    """Check that a mask shows every kept query all keys, or all keys up to its position."""
    if mask is None:
        return
    seen = np.asarray(mask.detach().float().cpu().numpy() if mask.is_floating_point() else mask)
    seen = np.broadcast_to(seen[0], (*seen.shape[1:-2], len(rows), total))[:, rows]
    if seen.dtype != bool:
        plain = np.all((seen == 0) | (seen < _HIDDEN))
        seen = seen >= _HIDDEN
    else:
        plain = True
    wanted = np.ones((len(seen[0]), total), bool)
    if positions is not None:
        wanted = np.arange(total) <= positions[:, None]
    if plain and np.all(seen == wanted):
        return
    window = getattr(module, "sliding_window", None)
    what = "a mask of its own" if window is None else f"a window of {window} tokens"
    raise _checks.error(
        "every query must see all keys, or all up to its position",
        f"{type(module).__name__} with {what}",
        "record a prompt that is no longer than the window" if window else "drop the mask",
    )


def _output_matrix(model: Any, module: Any, name: str, inputs: int) -> np.ndarray | None:
    """The matrix that acts on the concatenated heads, or None if it is not found."""
    places = [module]
    if "." in name:
        places.append(model.get_submodule(name.rpartition(".")[0]))
    for place in places:
        for path in _OUTPUTS:
            found = place
            for part in path.split("."):
                found = getattr(found, part, None)
            weight = getattr(found, "weight", None)
            if weight is None or weight.ndim != 2:
                continue
            matrix = _array(weight)
            if hasattr(found, "nf"):  # Conv1D of GPT-2 stores the transpose
                matrix = matrix.T
            if matrix.shape[1] == inputs:
                return np.ascontiguousarray(matrix)
    return None
