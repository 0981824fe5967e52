"""What the attention heads of a model saw: queries, keys and values, layer by layer."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from .. import _checks
from .._files import atomic_write, check_target
from ..attention import Head
from ..measures import KeyValues

_FORMAT = 1  # of files; a reader refuses others
_PARTS = "queries|keys|values|output_matrix|scaling|positions|error|name"
_MEMBER = re.compile(rf"(0|[1-9][0-9]{{0,5}})/(0|[1-9][0-9]{{0,5}})/({_PARTS})")  # of a file


class RecordedHead(NamedTuple):
    """One head as the rest of the package reads it: `lp.attend(head, prompt, queries)`."""

    head: Head
    prompt: KeyValues
    queries: Float[np.ndarray, "q k"]


class RecordedLayer(eqx.Module):
    """Attention of one layer on one prompt. Arrays are NumPy's, in single precision.

    Queries `positions` tell causal models which keys a query saw: those of index <= its position.
    Without them every query saw every key. With fewer key-value heads than query heads (grouped
    heads) consecutive query heads share one.
    """

    queries: Float[np.ndarray, "h q k"]
    keys: Float[np.ndarray, "g n k"]
    values: Float[np.ndarray, "g n v"]
    scaling: float
    output_matrix: Float[np.ndarray, "width hv"] | None = None
    positions: Int[np.ndarray, " q"] | None = None
    error: float | None = None  # of attention recomputed from this, relative to the model's own
    name: str = ""  # of the model's module

    def __check_init__(self) -> None:
        z, k, v = self.queries, self.keys, self.values
        matrix, places = self.output_matrix, self.positions
        arrays = {"queries": z, "keys": k, "values": v, "output_matrix": matrix}
        for name, array in (arrays | {"positions": places}).items():
            if array is None and name in ("output_matrix", "positions"):
                continue
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                rule = f"{name} must be a NumPy array of numbers"
                raise _checks.error(rule, type(array).__name__)
        _checks.number("scaling", self.scaling)
        if self.error is not None:
            _checks.number("error", self.error)
        if not (z.ndim == k.ndim == v.ndim == 3 and z.shape[2] == k.shape[2] and 0 not in k.shape):
            raise _wrong_shapes(z, k, v)
        if k.shape[:2] != v.shape[:2] or not len(z):
            raise _wrong_shapes(z, k, v)
        if len(z) % len(k):
            raise _checks.error(
                "the number of query heads must be a multiple of that of key-value heads",
                f"{len(z)} and {len(k)}",
                "record queries, keys and values of the same layer",
            )
        if matrix is not None and (matrix.ndim != 2 or matrix.shape[1] != len(z) * v.shape[2]):
            rule = f"output_matrix must have shape (width, {len(z) * v.shape[2]})"
            raise _checks.error(rule, f"shape {matrix.shape}")
        if places is not None and (
            places.shape != z.shape[1:2]
            or places.dtype.kind not in "iu"
            or np.any((places < 0) | (places >= k.shape[1]))
        ):
            rule = f"positions must be indices of the {k.shape[1]} keys, one for each query"
            raise _checks.error(rule, f"dtype {places.dtype} and shape {places.shape}")
        if not all(np.isfinite(part).all() for part in arrays.values() if part is not None):
            raise _checks.error("a recorded layer must be finite", "NaN or infinity")

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return len(self.queries)

    @property
    def n(self) -> int:
        """Number of recorded keys."""
        return self.keys.shape[1]

    def group(self, head: int) -> int:
        """Index of the key-value head that serves query head `head`."""
        return head * len(self.keys) // self.heads

    def head(self, head: int, *, length: int | None = None) -> RecordedHead:
        """The head on the first `length` keys, with the queries that saw all of these.

        By default all keys that every recorded query saw.
        """
        length = self._default_length() if length is None else length
        if not 1 <= length <= self.n:
            raise _checks.error(
                f"length must be between 1 and {self.n}", repr(length), "record a longer prompt"
            )
        group = self.group(head)
        keys, values = self.keys[group, :length], self.values[group, :length]
        queries = self.queries[head]
        if self.positions is not None:
            queries = queries[self.positions >= length - 1]
        return RecordedHead(
            Head.key_value(keys.shape[-1], values.shape[-1], scale=self.scaling),
            KeyValues(keys, values),
            queries,
        )

    def _default_length(self) -> int:
        return self.n if self.positions is None else int(self.positions.min()) + 1


def _wrong_shapes(*shapes: np.ndarray) -> ValueError:
    return _checks.error(
        "queries, keys and values must have shapes (heads, q, k), (groups, n, k), (groups, n, v)",
        ", ".join(str(array.shape) for array in shapes),
        "record queries, keys and values of the same layer",
    )


def squared_differences(
    layer: RecordedLayer, own: Float[np.ndarray, "h q v"]
) -> tuple[float, float]:
    """Sums of squares of recomputed attention minus the model's own outputs, and of the latter."""
    difference = 0.0
    for head in range(layer.heads):
        group = layer.group(head)
        scores = layer.scaling * layer.queries[head] @ layer.keys[group].T
        if layer.positions is not None:
            scores[np.arange(layer.n) > layer.positions[:, None]] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        weights /= weights.sum(axis=1, keepdims=True)
        gap = weights @ layer.values[group] - own[head]
        difference += float(np.sum(gap.astype(np.float64) ** 2))
    return difference, float(np.sum(own.astype(np.float64) ** 2))


def relative_error(difference: float, size: float) -> float:
    """Root of the ratio of `squared_differences`; 0 or 1 if the outputs vanish."""
    return (difference / size) ** 0.5 if size > 0 else float(difference > 0)


class Recording(eqx.Module):
    """Queries, keys and values of every layer of a model, for one or more prompts.

    `recording.prompts[p][l]` is layer `l` on prompt `p`. `save` writes one compressed file;
    `Recording.load` reads it back without running anything that it might contain.
    """

    model: str
    prompts: tuple[tuple[RecordedLayer, ...], ...]
    texts: tuple[str, ...] = ()  # one name for each prompt
    depth: int | None = None  # layers of the model; hybrid ones have some without attention

    @property
    def missing_layers(self) -> int:
        """How many layers of the model have no attention that was recorded."""
        return max(0, (self.depth or 0) - len(self.layers))

    @property
    def layers(self) -> tuple[RecordedLayer, ...]:
        """The layers on the first prompt."""
        return self.prompts[0]

    def __str__(self) -> str:
        """Sizes of each prompt and layer, and the error of recomputed attention."""
        lines = [f"Recording of {self.model}"]
        if self.missing_layers:
            lines[0] += f": {len(self.layers)} of {self.depth} layers, the others have no attention"
        for p, layers in enumerate(self.prompts):
            text = self.texts[p] if p < len(self.texts) else ""
            lines.append(f"prompt {p}: {text}" if text else f"prompt {p}")
            lines.append("  layer   heads    keys  queries  dimension     error  module")
            for number, layer in enumerate(layers):
                heads = f"{layer.heads}" + f"/{len(layer.keys)}" * (len(layer.keys) < layer.heads)
                error = "" if layer.error is None else f"{layer.error:.1e}"
                lines.append(
                    f"  {number:5d}  {heads:>6}  {layer.n:6d}  {layer.queries.shape[1]:7d}"
                    f"  {layer.keys.shape[-1]:9d}  {error:>8}  {layer.name}".rstrip()
                )
        return "\n".join(lines)

    def heads(self, prompt: int = 0) -> Iterator[tuple[int, int, RecordedHead]]:
        """(layer, head, recorded head) for each head on one prompt."""
        for number, layer in enumerate(self.prompts[prompt]):
            for head in range(layer.heads):
                yield number, head, layer.head(head)

    def save(self, path: str | Path, *, dtype: type = np.float32) -> None:
        """Write a `.npz` file; `dtype=np.float16` halves it."""
        path = Path(path)
        check_target(path, "recording", (".npz",))
        arrays: dict[str, np.ndarray] = {
            "format": np.array(_FORMAT),
            "model": np.array(self.model),
            "texts": np.array(self.texts or [""] * len(self.prompts)),
        }
        if self.depth is not None:
            arrays["depth"] = np.array(self.depth)
        for p, layers in enumerate(self.prompts):
            for number, layer in enumerate(layers):
                for name in ("queries", "keys", "values", "output_matrix"):
                    if (value := getattr(layer, name)) is not None:
                        arrays[f"{p}/{number}/{name}"] = _stored(value, dtype)
                for name in ("scaling", "positions", "error", "name"):
                    if (value := getattr(layer, name)) is not None:
                        arrays[f"{p}/{number}/{name}"] = np.asarray(value)
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Recording":
        """Read a file written by `save`."""
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                arrays = dict(file)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise _not_a_recording(path, str(error)) from error
        found = arrays.get("format")
        if found is None or found.ndim or found.dtype.kind not in "iu" or found != _FORMAT:
            other = "another kind of file" if found is None else " ".join(str(found).split())
            raise _checks.error(
                f"a recording must have format {_FORMAT}", other, "record the model again"
            )
        try:
            return cls._of(arrays)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise _not_a_recording(path, reason) from error

    @classmethod
    def _of(cls, arrays: dict[str, np.ndarray]) -> "Recording":
        """From the arrays of a file."""
        layers: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        for name, value in arrays.items():
            if (member := _MEMBER.fullmatch(name)) is not None:
                layers.setdefault((int(member[1]), int(member[2])), {})[member[3]] = value
            elif name not in ("format", "model", "texts", "depth"):
                raise ValueError(f"it has a member {name[:60]!r}")
        prompts: list[list[RecordedLayer]] = []
        for p, number in sorted(layers):
            if p == len(prompts):
                prompts.append([])
            if p != len(prompts) - 1 or number != len(prompts[p]):
                raise ValueError(f"layer {number} of prompt {p} does not follow on another one")
            stored = layers[p, number]
            prompts[p].append(
                RecordedLayer(
                    **{
                        name: value.astype(np.float32)
                        for name, value in stored.items()
                        if name in ("queries", "keys", "values", "output_matrix")
                    },
                    scaling=float(stored["scaling"]),
                    positions=stored.get("positions"),
                    error=float(stored["error"]) if "error" in stored else None,
                    name=str(stored.get("name", "")),
                )
            )
        texts = tuple(map(str, arrays["texts"]))
        if not prompts or len(texts) != len(prompts):
            raise ValueError(f"it has {len(prompts)} prompts and {len(texts)} texts")
        return cls(
            str(arrays["model"]),
            tuple(map(tuple, prompts)),
            texts,
            int(arrays["depth"]) if "depth" in arrays else None,
        )


def _stored(value: np.ndarray, dtype: type) -> np.ndarray:
    """The array in the dtype of a file."""
    with np.errstate(over="ignore"):
        found = value.astype(dtype)
    if not np.isfinite(found).all():
        largest = f"{np.abs(value).max():.2g}"
        raise _checks.error(f"a recording must fit in {np.dtype(dtype)}", largest, "use float32")
    return found


def _not_a_recording(path: str | Path, reason: str) -> ValueError:
    return _checks.error(
        "a recording must be a file written by Recording.save",
        f"{path!s} ({reason})",
        "record the model again",
    )
