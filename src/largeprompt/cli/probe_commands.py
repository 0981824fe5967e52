"""`largeprompt probe`: what the heads of a real transformer do on a text or a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._message import message
from ._output import print_table, write_netcdf

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from ..models import Recording

_LENGTH = 1024  # tokens of a text, unless told otherwise
_SHARE = 4  # a quarter of the rows of a table is predicted


def probe(
    model: Annotated[
        str,
        typer.Argument(help="A folder of save_pretrained, a .gguf file, or the name of weights."),
    ],
    text: Annotated[
        list[Path] | None, typer.Option("--text", help="A text file; may be repeated.")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            help="A .csv file for an in-context learner: features, and the class in the last "
            "column. The last quarter of the rows is predicted.",
        ),
    ] = None,
    length: Annotated[
        int, typer.Option("--length", min=2, help="Use at most so many tokens of each text.")
    ] = _LENGTH,
    queries: Annotated[
        int | None,
        typer.Option("--queries", min=1, help="Queries of the last positions; all of an encoder."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Relative squared error to reach.")
    ] = 0.01,
    sinks: Annotated[int, typer.Option("--sinks", min=1, help="First tokens that are sinks.")] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path("out/probe"),
) -> None:
    """Probe every attention head of a real transformer: is it linear yet?

    Prints medians over heads, and writes probe.nc with all numbers and probe.html with heat maps
    and pictures of each head.
    """
    if bool(text) == (table is not None):
        raise ValueError(
            message("probe needs --text or --table", "both" if text else "neither", "pass one")
        )
    if table is not None:
        recording = _on_table(model, table)
    else:
        recording = _on_texts(model, text or [], length, queries)
    from ..models import probe as probe_recording
    from ..models.probe_page import write_page

    out.mkdir(parents=True, exist_ok=True)
    data = probe_recording(recording, tolerance=tolerance, sinks=sinks)
    _print(data)
    write_netcdf(data, out / "probe.nc")
    typer.echo(f"page: {write_page(data, out / 'probe.html')}")


def _on_texts(model: str, files: list[Path], length: int, queries: int | None) -> "Recording":
    from ..models import load_pretrained, record

    texts = [file.read_text(encoding="utf-8") for file in files]
    loaded = load_pretrained(_located(model))
    most = getattr(loaded.model.config, "max_position_embeddings", None) or length
    return record(
        loaded.model,
        texts,
        tokenizer=loaded.tokenizer,
        length=min(length, most),
        queries=queries,
    )


def _on_table(model: str, table: Path) -> "Recording":
    from .. import models

    X, y = _rows(table)
    known = len(X) - len(X) // _SHARE
    learner: Any = models.TabPFN  # type: ignore[attr-defined]
    return learner.load(_located(model)).record(X[:known], y[:known], X[known:])


def _located(model: str) -> Path:
    """The path, or the file of the weights of that name."""
    if Path(model).exists():
        return Path(model)
    from .. import models

    return models.weights_path(model)  # type: ignore[attr-defined]


def _rows(table: Path) -> tuple["np.ndarray", "np.ndarray"]:
    """Features and classes 0, 1, ... of a .csv file, with or without a line of names."""
    import numpy as np

    with open(table, encoding="utf-8") as file:
        first = file.readline().strip().split(",")
    try:
        [float(entry) for entry in first]
        skipped = 0
    except ValueError:
        skipped = 1
    try:
        rows = np.loadtxt(table, delimiter=",", skiprows=skipped, ndmin=2, dtype=str)
        features = rows[:, :-1].astype(np.float64)
    except ValueError as error:
        raise ValueError(
            message(
                "a table must have numbers in all columns but the last",
                f"{str(table)!r} ({error})",
                "drop or encode the other columns",
            )
        ) from error
    if features.shape[1] < 1 or len(rows) < 2 * _SHARE:
        raise ValueError(
            message(
                f"a table must have a feature, a class, and at least {2 * _SHARE} rows",
                f"shape {rows.shape}",
                "pass a longer table",
            )
        )
    return features, np.unique(rows[:, -1], return_inverse=True)[1]


def _print(data: "xr.Dataset") -> None:
    """Medians, means and percentiles over heads."""
    import numpy as np

    from ..models.probe import QUANTITIES

    rows = []
    for name, quantity in QUANTITIES.items():
        every = [(quantity.title, data[name])]
        if name == "compression_error":
            every = [
                (f"error of a measure of {size} tokens", data[name].sel(size=size))
                for size in data["size"].values
            ]
        for title, values in every:
            known = values.values[np.isfinite(values.values)]
            if len(known):
                numbers = (np.median(known), known.mean(), np.percentile(known, 90))
                rows.append((title, *(f"{number:.3g}" for number in numbers)))
    regimes, counts = np.unique(data["regime"].values, return_counts=True)
    print_table(["over heads", "median", "mean", "90th percentile"], rows, data.attrs["model"])
    phases = (f"{count} {name}" for name, count in zip(regimes, counts, strict=True) if name)
    typer.echo(f"regimes: {', '.join(phases)}")
    typer.echo(
        f"attention recomputed from the recording differs from the model's own by at most "
        f"{np.nanmax(data['recording_error'].values):.1e}"
        if np.isfinite(data["recording_error"].values).any()
        else "the recording has no outputs of the model to compare with"
    )
