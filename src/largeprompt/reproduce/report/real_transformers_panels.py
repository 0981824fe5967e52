"""The figure of real transformers: residuals by layer, and errors of small measures."""

import numpy as np
import xarray as xr

from ..studies.real_transformers import MODELS
from .panels import Panel, Series

_KINDS = {"tabpfn": "in-context learner", "smollm2": "decoder", "minilm": "encoder"}
_MAPS = {"best": "best affine map", "mean query": "Lemma 2.1, tilted", "origin": "Lemma 2.1"}
_MEASURES = {"gaussian tail": "kept tokens and Gaussian tail", "most attended": "most attended"}


def real_transformers_panels(data: xr.Dataset) -> list[Panel]:
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
