"""TabPFN v1, an in-context learner: a transformer that reads labelled rows and labels others.

A labelled row (x, y) is the token A x + a + B y + b, a row without label the token A x + a. There
are no positions, and tokens of both kinds attend to labelled ones only. The model is a function of
the measure of its labelled rows and of one query: attention here is `lp.attend` at every layer.
"""

import abc
from collections.abc import Mapping
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from .. import _checks
from .._extras import require
from .._typing import Array, ArrayInput
from .fetch import weights_path
from .recording import RecordedLayer, Recording, relative_error, squared_differences

_AT_ONCE = 256  # tokens whose scores on the whole context are in memory
_OUTLIER = 4.0  # deviations beyond which features grow logarithmically
_LARGEST = 100.0  # of a standardised feature
_NORM_EPSILON = 1e-5


class Affine(eqx.Module):
    """The map x -> matrix x + offset of the last axis."""

    matrix: Float[Array, "m k"]
    offset: Float[Array, " m"]

    def __call__(self, x: Float[Array, "*batch k"]) -> Float[Array, "*batch m"]:
        return jnp.matmul(x, self.matrix.T, precision="highest") + self.offset


class LayerNorm(eqx.Module):
    """Tokens centred, divided by their deviation, times a weight plus a bias."""

    weight: Float[Array, " w"]
    bias: Float[Array, " w"]

    def __call__(self, x: Float[Array, "*batch w"]) -> Float[Array, "*batch w"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + _NORM_EPSILON) * self.weight + self.bias


class EncoderLayer(eqx.Module):
    """Weights of one layer: norm(x + attention), then norm(x + two-layer network)."""

    query: Affine
    key: Affine
    value: Affine
    output: Affine
    hidden: Affine
    shrink: Affine
    norm_1: LayerNorm
    norm_2: LayerNorm
    heads: int = eqx.field(static=True)

    @property
    def scaling(self) -> float:
        """Factor of the scores: 1 / sqrt(width of a head)."""
        return (len(self.query.offset) / self.heads) ** -0.5

    def split(self, tokens: Float[Array, "n w"]) -> Float[Array, "h n k"]:
        """The parts of tokens that belong to each head."""
        return jnp.swapaxes(tokens.reshape(len(tokens), self.heads, -1), 0, 1)


class AbstractContext(eqx.Module):
    """The context as the heads of one layer see it."""

    @abc.abstractmethod
    def attended(self, queries: Float[Array, "h q k"], scaling: float) -> Float[Array, "h q k"]:
        """What each head reads for each query."""


class KeysAndValues(AbstractContext):
    """A context for softmax attention."""

    keys: Float[Array, "h n k"]
    values: Float[Array, "h n k"]

    def attended(self, queries: Float[Array, "h q k"], scaling: float) -> Float[Array, "h q k"]:
        """Values averaged with softmax weights."""
        scores = jnp.einsum("hqk,hnk->hqn", queries, self.keys, precision="highest") * scaling
        weights = jax.nn.softmax(scores, axis=-1)
        return jnp.einsum("hqn,hnk->hqk", weights, self.values, precision="highest")


@eqx.filter_jit
def _through(
    layer: EncoderLayer, context: AbstractContext, tokens: Float[Array, "n w"]
) -> Float[Array, "n w"]:
    """Tokens after a layer; compiled once for all layers of equal shape."""

    def one(token: Float[Array, " w"]) -> Float[Array, " w"]:
        x = token[None]
        heads = context.attended(layer.split(layer.query(x)), layer.scaling)
        x = layer.norm_1(x + layer.output(heads.reshape(1, -1)))
        x = layer.norm_2(x + layer.shrink(jax.nn.gelu(layer.hidden(x), approximate=False)))
        return x[0]

    return jax.lax.map(one, tokens, batch_size=_AT_ONCE)


@eqx.filter_jit
def _attended(
    layer: EncoderLayer, context: AbstractContext, tokens: Float[Array, "n w"]
) -> tuple[Float[Array, "h n k"], Float[Array, "h n k"]]:
    """Queries and what they read, for every head."""

    def one(token: Float[Array, " w"]) -> tuple[Array, Array]:
        query = layer.split(layer.query(token[None]))
        return query[:, 0], context.attended(query, layer.scaling)[:, 0]

    found = jax.lax.map(one, tokens, batch_size=_AT_ONCE)
    return jnp.swapaxes(found[0], 0, 1), jnp.swapaxes(found[1], 0, 1)


@eqx.filter_jit
def _keys_and_values(layer: EncoderLayer, tokens: Float[Array, "n w"]) -> KeysAndValues:
    return KeysAndValues(layer.split(layer.key(tokens)), layer.split(layer.value(tokens)))


@eqx.filter_jit
def _embedded(encoder: Affine, x: Float[Array, "n k"]) -> Float[Array, "n w"]:
    return encoder(x)


@eqx.filter_jit
def _labelled(
    encoder: Affine, label_encoder: Affine, x: Float[Array, "n k"], y: Float[Array, " n"]
) -> Float[Array, "n w"]:
    return encoder(x) + label_encoder(y[:, None])


@eqx.filter_jit
def _decoded(hidden: Affine, last: Affine, tokens: Float[Array, "n w"]) -> Float[Array, "n c"]:
    return last(jax.nn.gelu(hidden(tokens), approximate=False))


class InputRule(eqx.Module):
    """Features as the model saw them in training, by the context's mean and deviation.

    Constant features are dropped, others standardised; beyond four deviations (of the context
    without its outliers) they grow logarithmically. They are multiplied by width / (number of
    features) and padded by zeros to the width of the model's input.
    """

    kept: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray
    width: int

    @classmethod
    def of(cls, X: np.ndarray, width: int) -> "InputRule":
        """The rule of one context."""
        mean, deviation = X.mean(axis=0), X.std(axis=0, ddof=1) + 1e-6
        standard = (X - mean) / deviation
        kept = np.any(X[0] != X, axis=0)
        inside = np.abs(standard - standard.mean(axis=0)) <= _OUTLIER * standard.std(axis=0, ddof=1)
        inside[:, ~kept] = True
        centre = np.mean(standard, axis=0, where=inside)
        reach = _OUTLIER * np.std(standard, axis=0, ddof=1, where=inside)
        return cls(kept, mean, deviation, centre - reach, centre + reach, width)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        x = np.clip((X - self.mean) / self.deviation, -_LARGEST, _LARGEST)
        growth = np.log1p(np.abs(x))
        x = np.minimum(growth + self.highest, np.maximum(self.lowest - growth, x))
        x = x[:, self.kept] * (self.width / np.sum(self.kept))
        return np.pad(x, ((0, 0), (0, self.width - x.shape[1]))).astype(np.float32)


class InContextLearner(eqx.Module):
    """A model that has read labelled rows, in any order, and predicts the labels of others.

    `contexts[l]` is what the heads of layer `l` attend to, `rows` the features of the context.
    `with_contexts` gives the learner with others, such as affine maps of the query.
    """

    model: "TabPFN"
    rule: InputRule
    contexts: tuple[AbstractContext, ...]
    rows: Float[np.ndarray, "n features"]
    classes: int

    def logits(self, X: ArrayInput) -> Float[np.ndarray, "n classes"]:
        """Logits of the classes for every row, in single precision."""
        tokens = self.embedded(X)
        for layer, context in zip(self.model.layers, self.contexts, strict=True):
            tokens = _through(layer, context, tokens)
        return np.asarray(_decoded(self.model.decoder, self.model.logit, tokens))[:, : self.classes]

    def predict_proba(self, X: ArrayInput) -> Float[np.ndarray, "n classes"]:
        """Probabilities of the classes for every row: the softmax of the logits."""
        return softmax(self.logits(X).astype(np.float64), axis=1)

    def with_contexts(self, contexts: tuple[AbstractContext, ...]) -> "InContextLearner":
        """The learner whose heads see other contexts."""
        return InContextLearner(self.model, self.rule, contexts, self.rows, self.classes)

    def embedded(self, X: ArrayInput) -> Float[Array, "n w"]:
        """Tokens of rows without labels, before the first layer."""
        rows = checked_rows("X", X, len(self.rule.kept))
        return _embedded(self.model.encoder, jax.device_put(self.rule(rows)))

    def attended(
        self, number: int, tokens: Float[Array, "n w"]
    ) -> tuple[Float[np.ndarray, "h n k"], Float[np.ndarray, "h n k"]]:
        """Queries of the heads of layer `number`, and what they read, given tokens before it."""
        queries, outputs = _attended(self.model.layers[number], self.contexts[number], tokens)
        return np.asarray(queries), np.asarray(outputs)

    def after(self, number: int, tokens: Float[Array, "n w"]) -> Float[Array, "n w"]:
        """Tokens after layer `number`, given those before it."""
        return _through(self.model.layers[number], self.contexts[number], tokens)


class TabPFN(eqx.Module):
    """TabPFN v1 in JAX: at most 100 features, 10 classes, any number of rows.

    `model.read(X, y)` gives an `InContextLearner`. One forward pass: no ensemble over permuted
    features and classes, no power transform and no temperature, which the published classifier
    adds around the same network.
    """

    encoder: Affine
    label_encoder: Affine
    layers: tuple[EncoderLayer, ...]
    decoder: Affine
    logit: Affine

    @classmethod
    def load(cls, path: str | Path | None = None) -> "TabPFN":
        """Read a `.safetensors` file; by default what `largeprompt models fetch tabpfn` stored."""
        return _from_state(*_state(weights_path("tabpfn") if path is None else Path(path)))

    @property
    def features(self) -> int:
        """Largest number of features."""
        return self.encoder.matrix.shape[1]

    @property
    def most_classes(self) -> int:
        """Largest number of classes."""
        return len(self.logit.offset)

    def read(self, X: ArrayInput, y: ArrayInput) -> InContextLearner:
        """The learner for a context: rows X (n, features) with labels y in {0, ..., classes - 1}.

        Costs O(n^2) once; then a prediction costs O(n). Scores are computed in chunks of rows, so
        that memory grows with n.
        """
        return self._read(X, y)[0]

    def predict_proba(
        self, X: ArrayInput, y: ArrayInput, X_test: ArrayInput
    ) -> Float[np.ndarray, "n classes"]:
        """Probabilities of the classes of test rows, given labelled rows."""
        return self.read(X, y).predict_proba(X_test)

    def record(self, X: ArrayInput, y: ArrayInput, X_test: ArrayInput) -> Recording:
        """Queries, keys and values of every layer: prompt 0 has the queries of test rows, prompt 1
        those of the labelled rows themselves; both have the keys and values of the context. `error`
        of a layer is that of attention recomputed from it, in NumPy, relative to the model's own.
        """
        learner, context_tokens = self._read(X, y)
        tokens, found = learner.embedded(X_test), []
        for number, (layer, own_tokens) in enumerate(zip(self.layers, context_tokens, strict=True)):
            context = _keys_and_values(layer, own_tokens)
            rest = (np.asarray(context.keys), np.asarray(context.values), layer.scaling)
            matrix, both = np.asarray(layer.output.matrix), []
            for rows in (tokens, own_tokens):
                queries, own = learner.attended(number, rows)
                error = relative_error(*squared_differences(RecordedLayer(queries, *rest), own))
                both.append(RecordedLayer(queries, *rest, matrix, error=error))
            found.append(both)
            tokens = learner.after(number, tokens)
        prompts = tuple(tuple(layers) for layers in zip(*found, strict=True))
        return Recording("tabpfn", prompts, ("test rows", "context rows"))

    def _read(
        self, X: ArrayInput, y: ArrayInput
    ) -> tuple[InContextLearner, list[Float[Array, "n w"]]]:
        """The learner, and the labelled tokens before each layer."""
        X = checked_rows("X", X, None)
        if X.shape[1] > self.features:
            raise _checks.error(
                f"X must have at most {self.features} features",
                f"{X.shape[1]} columns",
                "choose columns, or project them by principal components",
            )
        y = checked_labels(y, len(X), self.most_classes)
        rule = InputRule.of(X, self.features)
        if not rule.kept.any():
            raise _checks.error(
                "X must have a feature that is not constant",
                f"{X.shape[0]} equal rows",
                "pass rows that differ",
            )
        x, labels = jax.device_put((rule(X), y.astype(np.float32)))
        tokens = _labelled(self.encoder, self.label_encoder, x, labels)
        contexts, before = [], []
        for layer in self.layers:
            before.append(tokens)
            contexts.append(_keys_and_values(layer, tokens))
            tokens = _through(layer, contexts[-1], tokens)
        return InContextLearner(self, rule, tuple(contexts), X, int(y.max()) + 1), before


def checked_rows(name: str, value: ArrayInput, features: int | None) -> np.ndarray:
    """Rows of features in double precision."""
    rows = _checks.known(name, value)
    if rows.ndim != 2 or not rows.size or features not in (None, rows.shape[1]):
        wanted = "(rows, features)" if features is None else f"(rows, {features})"
        raise _checks.error(
            f"{name} must have shape {wanted}", f"shape {rows.shape}", "pass one row per case"
        )
    return _checks.require(
        rows,
        ~np.isfinite(rows),
        rule=f"{name} must be finite",
        received="NaN or infinity",
        fix="replace missing values, for example by the mean of their column",
    )


def checked_labels(value: ArrayInput, n: int, most: int) -> np.ndarray:
    """Labels as whole numbers."""
    labels = _checks.known("y", value)
    if labels.shape != (n,):
        raise _checks.error(
            f"y must have one label for each of the {n} rows of X",
            f"shape {labels.shape}",
            "pass an array of shape (rows,)",
        )
    whole = np.isfinite(labels) & (labels == np.round(labels)) & (labels >= 0) & (labels < most)
    if n < 2 or not whole.all() or labels.max() < 1:
        raise _checks.error(
            f"y must have labels 0, 1, ... of at least two and at most {most} classes",
            f"labels {np.unique(labels)[:12]}",
            "number them with np.unique(labels, return_inverse=True)[1]",
        )
    return labels.astype(np.int64)


_PREFIX = "module."


def _state(path: Path) -> tuple[dict[str, np.ndarray], int]:
    """Tensors by name and the number of heads."""
    library = require("safetensors", extra="models")
    try:
        with library.safe_open(path, "np") as file:
            tensors = {
                name.removeprefix(_PREFIX): np.asarray(file.get_tensor(name), np.float32)
                for name in file.keys()  # noqa: SIM118  # not a dictionary
            }
            return tensors, int(file.metadata()["nhead"])
    except FileNotFoundError:
        raise
    except Exception as cause:  # damaged files, other metadata, types that NumPy does not have
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise _checks.error(
            "a TabPFN checkpoint must be a .safetensors file with 'nhead' in its metadata",
            f"{str(path)!r} ({reason})",
            "run `largeprompt models fetch tabpfn`",
        ) from cause


def _from_state(state: Mapping[str, np.ndarray], heads: int) -> TabPFN:
    """The model of named tensors."""

    def tensor(name: str) -> Float[Array, "..."]:
        if name not in state or not np.all(np.isfinite(state[name])):
            raise _checks.error(
                f"a TabPFN checkpoint must have a finite tensor {name!r}",
                f"{len(state)} others" if name not in state else "NaN or infinity",
                "run `largeprompt models fetch tabpfn`",
            )
        return jax.device_put(np.asarray(state[name], np.float32))

    def affine(name: str) -> Affine:
        return Affine(tensor(f"{name}.weight"), tensor(f"{name}.bias"))

    def norm(name: str) -> LayerNorm:
        return LayerNorm(tensor(f"{name}.weight"), tensor(f"{name}.bias"))

    def layer(name: str) -> EncoderLayer:
        matrices = jnp.split(tensor(f"{name}.self_attn.in_proj_weight"), 3)
        offsets = jnp.split(tensor(f"{name}.self_attn.in_proj_bias"), 3)
        return EncoderLayer(
            *map(Affine, matrices, offsets),
            output=affine(f"{name}.self_attn.out_proj"),
            hidden=affine(f"{name}.linear1"),
            shrink=affine(f"{name}.linear2"),
            norm_1=norm(f"{name}.norm1"),
            norm_2=norm(f"{name}.norm2"),
            heads=heads,
        )

    numbers = {name.split(".")[2] for name in state if name.startswith("transformer_encoder.")}
    layers = [layer(f"transformer_encoder.layers.{number}") for number in range(len(numbers))]
    return TabPFN(
        affine("encoder"),
        affine("y_encoder"),
        tuple(layers),
        affine("decoder.0"),
        affine("decoder.2"),
    )
