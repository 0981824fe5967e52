"""A cache of transformers that has a compressed prompt, and the attention that reads it.

`Cache.update` of a layer returns its rows with itself attached to the tensor of keys, which is how
the attention function finds it: transformers passes nothing else of a cache. Outside of
`compressed_attention` an update raises, since another attention function would not know that the
first rows are a Gaussian.

Prompts of different lengths are padded on the left to the longest one. Their caches have no padding
tokens, so padding shows in positions alone: the next token of a prompt is at its own length.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from .. import _checks
from .._extras import require
from .attention_interface import attention_named, check_scores
from .compressed_rows import Rows, attend_to_rows

_NAME = "largeprompt_compressed"
_ACTIVE: ContextVar[bool] = ContextVar("compressed_attention", default=False)


@contextmanager
def compressed_attention(model: Any) -> Iterator[None]:
    """Within this block the model attends to caches of `compress_prompt`, and to no others.

    Its own attention implementation is restored at the end, also after an error.

        with lp.models.compressed_attention(model):
            model.generate(ids, past_key_values=cache, max_new_tokens=20)
    """
    transformers = require("transformers", extra="models")
    masks = transformers.AttentionMaskInterface()
    transformers.AttentionInterface.register(_NAME, _attention)
    transformers.AttentionMaskInterface.register(_NAME, masks["sdpa"])
    token = _ACTIVE.set(True)
    try:
        with ExitStack() as stack:
            stack.enter_context(attention_named(model, lambda _: _NAME))
            for module in {id(one): one for one in (model, model.base_model)}.values():
                hook = module.register_forward_pre_hook(_with_positions, with_kwargs=True)
                stack.callback(hook.remove)
            yield
    finally:
        _ACTIVE.reset(token)


def _with_positions(module: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Arguments of a call of the model, with positions after prompts of different lengths.

    Positions that the call has, such as those that `generate` makes of the attention mask, are
    checked.
    """
    names = inspect.signature(module.forward).parameters
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    cache: Any = given.get("past_key_values")
    mask, inputs = given.get("attention_mask"), given.get("input_ids")
    if not is_compressed(cache) or not cache.padded:
        return None
    inputs = given["inputs_embeds"] if inputs is None else inputs
    layer, (rows, tokens) = cache.layers[0], inputs.shape[:2]
    if rows != len(layer.lengths) or inputs.device != layer.lengths.device:
        return None  # the cache says what is wrong
    total = layer.get_seq_length() + tokens
    if mask is None:
        mask = layer.lengths.new_ones(rows, total)
    if mask.shape != (rows, total):
        raise _checks.error(
            f"attention_mask must have shape ({rows}, {total}): of the padded prompts and the "
            "tokens after them",
            f"shape {tuple(mask.shape)}",
            "put ones for new tokens behind the tokenizer's mask",
        )
    seen = mask[:, layer.length :].long()
    positions = layer.lengths[:, None] + seen.cumsum(-1)[:, -tokens:] - 1
    found = given.get("position_ids")
    if found is None:
        return args, {**kwargs, "position_ids": positions}
    wrong = (found != positions) & seen[:, -tokens:].bool()
    if wrong.any():
        row = int(wrong.any(dim=1).int().argmax())
        raise _checks.error(
            "positions must go on after prompts of different lengths, padded on the left",
            f"position {int(found.expand_as(wrong)[row][wrong[row]][0])} after prompt {row} of "
            f"{int(layer.lengths[row])} tokens",
            "pass the attention_mask of the padded prompts and the tokens after them",
        )
    return None


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """The function that transformers calls within `compressed_attention`."""
    layer = getattr(key, "compressed_layer", None)
    if layer is None:
        raise _checks.error(
            "compressed attention needs a cache of compress_prompt",
            f"{type(module).__name__} without one",
            "pass past_key_values=cache, or call the model outside of compressed_attention",
        )
    if dropout:
        raise _checks.error(
            "compressed attention has no dropout", f"dropout={dropout}", "call model.eval()"
        )
    check_scores(module, others, "compress prompts of another model")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return attend_to_rows(query, layer.rows, attention_mask, scale), None


def compressed_cache(
    layers: list[Rows], lengths: list[int], errors: Any, standard_errors: Any = None
) -> Any:
    """A cache of transformers with these prompts of so many tokens."""
    layer_type, cache_type = _types()
    return cache_type([layer_type(rows, lengths) for rows in layers], errors, standard_errors)


def is_compressed(cache: Any) -> bool:
    """Whether this is a cache of `compress_prompt`."""
    return isinstance(cache, _types()[1])


@cache
def _types() -> tuple[type, type]:
    """Classes of the layers and of the cache; transformers is optional."""
    torch = require("torch", extra="models")
    transformers = require("transformers", extra="models")
    utils = require("transformers.cache_utils", extra="models")

    class CompressedLayer(utils.DynamicLayer):
        """Compressed prompts, the longest one of `length` tokens, then tokens as they are."""

        def __init__(self, rows: Rows, lengths: list[int]) -> None:
            super().__init__()
            self.rows, self.length, self.is_initialized = rows, max(lengths), True
            self.dtype, self.device = rows.keys.dtype, rows.keys.device
            self.lengths = torch.tensor(lengths, device=self.device)

        @property
        def keys(self) -> Any:
            return self.rows.keys

        @keys.setter
        def keys(self, value: Any) -> None:  # the base class sets None
            assert value is None

        @property
        def values(self) -> Any:
            return self.rows.values

        @values.setter
        def values(self, value: Any) -> None:
            assert value is None

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            self._check(key_states)
            self.rows = self.rows.appended(key_states, value_states)
            self.rows.keys.compressed_layer = self
            return self.rows.keys, self.rows.values

        def _check(self, key_states: Any) -> None:
            if not _ACTIVE.get():
                raise _checks.error(
                    "a compressed prompt needs attention that knows it",
                    "the model's own attention implementation",
                    "call the model within `with lp.models.compressed_attention(model):`",
                )
            prompts, groups, _, dim = self.rows.keys.shape
            if (key_states.shape[0], key_states.shape[1], key_states.shape[3]) != (
                prompts,
                groups,
                dim,
            ):
                raise _checks.error(
                    f"keys must have shape ({prompts}, {groups}, tokens, {dim}): prompts of "
                    "the batch, key-value heads, tokens, dimension",
                    f"shape {tuple(key_states.shape)}",
                    "pass one row of tokens for every compressed prompt, to the same model",
                )
            if key_states.device != self.rows.keys.device:
                raise _checks.error(
                    f"the model must be on {self.rows.keys.device}, as the cache",
                    str(key_states.device),
                    "compress the prompt after moving the model",
                )

        def get_seq_length(self) -> int:
            return self.length + self.rows.new

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.rows.new + query_length, self.length

        def crop(self, tokens_to_remove: int) -> None:
            count = abs(tokens_to_remove)
            if count > self.rows.new:
                raise _checks.error(
                    "only tokens after a compressed prompt can be removed",
                    f"{count} tokens, of {self.rows.new} after the prompt",
                    "compress a shorter prompt",
                )
            self.rows = self.rows.cropped(count)

        def reset(self) -> None:
            self.crop(self.rows.new)

        def _each(self, change: Any) -> None:
            keys, values, biases = map(change, self.rows[:3])
            self.rows = self.rows._replace(keys=keys, values=values, biases=biases)
            self.lengths = change(self.lengths)

        def reorder_cache(self, beam_idx: Any) -> None:
            self._each(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

        def batch_repeat_interleave(self, repeats: int) -> None:
            self._each(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

        def batch_select_indices(self, indices: Any) -> None:
            self._each(lambda tensor: tensor[indices])

        def offload(self) -> None:
            self._each(lambda tensor: tensor.to("cpu", non_blocking=True))

        def prefetch(self) -> None:
            self._each(lambda tensor: tensor.to(self.device, non_blocking=True))

    class CompressedCache(transformers.Cache):
        """Compressed prompts, layer by layer, and the tokens after them."""

        def __init__(self, layers: list[Any], errors: Any, standard_errors: Any) -> None:
            super().__init__(layers=layers)
            self.errors, self.standard_errors = errors, standard_errors
            self.padded = bool((layers[0].lengths < layers[0].length).any())

        @property
        def lengths(self) -> Any:
            """Tokens of each prompt before it was compressed."""
            return self.layers[0].lengths

        @property
        def nbytes(self) -> int:
            """Bytes of all tensors."""
            return sum(
                tensor.numel() * tensor.element_size()
                for layer in self.layers
                for tensor in layer.rows[:3]
            )

    return CompressedLayer, CompressedCache
