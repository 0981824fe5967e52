"""A cache of transformers that has a compressed prompt, and the attention that reads it.

`Cache.update` of a layer returns its rows with itself attached to the tensor of keys, which is how
the attention function finds it: transformers passes nothing else of a cache. Outside of
`compressed_attention` an update raises, since another attention function would not know that the
first rows are a Gaussian.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
        with attention_named(model, lambda _: _NAME):
            yield
    finally:
        _ACTIVE.reset(token)


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
        raise ValueError(
            _checks.message(
                "compressed attention needs a cache of compress_prompt",
                f"{type(module).__name__} without one",
                "pass past_key_values=cache, or call the model outside of compressed_attention",
            )
        )
    if dropout:
        raise ValueError(
            _checks.message(
                "compressed attention has no dropout", f"dropout={dropout}", "call model.eval()"
            )
        )
    check_scores(module, others, "compress prompts of another model")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return attend_to_rows(query, layer.rows, attention_mask, scale), None


def compressed_cache(layers: list[Rows], length: int, errors: Any) -> Any:
    """A cache of transformers with these prompts of `length` tokens."""
    layer_type, cache_type = _types()
    return cache_type([layer_type(rows, length) for rows in layers], errors)


def is_compressed(cache: Any) -> bool:
    """Whether this is a cache of `compress_prompt`."""
    return isinstance(cache, _types()[1])


@cache
def _types() -> tuple[type, type]:
    """Classes of the layers and of the cache; transformers is optional."""
    transformers = require("transformers", extra="models")
    utils = require("transformers.cache_utils", extra="models")

    class CompressedLayer(utils.DynamicLayer):
        """A compressed prompt of `length` tokens, then tokens as they are."""

        def __init__(self, rows: Rows, length: int) -> None:
            super().__init__()
            self.rows, self.length, self.is_initialized = rows, length, True
            self.dtype, self.device = rows.keys.dtype, rows.keys.device

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
                raise ValueError(
                    _checks.message(
                        "a compressed prompt needs attention that knows it",
                        "the model's own attention implementation",
                        "call the model within `with lp.models.compressed_attention(model):`",
                    )
                )
            prompts, groups, _, dim = self.rows.keys.shape
            if (key_states.shape[0], key_states.shape[1], key_states.shape[3]) != (
                prompts,
                groups,
                dim,
            ):
                raise ValueError(
                    _checks.message(
                        f"keys must have shape ({prompts}, {groups}, tokens, {dim}): prompts of "
                        "the batch, key-value heads, tokens, dimension",
                        f"shape {tuple(key_states.shape)}",
                        "pass one row of tokens for every compressed prompt, to the same model",
                    )
                )
            if key_states.device != self.rows.keys.device:
                raise ValueError(
                    _checks.message(
                        f"the model must be on {self.rows.keys.device}, as the cache",
                        str(key_states.device),
                        "compress the prompt after moving the model",
                    )
                )

        def get_seq_length(self) -> int:
            return self.length + self.rows.new

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.rows.new + query_length, self.length

        def crop(self, tokens_to_remove: int) -> None:
            count = abs(tokens_to_remove)
            if count > self.rows.new:
                raise ValueError(
                    _checks.message(
                        "only tokens after a compressed prompt can be removed",
                        f"{count} tokens, of {self.rows.new} after the prompt",
                        "compress a shorter prompt",
                    )
                )
            self.rows = self.rows.cropped(count)

        def reset(self) -> None:
            self.crop(self.rows.new)

        def _each(self, change: Any) -> None:
            keys, values, biases = map(change, self.rows[:3])
            self.rows = self.rows._replace(keys=keys, values=values, biases=biases)

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

        def __init__(self, layers: list[Any], errors: Any) -> None:
            super().__init__(layers=layers)
            self.errors = errors

        @property
        def nbytes(self) -> int:
            """Bytes of all tensors."""
            return sum(
                tensor.numel() * tensor.element_size()
                for layer in self.layers
                for tensor in layer.rows[:3]
            )

    return CompressedLayer, CompressedCache
