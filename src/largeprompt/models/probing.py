"""`probe`: what every recorded head does, as numbers of the theory of large prompts.

Scores are <k, z> times the scaling of the layer. T(z) is the head's output on the recorded prompt,
v the mean of its values, and queries are the recorded ones. Errors are squared and relative to the
deviation E|T - v|^2 over queries, except residuals of affine maps: these are relative to the
variance E|T - E T|^2, so that the best constant has residual 1. `variance_share` is the ratio of
both.
"""

import json
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.special import softmax

from .. import _checks
from .._progress import progress_bar
from .._provenance import code_version, versions
from .._search import last_crossing, scan
from ..compression import CompressionError, compress, linearise
from ..compression.compressed import draft_of
from ..compression.compression_problem import FEWEST, problem_of, split_queries
from ..compression.linearised import cross_validated
from ..concentration import regime
from ..prompts import prompt_uncertainty
from ..prompts.error_table import error_table
from .recording import RecordedHead, RecordedLayer, Recording

MAPS = ("best", "mean query", "origin")
METHODS = ("gaussian tail", "most attended", "attention matching")  # of `compress`, compared
_BARS = 32  # queries at which error bars of the prompt are computed
_EXACT = 8  # queries at which the exact error along the prompt length is computed
_SHORTEST_PREFIX = 16
_PREFIXES = 7
_LENGTHS = np.geomspace(1, 1e6, 25)
_LONGEST = 1e9  # prompt that the search for a length looks at
_FOLDS = 5  # of `linearise`: a fifth of the queries is held out


class Quantity(NamedTuple):
    """How a number of every head is called and read."""

    title: str
    meaning: str


QUANTITIES = {
    "score_deviation": Quantity(
        "score deviation",
        "Standard deviation of the scores over the tokens, root mean square over queries. From "
        "about 3 on, a thousand tokens no longer average.",
    ),
    "score_deviation_centred": Quantity(
        "score deviation, centred",
        "Standard deviation of <k, z - mean query> over the tokens as weighted at the mean query: "
        "what is left once the head is tilted to its mean query.",
    ),
    "effective_tokens": Quantity(
        "effective tokens",
        "1 / sum of squared weights, median over queries: how many tokens carry an output.",
    ),
    "tail_index": Quantity(
        "Pareto tail index",
        "Tail index of the weighted terms, median over queries. Below 0.5 an error bar from the "
        "prompt holds, above 0.7 the prompt is too short to know.",
    ),
    "sink_mass": Quantity(
        "mass on sinks", "Mean weight of the first tokens, where attention goes to rest."
    ),
    "top_mass": Quantity("mass of one token", "Mean weight of the most attended token."),
    "residual_best": Quantity(
        "residual, best affine map",
        "Error of the best affine map of the query on held-out queries, relative to the variance "
        "of the output: 0 if the head is linear in the query, 1 for a constant.",
    ),
    "residual_mean_query": Quantity(
        "residual, tilted at the mean query",
        "The same for the affine map of the prompt tilted at the mean query (Lemma 2.1 after "
        "tilting). No query is fitted but their mean.",
    ),
    "residual_origin": Quantity(
        "residual, literal moments",
        "The same for Lemma 2.1 with the literal mean and covariance of the tokens.",
    ),
    "prompt_error": Quantity(
        "error bar of the prompt",
        "Squared error that the tokens themselves suggest for this prompt against an infinite one "
        "of the same kind. Believe it where the tail index is below 0.5.",
    ),
    "prompt_length": Quantity(
        "tokens needed",
        "Length from which on prompts of tokens drawn from this prompt have at most the tolerated "
        "error, exactly. Not for decoders, whose texts are no independent samples.",
    ),
    "compression_error": Quantity(
        "error of a small measure",
        "Error on held-out queries of a small measure in place of the prompt, at the middle size: "
        "the best of kept tokens and a Gaussian tail, most attended tokens, attention matching.",
    ),
}


@_checks.accepts()
def probe(
    recording: Recording,
    *,
    length: int | None = None,
    tolerance: float = 0.01,
    sinks: int = 1,
    sizes: Sequence[int] = (16, 65, 130),
    progress: bool = True,
) -> xr.Dataset:
    """Regime, linearity, error bars, length needed and compressibility of every recorded head.

    Causal models: the recorded queries act on the tokens that all of them saw. The variables over
    `prefix` follow the same queries on shorter prefixes.

    **Arguments:**

    - `length`: number of tokens of every prompt; by default all that every query saw.
    - `tolerance`: squared error relative to the deviation of the output, for `prompt_length`.
    - `sinks`: number of first tokens that count as sinks.
    - `sizes`: of compressed prompts, in tokens of equal bytes.

    **Returns:** a dataset over ("prompt", "layer", "head"), NaN where a layer has fewer heads.
    `residual` over "map" are those of `lp.linearise`, by cross-validation. `predicted_error` along
    "length" is `lp.output_error` with the recorded tokens as the law of independent tokens,
    averaged over 8 queries, and `prompt_length` the length from which on it meets the tolerance,
    infinity above 1e9; both are NaN for decoders, whose texts are no independent samples, and, with
    a warning, where scores are too wide for the integral. `compression_error` over "size" is that
    of `lp.compress` by the best of three methods: `compression_method` is chosen on every other
    held-out query, and the rest of them measure the error and its `compression_standard_error`
    (NaN, with a warning, below 128 queries). `compression_error_by_method` has all of them, on all
    held-out queries (NaN below 64). `compression_atoms` and `compression_rank` (-1: no Gaussian)
    are its sizes. The attributes of each variable say what it means.

    >>> import numpy as np
    >>> import largeprompt as lp
    >>> rng = np.random.default_rng(0)
    >>> queries, keys = (rng.normal(size=(1, n, 4)).astype(np.float32) for n in (128, 300))
    >>> layer = lp.models.RecordedLayer(queries, keys, keys, scaling=0.2)
    >>> found = lp.models.probe(lp.models.Recording("normal", ((layer,),)))
    >>> print(found.regime.item(), bool(found.residual.sel(map="best") < 0.05))
    self-averaging True
    """
    settings = _Settings(
        None if length is None else _checks.count("length", length),
        _checks.number("tolerance", tolerance, "pass for example 0.01", above=0.0),
        _checks.count("sinks", sinks),
        tuple(_checks.count("sizes", size) for size in sizes),
    )
    shape = (
        len(recording.prompts),
        max(map(len, recording.prompts)),
        max(layer.heads for layers in recording.prompts for layer in layers),
    )
    arrays: dict[str, np.ndarray] = {}
    few: set[tuple[int, int]] = set()
    total = sum(layer.heads for layers in recording.prompts for layer in layers)
    with progress_bar("probing", total, unit="heads", shown=progress) as advance:
        for p, layers in enumerate(recording.prompts):
            for number, layer in enumerate(layers):
                label = f"probing prompt {p}, layer {number}"
                for head in range(layer.heads):
                    place = f"layer {number}, head {head} of prompt {p}"
                    found = _one_head(layer, head, settings, few, place)
                    for name, value in found.items():
                        _store(arrays, name, shape, (p, number, head), value)
                    advance(label=label)
    if few:
        given, needed = min(few)
        warnings.warn(
            f"residuals of affine maps are NaN where {needed} queries are needed and {given} are "
            "recorded: record more queries, or predict more rows of a table",
            stacklevel=2,
        )
    fewest = int(np.nanmin(arrays["queries"]))
    if fewest < 2 * FEWEST:
        warnings.warn(
            f"errors of compressed prompts are NaN where {2 * FEWEST} queries are needed, a "
            f"quarter of them held out, and {fewest} are recorded: record more queries",
            stacklevel=2,
        )
    if wide := int(np.nansum(arrays.pop("too_wide"))):
        warnings.warn(
            f"prompt_length and predicted_error are NaN for {wide} heads, whose scores are too "
            "wide for the exact integral",
            stacklevel=2,
        )
    return _dataset(recording, arrays, settings)


class _Settings(NamedTuple):
    length: int | None
    tolerance: float
    sinks: int
    sizes: tuple[int, ...]


def _store(
    arrays: dict[str, np.ndarray],
    name: str,
    shape: tuple[int, int, int],
    place: tuple[int, int, int],
    value: Any,
) -> None:
    value = np.asarray(value)
    if name not in arrays:
        text = value.dtype.kind == "U"
        arrays[name] = np.full(
            (*shape, *value.shape), "" if text else np.nan, "<U32" if text else np.float64
        )
    arrays[name][place] = value


class SeenHead(NamedTuple):
    """A head on one prompt in float64: its scores are <k, z>, with queries already scaled."""

    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray  # times the scaling
    weights: np.ndarray  # (q, n)
    outputs: np.ndarray  # (q, v)

    @classmethod
    def of(cls, keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> "SeenHead":
        weights = softmax(queries @ keys.T, axis=-1)
        return cls(keys, values, queries, weights, weights @ values)

    def prefix(self, length: int) -> "SeenHead":
        """The first tokens."""
        return SeenHead.of(self.keys[:length], self.values[:length], self.queries)

    def variance(self) -> float:
        """E|T - E T|^2."""
        return float(np.mean(np.sum((self.outputs - self.outputs.mean(axis=0)) ** 2, axis=1)))

    def deviation(self) -> float:
        """E|T - mean value|^2."""
        return float(np.mean(np.sum((self.outputs - self.values.mean(axis=0)) ** 2, axis=1)))

    def score_deviation(self) -> float:
        """Root mean square over queries of the deviation over tokens."""
        return float(np.sqrt(np.mean(np.var(self.queries @ self.keys.T, axis=1))))

    def centred_deviation(self) -> float:
        """The same for steps from the mean query, tokens weighted as at the mean query."""
        mean = self.queries.mean(axis=0)
        weights = softmax(self.keys @ mean)
        scores = (self.queries - mean) @ self.keys.T
        centres = scores @ weights
        return float(np.sqrt(np.mean(((scores - centres[:, None]) ** 2) @ weights)))

    def best_residual(self) -> float:
        """That of `linearise(head, prompt, queries)`, from the outputs at hand."""

        def fit(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            z, T = self.queries[rows], self.outputs[rows]
            slope = np.linalg.lstsq(z - z.mean(axis=0), T - T.mean(axis=0))[0].T
            return slope, T.mean(axis=0) - slope @ z.mean(axis=0)

        gaps = cross_validated(fit, self.queries, self.outputs) - self.outputs
        return _relative(float(np.mean(np.sum(gaps**2, axis=1))), self.variance())

    def effective_tokens(self) -> float:
        return float(np.median(1 / np.sum(self.weights**2, axis=1)))


def _one_head(
    layer: RecordedLayer,
    number: int,
    settings: _Settings,
    few: set[tuple[int, int]],
    place: str,
) -> dict[str, Any]:
    """All numbers of one head."""
    recorded = layer.head(number, length=settings.length)
    head, prompt, queries = recorded
    if prompt.n < 2 or not len(queries):
        raise _checks.error(
            "a head needs at least 2 tokens and a query that saw them all",
            f"{prompt.n} tokens and {len(queries)} queries in {place}",
            "record fewer queries, or pass length=",
        )
    keys, values = (np.asarray(a, np.float64) for a in (prompt.keys, prompt.values))
    seen = SeenHead.of(keys, values, layer.scaling * queries.astype(np.float64))
    variance, deviation = seen.variance(), seen.deviation()
    sigma = seen.score_deviation()
    phase = regime(sigma, float(prompt.n))
    mass = seen.weights.mean(axis=0)
    needed = -(-(queries.shape[1] + 2) * _FOLDS // (_FOLDS - 1))
    enough = len(queries) >= needed
    if not enough:
        few.add((len(queries), needed))
    return {
        "tokens": prompt.n,
        "queries": len(queries),
        "score_deviation": sigma,
        "score_deviation_centred": seen.centred_deviation(),
        "effective_tokens": seen.effective_tokens(),
        "sink_mass": float(mass[: settings.sinks].sum()),
        "top_mass": float(mass.max()),
        "top_token": int(mass.argmax()),
        "regime": phase.name,
        "variance_share": _relative(variance, deviation),
        "residual": [
            float(linearise(head, prompt, queries, at).residual.value) if enough else math.nan
            for at in MAPS
        ],
        **_prompt_errors(recorded, deviation, settings.tolerance, layer.positions is None),
        **_compressions(recorded, settings.sizes),
        **_prefixes(seen, settings.sinks, deviation, enough),
    }


def _relative(square: float, scale: float) -> float:
    """The ratio; 0 where both vanish."""
    return 0.0 if square == 0 else square / scale if scale > 0 else math.inf


def _some(count: int, most: int) -> np.ndarray:
    """At most `most` evenly spaced indices."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _prompt_errors(
    recorded: RecordedHead, deviation: float, tolerance: float, exchangeable: bool
) -> dict[str, Any]:
    """Error bars from the tokens; the exact error along the length if they are a sample."""
    head, prompt, queries = recorded
    bars = prompt_uncertainty(head, prompt, queries[_some(len(queries), _BARS)])
    readings, counts = np.unique(bars.reading, return_counts=True)
    index = np.maximum(*map(np.asarray, (bars.weight_tail_index, bars.term_tail_index)))
    squares = np.trace(np.asarray(bars.covariance, np.float64), axis1=-2, axis2=-1)
    curve, needed = np.full(len(_LENGTHS), np.nan), math.nan
    if exchangeable:
        curve, needed = _exact_errors(recorded, tolerance * deviation)
    return {
        "tail_index": float(np.median(index)),
        "reading": str(readings[counts.argmax()]),
        "prompt_error": _relative(float(np.mean(squares)), deviation),
        "prompt_length": needed,
        "too_wide": exchangeable and math.isnan(needed),
        "predicted_error": [_relative(float(error), deviation) for error in curve],
    }


def _exact_errors(recorded: RecordedHead, target: float) -> tuple[np.ndarray, float]:
    """Squared error at `_LENGTHS`, and the length that brings it to the target; NaN where the
    scores are too wide for the integral.
    """
    head, prompt, queries = recorded
    few = queries[_some(len(queries), _EXACT)]
    try:
        table = error_table(head, [prompt.as_prompt()], few, longest=_LONGEST)
        curve = table.at(_LENGTHS).value.mean(axis=0)
        if not curve.max() > 0:
            return curve, 1.0
        needed = last_crossing(
            lambda lengths: table.at(lengths).value.mean(axis=0) - target, scan(_LONGEST)
        )
    except ValueError:
        return np.full(len(_LENGTHS), np.nan), math.nan
    return curve, needed


def _compressions(recorded: RecordedHead, sizes: Sequence[int]) -> dict[str, Any]:
    """Small measures by several methods; the best is chosen and measured on different queries."""
    head, prompt, queries = recorded
    token = prompt.dim * prompt.dtype.itemsize
    _, held_out = split_queries(len(queries))
    choosing, measuring = held_out[::2], held_out[1::2]
    problem = problem_of(prompt, queries, (), head)
    rows: dict[str, list[Any]] = {f"compression_{name}": [] for name in _COMPRESSION_NAMES}
    for size in sizes:
        found = {
            method: compress(prompt, queries, size=size * token, head=head, method=method)
            for method in METHODS
            if size > 1 or method != "attention matching"  # whose tokens have weights too
        }
        best, errors = METHODS[0], [math.nan] * 3
        by_method = dict.fromkeys(METHODS, math.nan)
        by_method |= {method: float(one.error.mean) for method, one in found.items() if one.error}
        if len(queries) >= 2 * FEWEST:  # each half of those held out as many as `compress` asks for
            drafts = {method: draft_of(one) for method, one in found.items()}
            best = min(drafts, key=lambda one: problem.errors(drafts[one], choosing)[0].mean())
            measured = CompressionError.of(*problem.errors(drafts[best], measuring))
            errors = [measured.mean, measured.standard_error, measured.percentile_90]
        tail = found[best].tail
        row = (*errors, found[best].n, -1 if tail is None else tail.rank, best)
        for name, value in zip(rows, (*row, list(by_method.values())), strict=True):
            rows[name].append(value)
    return dict(rows)


_COMPRESSION_NAMES = (
    *("error", "standard_error", "error_90"),
    *("atoms", "rank", "method", "error_by_method"),
)


def _prefixes(seen: SeenHead, sinks: int, deviation: float, enough: bool) -> dict[str, Any]:
    """Numbers of the same queries on the first tokens only."""
    rows: dict[str, list[float]] = {name: [] for name in _PREFIX_NAMES}
    for length in _prefix_lengths(len(seen.keys)):
        part = seen.prefix(length)
        gap = np.mean(np.sum((part.outputs - seen.outputs) ** 2, axis=1))
        rows["prefix_length"].append(length)
        rows["prefix_score_deviation"].append(part.score_deviation())
        rows["prefix_effective_tokens"].append(part.effective_tokens())
        rows["prefix_sink_mass"].append(float(part.weights[:, :sinks].sum(axis=1).mean()))
        rows["prefix_error"].append(_relative(float(gap), deviation))
        rows["prefix_residual"].append(part.best_residual() if enough else math.nan)
    return dict(rows)


_PREFIX_NAMES = (
    "prefix_length",
    "prefix_score_deviation",
    "prefix_effective_tokens",
    "prefix_sink_mass",
    "prefix_error",
    "prefix_residual",
)


def _prefix_lengths(n: int) -> list[int]:
    return np.geomspace(min(_SHORTEST_PREFIX, n), n, _PREFIXES).round().astype(int).tolist()


_DIMENSIONS = {
    "residual": ("map",),
    "predicted_error": ("length",),
    **{f"compression_{name}": ("size",) for name in _COMPRESSION_NAMES},
    "compression_error_by_method": ("size", "method"),
    **{name: ("prefix",) for name in _PREFIX_NAMES},
}
_OTHER_MEANINGS = {
    "tokens": "Number of tokens of the prompt.",
    "queries": "Number of recorded queries.",
    "top_token": "Index of the most attended token.",
    "regime": "Regime of the score deviation and the number of tokens (lp.regime).",
    "reading": "What the tail index says at most queries (lp.prompt_uncertainty).",
    "variance_share": "E|T - E T|^2 / E|T - mean value|^2 over queries.",
    "residual": "Residual of three affine maps, on held-out queries.",
    "predicted_error": "Exact error of prompts of tokens drawn from the recorded ones.",
    "compression_standard_error": "Standard error of compression_error.",
    "compression_error_90": "90th percentile over held-out queries.",
    "compression_error_by_method": "Mean error on all held-out queries, for every method.",
    "compression_method": "Method of lp.compress with the lowest error on every other held-out "
    "query, of those in the coordinate `method`.",
    "compression_atoms": "Tokens of the chosen measure.",
    "compression_rank": "Rank of the Gaussian for the others; -1 without one.",
    "prefix_error": "Error of the output of a prefix against that of all tokens.",
    "prefix_residual": "Residual of the best affine map on a prefix.",
}


def _dataset(
    recording: Recording, arrays: dict[str, np.ndarray], settings: _Settings
) -> xr.Dataset:
    outer = ("prompt", "layer", "head")
    for number, at in enumerate(MAPS):
        arrays[f"residual_{at.replace(' ', '_')}"] = arrays["residual"][..., number]
    variables: dict[str, Any] = {
        name: (outer + _DIMENSIONS.get(name, ()), array, _description(name))
        for name, array in arrays.items()
    }
    errors = [
        [math.nan if layer.error is None else layer.error for layer in layers]
        for layers in recording.prompts
    ]
    width = max(map(len, errors))
    filled = np.array([row + [math.nan] * (width - len(row)) for row in errors])
    about = "Error of attention recomputed from the recording, relative to the model's own."
    variables["recording_error"] = (outer[:2], filled, {"description": about})
    coordinates = {
        **{name: np.arange(size) for name, size in zip(outer, _outer_shape(arrays), strict=True)},
        "map": list(MAPS),
        "method": list(METHODS),
        "size": list(settings.sizes),
        "length": _LENGTHS,
    }
    attributes = {
        **versions(None),
        "code": code_version(),
        "model": recording.model,
        "texts": json.dumps(list(recording.texts)),
        "missing_layers": recording.missing_layers,
        "tolerance": settings.tolerance,
        "sinks": settings.sinks,
        "length": "all" if settings.length is None else settings.length,
    }
    return xr.Dataset(variables, coordinates, attributes)


def _outer_shape(arrays: dict[str, np.ndarray]) -> tuple[int, ...]:
    return arrays["tokens"].shape


def _description(name: str) -> dict[str, str]:
    quantity = QUANTITIES.get(name)
    if quantity is not None:
        return {"long_name": quantity.title, "description": quantity.meaning}
    found = _OTHER_MEANINGS.get(name)
    return {} if found is None else {"description": found}
