"""One self-contained HTML page of a probed model: heat maps, and one head in detail on a click."""

import html
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .._files import atomic_write
from .probing import QUANTITIES

_TEMPLATE = Path(__file__).parent / "templates" / "probe.html"
_MOST_CHARACTERS = 1_500_000  # of details; heads beyond have none
_DIGITS = 3
_REGIMES = ("self-averaging", "rare tokens", "frozen")
_DETAILS = (
    "score_histogram",
    "score_range",
    "weight_by_place",
    "largest_weights",
    "singular_values",
    "affine_predicted",
    "affine_actual",
    "predicted_error",
    "prefix_length",
    "prefix_error",
    "compression_error",
    "compression_atoms",
    "compression_rank",
)


def write_page(data: xr.Dataset, path: str | Path) -> Path:
    """Write the page of a dataset from `probe`; an existing file is replaced."""
    path = Path(path)
    middle = len(data["size"]) // 2
    maps: list[dict[str, Any]] = []
    for name, quantity in QUANTITIES.items():
        values = data[name]
        if name == "compression_error":
            values = values.isel(size=middle)
        maps.append(
            {
                "name": name,
                "title": quantity.title,
                "meaning": quantity.meaning,
                "log": quantity.logarithmic,
                "values": _rounded(values.values),
            }
        )
    phases = np.full(data["regime"].shape, np.nan)
    for number, regime in enumerate(_REGIMES):
        phases[data["regime"].values == regime] = number
    maps.insert(
        1,
        {
            "name": "regime",
            "title": "regime",
            "meaning": "Of this score deviation and number of tokens, for Gaussian scores: many "
            "tokens average, rare tokens carry the weight, or one token takes it all.",
            "log": False,
            "labels": _REGIMES,
            "values": _rounded(phases),
        },
    )
    about = {
        "model": data.attrs["model"],
        "texts": json.loads(data.attrs["texts"]),
        "tolerance": data.attrs["tolerance"],
        "sinks": int(data.attrs["sinks"]),
        "sizes": data["size"].values.tolist(),
        "lengths": _rounded(data["length"].values),
        "made": f"largeprompt {data.attrs['largeprompt']}, code {data.attrs['code']}",
        "error": _rounded(data["recording_error"].values),
        "tokens": _rounded(data["tokens"].values),
        "queries": _rounded(data["queries"].values),
        "regime": data["regime"].values.tolist(),
        "reading": data["reading"].values.tolist(),
        "errorLow": _rounded(data["prompt_error_low"].values),
        "errorHigh": _rounded(data["prompt_error_high"].values),
        "share": _rounded(data["variance_share"].values),
        "maps": maps,
        "details": _details(data),
    }
    # no "</script>" may end the data early
    text = json.dumps(about, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = _TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("{{title}}", html.escape(f"Heads of {data.attrs['model']}"))
    page = page.replace("{{data}}", text)
    with atomic_write(path) as temporary:
        Path(temporary).write_text(page, encoding="utf-8")
    return path


def _details(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    """Arrays of each head, by "prompt/layer/head", as many heads as the page has room for."""
    found: dict[str, dict[str, Any]] = {}
    characters = 0
    tokens = data["tokens"].values
    arrays = {name: data[name].values for name in _DETAILS}
    for place in np.ndindex(tokens.shape):
        if math.isnan(tokens[place]):
            continue
        one = {name: _rounded(array[place]) for name, array in arrays.items()}
        one["compression_method"] = data["compression_method"].values[place].tolist()
        characters += len(json.dumps(one, separators=(",", ":")))
        if characters > _MOST_CHARACTERS:
            break
        found["/".join(map(str, place))] = one
    return found


def _rounded(values: Any) -> Any:
    """Nested lists of numbers of a few digits; None where a number is not finite."""
    if isinstance(values, np.ndarray):
        return [_rounded(value) for value in values]
    number = float(values)
    if not math.isfinite(number):
        return None
    if number == int(number) and abs(number) < 1e6:
        return int(number)
    return float(f"{number:.{_DIGITS}g}")
