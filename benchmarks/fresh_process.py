"""One first call, measured in this process: `python -m benchmarks.fresh_process CASE [FOLDER]`.

Prints JSON. With FOLDER, compiled programs are cached there. The top of this module imports only
the standard library, so that the imports of a user can be timed.
"""

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Call = Callable[[], Any]
Case = Callable[[], Call]  # makes the arguments and returns the call to measure


class Problem(NamedTuple):
    """The standard problem of the table: d = 5, covariance 0.5^|i-j|, noise 0.1, L = 100."""

    head: Any
    mu: Any
    z: Any
    key: Any
    task: Any
    params: Any
    L: int = 100


def _problem() -> Problem:
    import jax
    import numpy as np

    import largeprompt as lp

    index, eye = np.arange(5), np.eye(5)
    cov = 0.5 ** np.abs(index[:, None] - index)
    return Problem(
        head=lp.Head(U=eye / 2, V=eye),
        mu=lp.Gaussian(np.zeros(5), cov),
        z=np.full(5, 0.5),
        key=jax.random.key(0),
        task=lp.LinearRegression(cov, noise_variance=0.1),
        params=lp.BlockParams(eye / 2, 1.0),
    )


def _case(call: Callable[[Any, Problem], Any]) -> Case:
    """A case from a function of the package and the standard problem."""

    def prepared() -> Call:
        import largeprompt as lp

        problem = _problem()
        return lambda: call(lp, problem)

    return prepared


def _given_tokens() -> Call:
    import largeprompt as lp

    p = _problem()
    prompt = p.mu.sample(p.key, p.L)
    return lambda: lp.attend(p.head, prompt, p.z)


def _second_flow() -> Call:
    import largeprompt as lp

    p = _problem()
    lp.gradient_flow(p.task, p.params, p.L)
    return lambda: lp.gradient_flow(p.task, p.params, 3 * p.L)


def _yardstick() -> Call:
    """Robertson's problem as in the documentation of diffrax: float64, tolerances 1e-8."""
    import diffrax  # pyright: ignore[reportMissingImports]  # an optional extra
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def robertson(t: Any, y: Any, rates: tuple) -> Any:
        a, b, c = y
        made, used, back = rates[0] * a, rates[1] * b**2, rates[2] * b * c
        return jnp.stack([back - made, made - used - back, used])

    return lambda: diffrax.diffeqsolve(
        diffrax.ODETerm(robertson),
        diffrax.Kvaerno5(),
        t0=0.0,
        t1=100.0,
        dt0=2e-4,
        y0=jnp.array([1.0, 0.0, 0.0]),
        args=(0.04, 3e7, 1e4),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
    )


YARDSTICK = "diffrax, Kvaerno5"
CASES: dict[str, Case] = {
    YARDSTICK: _yardstick,
    "attend": _case(lambda lp, p: lp.attend(p.head, p.mu, p.z)),
    "attend, given tokens": _given_tokens,
    "attend_jacobians": _case(lambda lp, p: lp.attend_jacobians(p.head, p.mu, p.z)),
    "participation": _case(lambda lp, p: lp.participation(1.0, p.L)),
    "ParticipationTable": _case(lambda lp, p: lp.ParticipationTable(p.L, 3.0)(1.0)),
    "score_moment": _case(lambda lp, p: lp.score_moment(((1, 1), (1, 1)), 1.0, p.L)),
    "finite_mean": _case(lambda lp, p: lp.finite_mean(p.head, p.mu, p.z, p.L)),
    "output_error": _case(lambda lp, p: lp.output_error(p.head, p.mu, p.z, p.L)),
    "output_error, law of queries": _case(lambda lp, p: lp.output_error(p.head, p.mu, p.mu, p.L)),
    "gradient_error": _case(lambda lp, p: lp.gradient_error(p.head, p.mu, p.z, p.L)),
    "sample_outputs": _case(lambda lp, p: lp.sample_outputs(p.key, p.head, p.mu, p.z, p.L, 1000)),
    "expect, MonteCarlo": _case(
        lambda lp, p: lp.expect(lp.OutputError(), p.head, p.mu, p.z, p.L, lp.MonteCarlo(p.key))
    ),
    "expect, QuasiMonteCarlo": _case(
        lambda lp, p: lp.expect(
            lp.OutputError(), p.head, lp.Uniform(5, 1.0), p.z, p.L, lp.QuasiMonteCarlo(p.key)
        )
    ),
    "concentration_curve": _case(
        lambda lp, p: lp.concentration_curve(p.head, p.mu, p.mu, [10, 100, 1000])
    ),
    "prompt_length_for": _case(lambda lp, p: lp.prompt_length_for(p.head, p.mu, p.z, 1e-3)),
    "regime": _case(lambda lp, p: lp.regime(1.0, p.L)),
    "task.risk": _case(lambda lp, p: p.task.risk(p.params, p.L)),
    "task.bayes_risk": _case(lambda lp, p: p.task.bayes_risk(p.L, lp.MonteCarlo(p.key))),
    "task.minimiser": _case(lambda lp, p: p.task.minimiser(p.L)),
    "descend": _case(lambda lp, p: lp.descend(p.key, p.task, p.params, p.L, 100)),
    "gradient_flow": _case(lambda lp, p: lp.gradient_flow(p.task, p.params, p.L)),
    "gradient_flow, another L": _second_flow,
}

_YARDSTICK_IMPORTS = ("diffrax",)
_IMPORTS = ("largeprompt.concentration", "largeprompt.dynamics")  # all that computes, no figures
_STAGES = {
    "compile": "/jax/core/compile/backend_compile_duration",
    "lower": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "trace": "/jax/core/compile/jaxpr_trace_duration",
}
_FROM_CACHE = "/jax/compilation_cache/cache_hits"
Spans = list[tuple[float, float]]


def covered(spans: Spans) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


class Stages:
    """What JAX reports while it traces, lowers and compiles."""

    def __init__(self):
        self.spans: dict[str, Spans] = {name: [] for name in _STAGES}
        self.from_cache = 0

    def listen(self) -> None:
        """Start to record."""
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(self._on_duration)
        monitoring.register_event_listener(self._on_event)

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        now = time.perf_counter()
        for name, reported in _STAGES.items():
            if event == reported:
                self.spans[name].append((now - duration_secs, now))

    def _on_event(self, event: str, **_: Any) -> None:
        self.from_cache += event == _FROM_CACHE

    def seconds(self, total: float) -> dict[str, float]:
        """Seconds of each stage, and of the rest of `total`. What overlaps is counted once.

        Tracing inside lowering counts as lowering, lowering inside compilation as compilation.
        """
        found, seen, before = {}, [], 0.0
        for name in _STAGES:
            seen = seen + self.spans[name]
            found[name] = covered(seen) - before
            before += found[name]
        return found | {"run": total - before}

    @property
    def compiled(self) -> int:
        """Programs compiled; those read from the cache are not counted."""
        return len(self.spans["compile"]) - self.from_cache


def measure(case: str, folder: str | None = None) -> dict[str, float]:
    """Seconds of the import, of making the arguments and of the first call; MiB of memory."""
    start = time.perf_counter()
    import jax

    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    for module in _YARDSTICK_IMPORTS if case == YARDSTICK else _IMPORTS:
        importlib.import_module(module)
    imported = time.perf_counter()
    call = CASES[case]()
    stages = Stages()
    stages.listen()
    memory = _peak()
    prepared = time.perf_counter()
    jax.block_until_ready(call())
    total = time.perf_counter() - prepared
    return {
        "import": imported - start,
        "arguments": prepared - imported,
        "total": total,
        **stages.seconds(total),
        "compiled": stages.compiled,
        "from_cache": stages.from_cache,
        "peak": _peak(),
        "growth": _peak() - memory,
    }


def _peak() -> float:
    """MiB that this process has needed at most until now."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
