"""Run one study and keep everything about it in one dataset that a netCDF file can hold."""

import json
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from .studies import find_study, study_version
from .studies.study import INFINITE, Check, Findings, Part

_CHECK = "check_"
_COLUMNS = [f"{_CHECK}{name}" for name in Check._fields]
_COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's name of the event


class Job(NamedTuple):
    """One study at one scale from one seed: with the code, all that its result depends on."""

    study: str
    scale: str
    seed: int


def study_key(name: str, seed: int) -> Key[Array, ""]:
    """Random key of a study. It depends on its name, so new studies leave the others unchanged."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


class _Cell:
    """A job as a cell of a sweep; the study makes its own key."""

    def __call__(self, configuration: Mapping[str, Any], key: None) -> xr.Dataset:
        """Run the job `configuration`."""
        found = compute(Job(**configuration))
        return found.assign_attrs(non_finite_allowed=" ".join(may_be_infinite(found)))

    def code_version(self, configuration: Mapping[str, Any]) -> str:
        """Code version of the study: a change of one study leaves the results of the others."""
        return study_version(configuration["study"])


cell = _Cell()


def compute(job: Job) -> xr.Dataset:
    """Run a study and return its data, checks, verdict, configuration, key and run time."""
    study = find_study(job.study)
    key = study_key(job.study, job.seed)
    config = study.config(job.scale)
    start = time.perf_counter()
    with _compile_times() as compiling:
        findings = study.run(config, key)
    return to_dataset(findings).assign_attrs(
        study=job.study,
        scale=job.scale,
        seed=str(job.seed),
        key=json.dumps(np.asarray(jax.random.key_data(key)).tolist()),
        configuration=json.dumps(dict(config)),
        seconds=time.perf_counter() - start,
        compile_seconds=float(sum(compiling)),
    )


@contextmanager
def _compile_times() -> Iterator[list[float]]:
    """Collect the seconds XLA takes for each program it compiles inside the block."""
    programs: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            programs.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def may_be_infinite(record: xr.Dataset) -> list[str]:
    """Variables of a record that may be infinite or NaN.

    These are the numbers of checks, lengths, and what the study marks with `INFINITE`. A check
    whose value is not finite does not hold.
    """
    always = (f"{_CHECK}value", f"{_CHECK}low", f"{_CHECK}high", "length")
    return [
        str(name)
        for name, variable in record.variables.items()
        if name in always or INFINITE in variable.attrs
    ]


def to_dataset(findings: Findings) -> xr.Dataset:
    """Data and checks in one dataset, with the verdict in its attributes."""
    data = findings.data.drop_attrs(deep=False)
    if findings.checks:  # netCDF files have no empty columns
        columns = zip(_COLUMNS, zip(*findings.checks, strict=True), strict=True)
        data = data.assign({name: ("check", list(column)) for name, column in columns})
    return data.assign_attrs(verdict=findings.verdict.word, evidence=findings.verdict.evidence)


def from_dataset(record: xr.Dataset) -> Findings:
    """Inverse of `to_dataset`. The verdict is computed again from the checks."""
    checks: tuple[Check, ...] = ()
    if _COLUMNS[0] in record:
        rows = zip(*(record[name].values.tolist() for name in _COLUMNS), strict=True)
        checks = tuple(
            Check(statement, value, low, high, cast(Part, part))
            for statement, value, low, high, part in rows
        )
    data = record.drop_vars(_COLUMNS, errors="ignore").drop_attrs(deep=False)
    return Findings(data, checks, find_study(record.attrs["study"]).judge(checks))
