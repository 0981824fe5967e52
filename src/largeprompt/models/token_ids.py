"""Token ids as users pass them: lists, arrays, or tensors of any device."""

from typing import Any

import numpy as np

from .. import _checks


def on_host(name: str, value: Any) -> Any:
    """`value` with tensors, also those in a list, moved to the host."""
    if isinstance(value, (list, tuple)):
        tensors = any(hasattr(entry, "detach") for entry in value)
        return [on_host(name, entry) for entry in value] if tensors else value
    if not hasattr(value, "detach"):  # a method of tensors
        return value
    if value.device.type == "meta":
        raise _checks.error(
            f"{name} must have values",
            "a tensor on the device 'meta'",
            "pass a tensor of another device, or a list of integers",
        )
    return value.detach().cpu()


def check_ids(name: str, ids: Any, model: Any) -> None:
    """Raise if a tensor on the host has anything but ids of the model's vocabulary."""
    if ids.is_floating_point() or ids.is_complex():
        raise _checks.error(f"{name} must be integers", str(ids.dtype), "pass a tokenizer's ids")
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # a model that does not read tokens
        return
    outside = np.asarray(ids)
    outside = outside[(outside < 0) | (outside >= (np.inf if size is None else size))]
    if outside.size:
        raise _checks.error(
            f"{name} must be between 0 and {size - 1}, the vocabulary of {type(model).__name__}"
            if size is not None
            else f"{name} must be at least 0",
            str(int(outside.flat[0])),
            "tokenise with the tokenizer of this model",
        )
