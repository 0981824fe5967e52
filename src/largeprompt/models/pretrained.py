"""Models and tokenizers of the transformers library from files on this machine."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import _checks
from .._extras import require

_LONGEST_REASON = 200  # characters
# nothing is downloaded, and no Python that lies beside the weights is run
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class Pretrained(NamedTuple):
    """A model in evaluation mode and its tokenizer, as `record(model, text, tokenizer=...)`."""

    model: Any
    tokenizer: Any


@_checks.accepts()
def load_pretrained(path: str | Path) -> Pretrained:
    """Model and tokenizer from a folder written by `save_pretrained`, or from one `.gguf` file.

    A causal language model comes with its matrix of the vocabulary, for `next_token_loss`; of other
    models heads for tasks are left out. Nothing is downloaded, and no Python code in the folder is
    run: models that need their own are rejected. Weights of a `.gguf` file are dequantised to
    single precision.

        model, tokenizer = lp.models.load_pretrained("SmolLM2-135M-Instruct.Q4_1.gguf")
        recording = lp.models.record(model, text, tokenizer=tokenizer)
    """
    require("torch", extra="models")
    transformers = require("transformers", extra="models")
    path = Path(path)
    if path.is_dir() and (path / "config.json").exists():
        with _whole("a folder with a whole model and its tokenizer", path):
            model = _from_folder(transformers, path)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, **_LOCAL)
    elif path.is_file() and path.suffix == ".gguf":
        with _whole("a whole .gguf file", path), _reading_once(require("gguf", extra="models")):
            model = _from_gguf(transformers, path)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                path.parent, gguf_file=path.name, **_LOCAL
            )
    else:
        raise _checks.error(
            "a model must be a folder with config.json, or a .gguf file",
            f"{str(path)!r}" + (" (not found)" if not path.exists() else ""),
            "pass the folder that save_pretrained wrote",
        )
    return Pretrained(model.eval(), tokenizer)


def _from_folder(transformers: Any, path: Path) -> Any:
    """The weights in the class that the folder's configuration names, if that is a decoder."""
    config = transformers.AutoConfig.from_pretrained(path, **_LOCAL)
    loader = transformers.AutoModel
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        decoder = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__
        if decoder in (config.architectures or ()):
            loader = transformers.AutoModelForCausalLM
    with _quietly(transformers):  # no report of tensors that have no place: heads for tasks
        model, report = loader.from_pretrained(path, output_loading_info=True, **_LOCAL)
    # a pooler reads the last layer, and is no part of any attention
    _check_tensors(
        [name for name in report["missing_keys"] if not name.startswith("pooler.")],
        report["mismatched_keys"],
    )
    return model


def _check_tensors(missing: Iterable[str], unknown: Iterable[Any]) -> None:
    missing, unknown = sorted(missing), list(unknown)
    if missing or unknown:
        raise ValueError(f"missing tensors {missing[:3]}, unknown ones {unknown[:3]}")


def _from_gguf(transformers: Any, path: Path) -> Any:
    """The weights as plain tensors, in a model made from the file's configuration."""
    reader = require("transformers.modeling_gguf_pytorch_utils", extra="models")
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name, **_LOCAL)
    with _uninitialised():
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    with _quietly(transformers):
        found = reader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(found["tensors"], strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    _check_tensors([name for name in missing if name not in tied], unexpected)
    model.name_or_path = path.stem
    return model


@contextmanager
def _reading_once(gguf: Any) -> Iterator[None]:
    """Within this block transformers, which reads a `.gguf` file three times, parses it once.

    The parser slices a memory map 700,000 times for the tokens of a vocabulary, and slices of plain
    arrays take a quarter of the time. Names of tensors are looked up for every module.
    """

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = mapped.view(np.ndarray)

    before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    gguf.GGUFReader = cache(Reader)
    gguf.get_tensor_name_map = cache(before["get_tensor_name_map"])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(gguf, name, value)


def _uninitialised() -> AbstractContextManager:
    """Within this block parameters are not drawn, if transformers can leave that out."""
    try:
        module = import_module("transformers.initialization")
    except ImportError:
        return nullcontext()
    return getattr(module, "no_init_weights", nullcontext)()


@contextmanager
def _whole(rule: str, path: Path) -> Iterator[None]:
    """Errors of transformers about damaged or incomplete files, on one line."""
    try:
        yield
    except Exception as error:  # of many kinds, some of several paragraphs
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise _checks.error(
            f"a model must be {rule}",
            f"{str(path)!r} ({reason[:_LONGEST_REASON]})",
            "copy, convert or fetch it again",
        ) from error


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """No reports and progress bars of transformers; some ignore its switch, and go to standard
    error.
    """
    logging = transformers.utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
