"""Run one study and keep everything about it in one dataset that a netCDF file can hold."""

import json
import time
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from platform import python_version
from typing import Any, cast

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp

from .catalogue import FOLDER, load, version
from .study import INFINITE, Check, Findings, Part, Study

_CHECK = "check_"
_COLUMNS = [f"{_CHECK}{name}" for name in Check._fields]


def job(file: Path, scale: str, seed: int) -> dict[str, Any]:
    """One study at one scale from one seed, in plain values: with the library, all that matters."""
    inside = file.parent == FOLDER
    return {
        "study": load(file).name,
        "file": file.name if inside else str(file),
        "code": version(file),
        "scale": scale,
        "seed": seed,
    }


def compute(configuration: Mapping[str, Any], key: None = None) -> xr.Dataset:
    """Run a job; returns data, checks, verdict, configuration, key, versions and run time."""
    file = FOLDER / configuration["file"]  # an absolute path stays as it is
    if version(file) != configuration["code"]:
        raise RuntimeError(f"{file} is not the file of the process that started this one")
    study, seed = load(file), configuration["seed"]
    config = study.config(configuration["scale"])
    start = time.perf_counter()
    with jax.enable_x64(True):
        own = study_key(study.name, seed)
        record = to_dataset(study.run(config, own))
    wrong = undeclared(record)
    if wrong:
        raise FloatingPointError(
            f"a study must return finite numbers, or mark variables with {INFINITE!r}; received "
            f"NaN or infinity in {', '.join(wrong)}"
        )
    return record.assign_attrs(
        study=study.name,
        file=configuration["file"],
        code=configuration["code"],
        scale=configuration["scale"],
        seed=str(seed),
        key=json.dumps(np.asarray(jax.random.key_data(own)).tolist()),
        configuration=json.dumps(dict(config)),
        seconds=time.perf_counter() - start,
        date=datetime.now(UTC).isoformat(timespec="microseconds"),
        largeprompt=lp.__version__,
        python=python_version(),
        jax=jax.__version__,
        numpy=np.__version__,
        backend=jax.default_backend(),
    )


def study_key(name: str, seed: int) -> Key[Array, ""]:
    """Random key of a study. It depends on its name, so new studies leave the others unchanged."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


def undeclared(record: xr.Dataset) -> list[str]:
    """Variables with infinity or NaN that may not have any.

    The numbers of checks and lengths may: a check whose value is not finite does not hold. So may
    what the study marks with `INFINITE`.
    """
    always = (f"{_CHECK}value", f"{_CHECK}low", f"{_CHECK}high", "length")
    return [
        str(name)
        for name, variable in record.variables.items()
        if name not in always
        and INFINITE not in variable.attrs
        and variable.dtype.kind == "f"
        and not np.all(np.isfinite(variable.values))
    ]


def to_dataset(findings: Findings) -> xr.Dataset:
    """Data and checks in one dataset, with the verdict in its attributes."""
    data = findings.data.drop_attrs(deep=False)
    if findings.checks:  # netCDF files have no empty columns
        columns = zip(_COLUMNS, zip(*findings.checks, strict=True), strict=True)
        data = data.assign({name: ("check", list(column)) for name, column in columns})
    return data.assign_attrs(verdict=findings.verdict.word, evidence=findings.verdict.evidence)


def from_dataset(record: xr.Dataset, study: Study) -> Findings:
    """Inverse of `to_dataset`. The verdict is computed again from the checks."""
    checks: tuple[Check, ...] = ()
    if _COLUMNS[0] in record:
        rows = zip(*(record[name].values.tolist() for name in _COLUMNS), strict=True)
        checks = tuple(
            Check(statement, value, low, high, cast(Part, part))
            for statement, value, low, high, part in rows
        )
    data = record.drop_vars(_COLUMNS, errors="ignore").drop_attrs(deep=False)
    return Findings(data, checks, study.judge(checks))
