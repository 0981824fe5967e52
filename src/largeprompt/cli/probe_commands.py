"""`largeprompt probe`: what the heads of a real transformer do on a text or a table."""

import csv
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._message import error
from ._answer import Answer, AsCsv, AsJson, check_form
from ._compiling import hint_at_first_run
from ._output import write_netcdf

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from ..models import Recording

_LENGTH = 1024  # tokens of a text, unless told otherwise
_SHARE = 4  # a quarter of the rows of a table is predicted
_SEED = 0  # of the order in which rows are split
_DELIMITERS = ",;\t"


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
            "column. A quarter of the rows, drawn with a fixed seed, is predicted.",
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
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Probe every attention head of a real transformer: is it linear yet?

    Prints medians over heads, and writes probe.nc with all numbers.

    Example: largeprompt probe smollm2 --text README.md --length 512
    """
    check_form(as_json, as_csv)
    if bool(text) == (table is not None):
        raise error("probe needs --text or --table", "both" if text else "neither", "pass one")
    hint_at_first_run()
    if table is not None:
        recording = _on_table(model, table)
    else:
        recording = _on_texts(model, text or [], length, queries)
    from ..models import probe as probe_recording

    out.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        data = probe_recording(recording, tolerance=tolerance, sinks=sinks)
    for warning in caught:  # without path and line of the code
        typer.echo(f"warning: {warning.message}", err=True)
    answer = _summary(data)
    write_netcdf(data, out / "probe.nc")
    answer.print(as_json=as_json, as_csv=as_csv)


def _on_texts(model: str, files: list[Path], length: int, queries: int | None) -> "Recording":
    from ..models import load_pretrained, record

    texts = [_text(file) for file in files]
    loaded = load_pretrained(_located(model))
    most = getattr(loaded.model.config, "max_position_embeddings", None) or length
    return record(
        loaded.model,
        texts,
        tokenizer=loaded.tokenizer,
        length=min(length, most),
        queries=queries,
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError as cause:
        raise error(
            "a file must be text in UTF-8",
            f"{str(file)!r} ({cause.reason} at byte {cause.start})",
            "convert it, for example with iconv",
        ) from cause


def _on_table(model: str, table: Path) -> "Recording":
    import numpy as np

    from .. import models

    X, y = _rows(table)
    order = np.random.default_rng(_SEED).permutation(len(X))  # tables may be sorted by class
    new, known = np.split(order, [len(X) // _SHARE])
    labels = np.unique(y[known], return_inverse=True)[1]
    return models.TabPFN.load(_located(model)).record(X[known], labels, X[new])


def _located(model: str) -> Path:
    """The path, or the file of the weights of that name."""
    if Path(model).exists():
        return Path(model)
    from .. import models

    return models.weights_path(model)


def _rows(table: Path) -> tuple["np.ndarray", "np.ndarray"]:
    """Features and classes 0, 1, ... of a .csv file, with or without a line of names."""
    import numpy as np

    lines = [line for line in _text(table).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    delimiter = max(_DELIMITERS, key=lambda one: len(next(csv.reader([first], delimiter=one), [])))
    rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    if rows and not all(map(_is_number, rows[0][:-1])):
        rows = rows[1:]  # names of the columns
    if len(rows) < 2 * _SHARE or len(rows[0]) < 2:
        shape = f"{len(rows)} rows of {len(rows[0])} columns" if rows else "no rows"
        raise error(
            f"a table must have a feature, a class, and at least {2 * _SHARE} rows",
            f"{str(table)!r} with {shape}",
            "separate columns by commas, semicolons or tabs, and rows by lines",
        )
    for number, row in enumerate(rows):
        wrong = next((entry for entry in row[:-1] if not _is_number(entry)), None)
        if wrong is not None or len(row) != len(rows[0]):
            found = f"{len(row)} and not {len(rows[0])}" if wrong is None else repr(wrong)
            raise error(
                "a table must have numbers in all columns but the last, and equal rows",
                f"{found} in row {number} of {str(table)!r}",
                "drop or encode the other columns; write decimals with a point",
            )
    features = np.array([[float(entry) for entry in row[:-1]] for row in rows])
    return features, np.unique([row[-1].strip() for row in rows], return_inverse=True)[1]


def _is_number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


def _summary(data: "xr.Dataset") -> Answer:
    """Medians, means and percentiles over heads."""
    import numpy as np

    from ..models.probing import QUANTITIES

    named: dict[str, tuple[str, np.ndarray]] = {}
    for name, quantity in QUANTITIES.items():
        if name == "compression_error":
            for size in data["size"].values:
                title = f"error of a measure of {size} tokens"
                named[f"{name}_{size}"] = (title, data[name].sel(size=size).values)
        else:
            named[name] = (quantity.title, data[name].values)
    known = {name: values[np.isfinite(values)] for name, (_, values) in named.items()}
    known = {name: values for name, values in known.items() if len(values)}
    answer = Answer(str(data.attrs["model"]))
    answer.column("over heads", "quantity", known, lambda name: named[name][0])
    for heading, column, summary in (
        ("median", "median", np.median),
        ("mean", "mean", np.mean),
        ("90th percentile", "percentile_90", lambda values: np.percentile(values, 90)),
    ):
        answer.column(heading, column, map(summary, known.values()), "{:.3g}".format)
    regimes, counts = np.unique(data["regime"].values, return_counts=True)
    phases = {str(name): int(count) for name, count in zip(regimes, counts, strict=True) if name}
    words = ", ".join(f"{count} {name}" for name, count in phases.items())
    answer.note(f"regimes: {words}", **phases)
    if missing := int(data.attrs["missing_layers"]):
        layers = data.sizes["layer"]
        answer.note(
            f"{layers} of {layers + missing} layers have attention, and are numbered from 0",
            missing_layers=missing,
        )
    differences = data["recording_error"].values
    if np.isfinite(differences).any():
        largest = float(np.nanmax(differences))
        answer.note(
            "attention recomputed from the recording differs from the model's own by at most "
            f"{largest:.1e}",
            recording_error=largest,
        )
    else:
        answer.note("the recording has no outputs of the model to compare with")
    return answer
