"""An in-context learner whose attention is replaced by affine maps of the query.

A head on a long context is nearly an affine map of its query. The maps are learnt by least squares
on rows of the context without their labels, layer after layer, so that each layer is fitted to the
tokens that the affine layers before it give. A replaced layer stores one matrix for each head, and
its cost for a row does not depend on the number of rows in the context.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from .. import _checks, _provenance
from .._typing import Array, ArrayInput
from .tabpfn import AbstractContext, InContextLearner, TabPFN, checked_labels, checked_rows

# of the largest squared singular value of the queries; generalised cross-validation chooses
_RIDGES = 10.0 ** np.arange(-9, 1)
_TIMINGS = 3


class AffineHeads(AbstractContext):
    """A context of which every head knows an affine map of the query, and no tokens."""

    slopes: Float[Array, "h k k"]
    intercepts: Float[Array, "h k"]

    def attended(self, queries: Float[Array, "h q k"], scaling: float) -> Float[Array, "h q k"]:
        """Slope times query plus intercept."""
        products = jnp.einsum("hqk,hmk->hqm", queries, self.slopes, precision="highest")
        return products + self.intercepts[:, None]


class LinearisedLearner(eqx.Module):
    """A learner with affine maps in place of attention in `layers`.

    `maps[l]` has the `slopes` and `intercepts` of the heads of layer `layers[l]`, `residual[l, h]`
    the mean squared error of its head `h` relative to the variance of the output: every row is
    predicted by a map fitted without it. `ridge[l, h]` is the penalty, relative to the largest
    squared singular value of the queries.
    """

    learner: InContextLearner
    layers: tuple[int, ...]
    maps: tuple[AffineHeads, ...]
    residual: Float[np.ndarray, "l h"]
    ridge: Float[np.ndarray, "l h"]

    def logits(self, X: ArrayInput) -> Float[np.ndarray, "n classes"]:
        """Logits of the classes for every row."""
        return self.learner.logits(X)

    def predict_proba(self, X: ArrayInput) -> Float[np.ndarray, "n classes"]:
        """Probabilities of the classes for every row."""
        return self.learner.predict_proba(X)


def linearise_learner(
    learner: InContextLearner,
    *,
    layers: Sequence[int] | None = None,
    inputs: ArrayInput | None = None,
    ridge: float | None = None,
    sequential: bool = True,
) -> LinearisedLearner:
    """Replace the attention of chosen layers by the nearest affine maps of the query.

    For each head, slope and intercept minimise sum_i |T(q_i) - slope q_i - intercept|^2 +
    ridge s^2 |slope|^2 over the queries q_i of unlabelled rows, s their largest singular value.

    **Arguments:** `layers` are all but the first by default, which looks up single rows and is far
    from affine. `inputs` are rows without labels, by default those of the context. `ridge=None`
    chooses the penalty of every head by generalised cross-validation; `ridge=inf` gives the best
    constants. With `sequential=False` each layer is fitted to the tokens of the original model.
    """
    layers = _chosen(layers, len(learner.contexts))
    if ridge is not None:
        fix = "leave it out for cross-validation"
        ridge = _checks.number("ridge", ridge, fix, least=0.0, finite=False)
    tokens = learner.embedded(learner.rows if inputs is None else inputs)
    contexts, maps, residuals, ridges = list(learner.contexts), [], [], []
    for number in range(len(contexts)):
        if number in layers:
            pairs = zip(*learner.attended(number, tokens), strict=True)
            fits = [_fit(*pair, ridge) for pair in pairs]
            contexts[number] = _affine_heads(fits)
            maps.append(contexts[number])
            residuals.append([fit.residual for fit in fits])
            ridges.append([fit.ridge for fit in fits])
        follower = learner.with_contexts(tuple(contexts)) if sequential else learner
        tokens = follower.after(number, tokens)
    return LinearisedLearner(
        learner.with_contexts(tuple(contexts)),
        layers,
        tuple(maps),
        np.array(residuals),
        np.array(ridges),
    )


def _chosen(layers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    found = tuple(range(1, count)) if layers is None else tuple(sorted(layers))
    if not found or len(set(found)) < len(found) or not set(found) <= set(range(count)):
        raise _checks.error(
            f"layers must be different numbers from 0 to {count - 1}",
            repr(found),
            "leave it out for all layers but the first",
        )
    return found


class _Fit(NamedTuple):
    slope: np.ndarray
    intercept: np.ndarray
    residual: float
    ridge: float


def _fit(queries: np.ndarray, outputs: np.ndarray, ridge: float | None) -> _Fit:
    """Ridge regression of outputs on queries, intercept free, by the singular values."""
    queries, outputs, n = queries.astype(np.float64), outputs.astype(np.float64), len(queries)
    mean_query, mean_output = queries.mean(axis=0), outputs.mean(axis=0)
    u, s, axes = np.linalg.svd(queries - mean_query, full_matrices=False)
    kept = s > 1e-7 * s.max(initial=1e-300)  # beyond the rounding of single precision
    u, s, axes = u[:, kept], s[kept], axes[kept]
    targets = outputs - mean_output
    parts = u.T @ targets
    total, squares = np.sum(targets**2), np.sum(parts**2, axis=1)
    outside = max(total - squares.sum(), 0.0)

    def shrunk(penalty: float) -> np.ndarray:
        return s**2 / (s**2 + penalty * s.max(initial=1e-300) ** 2)

    def criterion(penalty: float) -> float:
        """Generalised cross-validation: mean squared error / (share of free dimensions)^2."""
        factors = shrunk(penalty)
        free = max(1 - (1 + factors.sum()) / n, 1e-3)
        return float((outside + np.sum((1 - factors) ** 2 * squares)) / free**2)

    if ridge is None:
        ridge = float(min(_RIDGES, key=criterion))
    factors = shrunk(ridge)
    slope = (axes.T * (factors / s)) @ parts
    leverage = np.minimum(1 / n + u**2 @ factors, 1 - 1e-9)
    errors = (targets - u @ (factors[:, None] * parts)) / (1 - leverage)[:, None]
    residual = float(np.sum(errors**2) / total) if total > 0 else 0.0
    return _Fit(slope.T, mean_output - mean_query @ slope, residual, ridge)


def _affine_heads(fits: list[_Fit]) -> AffineHeads:
    slopes, intercepts = (
        jax.device_put(np.array([fit[part] for fit in fits], np.float32)) for part in (0, 1)
    )
    return AffineHeads(slopes, intercepts)


def linearised_agreement(
    model: TabPFN,
    X: ArrayInput,
    y: ArrayInput,
    key: Array,
    *,
    context: int,
    test: int,
    splits: int = 5,
    layers: Sequence[int] | None = None,
    sequential: bool = True,
    probabilities: ArrayInput | None = None,
) -> xr.Dataset:
    """How well an in-context learner with affine attention replaces the original, over splits.

    Each split draws `context` labelled rows and `test` other rows. Three kinds of attention in
    `layers` (all but the first by default) are compared: softmax, the affine maps of
    `linearise_learner`, and constants, the best maps that ignore the query.

    **Returns:** a dataset over (split, attention) with `accuracy`, `cross_entropy` of the labels,
    `agreement` (share of test rows with the prediction of softmax), `distance` (mean total
    variation to its probabilities) and `seconds` for one row; `residual` (split, layer, head) of
    the affine maps. With `probabilities` (n, classes), those of the true classes, it also has
    `bayes_accuracy` and `bayes_cross_entropy` over splits.
    """
    X = checked_rows("X", X, None)
    y = checked_labels(y, len(X), model.most_classes)
    context, test, splits = (
        _checks.count(name, value)
        for name, value in (("context", context), ("test", test), ("splits", splits))
    )
    if context + test > len(X):
        raise _checks.error(
            "X must have at least context + test rows",
            f"{len(X)} rows, context {context} and test {test}",
            "pass more rows, or a smaller context or test",
        )
    bayes = None if probabilities is None else _probabilities(probabilities, y)
    found: list[xr.Dataset] = []
    for split in jax.random.split(_checks.key(key), splits):
        order = np.asarray(jax.random.permutation(split, len(X)))[: context + test]
        seen, new = order[:context], order[context:]
        if y[new].max() > y[seen].max():
            raise _checks.error(
                "every class must occur in the context",
                f"a split without class {y[new].max()}",
                "pass a larger context, or another key",
            )
        data = _compare(model.read(X[seen], y[seen]), X[new], y[new], layers, sequential)
        if bayes is not None:
            data["bayes_accuracy"] = np.mean(bayes[new].argmax(axis=1) == y[new])
            data["bayes_cross_entropy"] = _cross_entropy(bayes[new], y[new])
        found.append(data)
    data = xr.concat(found, "split")
    settings: dict[str, Any] = {"context": context, "test": test, "sequential": sequential}
    data.attrs = _provenance.versions(key) | {"dtype": "float32", "settings": json.dumps(settings)}
    return data


def _probabilities(value: ArrayInput, y: np.ndarray) -> np.ndarray:
    """Probabilities of the classes of every row."""
    found = _checks.known("probabilities", value)
    wanted = (len(y), int(y.max()) + 1)
    good = found.shape == wanted and np.all(found >= 0)
    if not good or not np.allclose(found.sum(axis=1), 1, atol=1e-6):
        raise _checks.error(
            f"probabilities must have shape {wanted} and rows that sum to 1",
            f"shape {found.shape}" if found.shape != wanted else "other rows",
            "pass one column for each class",
        )
    return found


def _compare(
    learner: InContextLearner,
    X: np.ndarray,
    y: np.ndarray,
    layers: Sequence[int] | None,
    sequential: bool,
) -> xr.Dataset:
    affine = linearise_learner(learner, layers=layers, sequential=sequential)
    constant = linearise_learner(learner, layers=layers, sequential=sequential, ridge=np.inf)
    learners = {"softmax": learner, "affine": affine, "constant": constant}
    predicted = {name: one.predict_proba(X) for name, one in learners.items()}
    softmax = predicted["softmax"]
    chosen = {name: p.argmax(axis=1) for name, p in predicted.items()}
    columns = {
        "accuracy": [np.mean(chosen[name] == y) for name in learners],
        "cross_entropy": [_cross_entropy(p, y) for p in predicted.values()],
        "agreement": [np.mean(chosen[name] == chosen["softmax"]) for name in learners],
        "distance": [np.mean(np.sum(abs(p - softmax), axis=1)) / 2 for p in predicted.values()],
        "seconds": [_seconds(one, X) / len(X) for one in learners.values()],
    }
    return xr.Dataset(
        {name: ("attention", np.array(values)) for name, values in columns.items()}
        | {"residual": (("layer", "head"), affine.residual)},
        {"attention": list(learners), "layer": list(affine.layers)},
    )


def _cross_entropy(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Mean of -log p(label); probabilities below 1e-300 count as that."""
    chosen = probabilities[np.arange(len(y)), y]
    return float(-np.mean(np.log(np.maximum(chosen, 1e-300))))


def _seconds(learner: InContextLearner | LinearisedLearner, X: np.ndarray) -> float:
    """The shortest of some predictions, compiled before."""
    found = []
    for _ in range(_TIMINGS):
        start = time.perf_counter()
        learner.logits(X)
        found.append(time.perf_counter() - start)
    return min(found)
