"""Findings as one dataset that a netCDF file can hold: data, checks, verdict, configuration, versions, key and run time."""

import hashlib
import json
import platform
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from ... import __version__, _checks
from ..._provenance import source_digest
from . import STUDIES
from .base import INFINITE, Check, Findings, Part, Study

_SHOWING = (
    "cli",
    "reproduce/report",
    "sweep",
)  # rooms that show or distribute results, and compute none
_CHECK = "check_"
_COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's name of the event


class Job(NamedTuple):
    """One study at one scale from one seed: all that decides its result, besides the code. Small, and fit to be sent elsewhere."""

    study: str
    scale: str
    seed: int


def code_version() -> str:
    """The version of the package and a digest of the source that computes."""
    return f"{__version__}+{source_digest(*_SHOWING)[:12]}"


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ValueError(
            _checks.message(
                f"a study must be one of {', '.join(STUDIES)}", repr(name), "name one of them"
            )
        )
    return STUDIES[name]


def fingerprint(job: Job) -> str:
    """What a stored result must carry to be used in place of a computation: configuration, key and code version, hashed."""
    config = find_study(job.study).config(job.scale)
    said = json.dumps([job.study, config, job.seed, code_version()], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def study_key(name: str, seed: int) -> Key[Array, ""]:
    """A key for each study: adding a study does not change the numbers of the others."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


def compute(job: Job) -> xr.Dataset:
    """Run a study and record it: a pure function of the job, apart from the time it took."""
    study = find_study(job.study)
    key = study_key(job.study, job.seed)
    config = study.config(job.scale)
    start = time.perf_counter()
    with _compiling() as programs:
        findings = study.run(config, key)
    seconds = time.perf_counter() - start
    return to_dataset(findings).assign_attrs(
        study=job.study,
        scale=job.scale,
        seed=str(job.seed),
        key=json.dumps(np.asarray(jax.random.key_data(key)).tolist()),
        configuration=json.dumps(dict(config)),
        fingerprint=fingerprint(job),
        code_version=code_version(),
        python=platform.python_version(),
        jax=jax.__version__,
        numpy=np.__version__,
        backend=jax.default_backend(),
        seconds=seconds,
        compile_seconds=float(sum(programs)),
    )


@contextmanager
def _compiling() -> Iterator[list[float]]:
    """The seconds XLA spends on each program that is compiled meanwhile."""
    programs: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            programs.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def cell(configuration: Mapping[str, Any], key: None) -> xr.Dataset:
    """A job as a cell of a sweep; bounds of checks may be infinite, and so may lengths and what a study declares."""
    found = compute(Job(**configuration))
    return found.assign_attrs(non_finite_allowed=" ".join(may_be_infinite(found)))


def may_be_infinite(record: xr.Dataset) -> list[str]:
    """The variables of a record that need not be finite."""
    always = (f"{_CHECK}low", f"{_CHECK}high", "length")
    return [
        str(name)
        for name, variable in record.variables.items()
        if name in always or INFINITE in variable.attrs
    ]


def to_dataset(findings: Findings) -> xr.Dataset:
    """Data and checks in one dataset, the verdict in its attributes."""
    columns: dict[str, Any] = {
        f"{_CHECK}{name}": ("check", [getattr(check, name) for check in findings.checks])
        for name in Check._fields
    }
    found = findings.data.drop_attrs(deep=False).assign(columns)
    return found.assign_attrs(verdict=findings.verdict.word, evidence=findings.verdict.evidence)


def from_dataset(record: xr.Dataset) -> Findings:
    """The inverse of `to_dataset`; the study's rule computes the verdict again from the checks."""
    columns = [record[f"{_CHECK}{name}"].values.tolist() for name in Check._fields]
    checks = tuple(
        Check(statement, value, low, high, cast(Part, part))
        for statement, value, low, high, part in zip(*columns, strict=True)
    )
    data = record.drop_vars([f"{_CHECK}{name}" for name in Check._fields]).drop_attrs(deep=False)
    return Findings(data, checks, find_study(record.attrs["study"]).judge(checks))
