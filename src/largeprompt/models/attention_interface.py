"""The attention interface of the transformers library: models call a function chosen by name."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import _checks

_OTHER_SCORES = {  # arguments that make scores something else than <k, z>
    "softcap": "soft-capped scores",
    "s_aux": "learnt sinks",
    "position_bias": "position biases",
}


@contextmanager
def attention_named(model: Any, renamed: Callable[[str], str]) -> Iterator[None]:
    """Within this block the model calls the attention function `renamed(its own name)`."""
    configs = _configurations(model)
    before = [config._attn_implementation for config in configs]
    try:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = renamed(name)
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Within this block no module of the model is in training mode."""
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in training:
            module.training = mode


def _configurations(model: Any) -> list[Any]:
    """All configurations that the model's modules read, outer ones first."""
    found: dict[int, Any] = {}

    def add(config: Any) -> None:
        if hasattr(config, "_attn_implementation") and id(config) not in found:
            found[id(config)] = config
            for name in config.sub_configs:
                add(getattr(config, name, None))

    for module in model.modules():
        add(getattr(module, "config", None))
    return list(found.values())


def check_scores(module: Any, others: Mapping[str, Any], fix: str) -> None:
    """Raise if arguments of an attention function change the scores <k, z>."""
    for name, meaning in _OTHER_SCORES.items():
        if others.get(name) is not None:
            raise _checks.error(
                "scores must be inner products of queries and keys",
                f"{type(module).__name__} with {meaning}",
                fix,
            )


def check_model(model: Any, transformers: Any, loader: str) -> None:
    """Raise if this is no model of transformers, or one without weights."""
    if not isinstance(model, transformers.PreTrainedModel):
        raise _checks.error(
            "model must be a model of the transformers library",
            f"a {type(model).__name__}",
            f"load one with {loader}.from_pretrained(path)",
        )
    if model.device.type == "meta":
        raise _checks.error(
            "the model must have weights",
            "a model on the device 'meta'",
            "load it with from_pretrained, or move it with to_empty and initialise it",
        )
