"""TabPFN with affine attention: `python -m benchmarks.linearised_model [--apart] [TASK ...]`.

Needs the weights (`largeprompt models fetch tabpfn`) and scikit-learn. Three synthetic tasks have a
known Bayes rule; four are data sets of scikit-learn. Every number is a mean over splits, with half
the width of its 95 % interval (Student's t over splits; splits of a data set share rows, and their
interval does not cover other data). Differences are taken within splits; seconds for one row are
medians over splits. With `--apart` each layer is fitted to the tokens of the original model. The
name `times` gives CPU seconds for one row against the length of the context.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import xarray as xr
from scipy.stats import t as student
from sklearn import datasets

import largeprompt as lp

SPLITS = 5
_CONTEXT, _TEST, _ROWS = 1000, 300, 6500


class Task(NamedTuple):
    """Rows, labels, and probabilities of the classes where they are known."""

    X: np.ndarray
    y: np.ndarray
    context: int
    test: int
    probabilities: np.ndarray | None = None


def _synthetic(logit: Callable[[np.ndarray], np.ndarray]) -> Callable[[], Task]:
    """Five Gaussian features, and labels of the given log odds."""

    def task() -> Task:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(_ROWS, 5))
        p = 1 / (1 + np.exp(-logit(X)))
        y = (rng.random(_ROWS) < p).astype(int)
        return Task(X, y, _CONTEXT, _TEST, np.stack([1 - p, p], axis=1))

    return task


def _stored(load: Callable, context: int, test: int) -> Callable[[], Task]:
    def task() -> Task:
        X, y = load(return_X_y=True)
        return Task(X, y, context, test)

    return task


_WEIGHTS = np.array([2.0, -1.5, 1.0, 0.5, 0.0])
TASKS = {
    "logistic": _synthetic(lambda X: X @ _WEIGHTS),
    "radius": _synthetic(lambda X: 1.5 * (np.sum(X**2, axis=1) - 4.35)),
    "product": _synthetic(lambda X: 6 * X[:, 0] * X[:, 1]),
    "iris": _stored(datasets.load_iris, 100, 50),
    "wine": _stored(datasets.load_wine, 118, 60),
    "breast cancer": _stored(datasets.load_breast_cancer, 400, 169),
    "digits": _stored(datasets.load_digits, _CONTEXT, _TEST),
}


def study(model: lp.models.TabPFN, name: str, splits: int = SPLITS, **options) -> xr.Dataset:
    """The comparison on one task."""
    task = TASKS[name]()
    return lp.models.linearised_agreement(
        model,
        task.X,
        task.y,
        jax.random.key(0),
        context=task.context,
        test=task.test,
        splits=splits,
        probabilities=task.probabilities,
        **options,
    )


def _cell(values: xr.DataArray, digits: int = 3) -> str:
    """Mean over splits and half the width of its interval."""
    n = values.sizes["split"]
    half = student.ppf(0.975, n - 1) * float(values.std("split", ddof=1)) / n**0.5
    return f"{float(values.mean()):.{digits}f} ± {half:.{digits}f}"


_HEADER = (
    "| task | context | agreement | accuracy: softmax | affine, difference "
    "| cross-entropy: softmax | affine, difference | constant, difference | Bayes, difference "
    "| residuals: median | 90 % | softmax, ms a row | affine |"
)


def row(name: str, data: xr.Dataset) -> str:
    """One line of the table."""
    softmax, affine, constant = (
        data.sel(attention=kind) for kind in ("softmax", "affine", "constant")
    )
    median, most = (float(data.residual.quantile(q)) for q in (0.5, 0.9))
    bayes = "unknown"
    if "bayes_cross_entropy" in data:
        bayes = _cell(data.bayes_cross_entropy - softmax.cross_entropy)
    cells = [
        name,
        str(TASKS[name]().context),
        _cell(affine.agreement),
        _cell(softmax.accuracy),
        _cell(affine.accuracy - softmax.accuracy),
        _cell(softmax.cross_entropy),
        _cell(affine.cross_entropy - softmax.cross_entropy),
        _cell(constant.cross_entropy - softmax.cross_entropy, 2),
        bayes,
        f"{median:.1g}",
        f"{most:.1g}",
        *(f"{1e3 * float(one.seconds.median()):.2f}" for one in (softmax, affine)),
    ]
    return "| " + " | ".join(cells) + " |"


def times(model: lp.models.TabPFN, lengths: tuple[int, ...] = (250, 500, 1000, 2000)) -> str:
    """CPU seconds to read a context, to fit the maps, to predict a row, against its length."""
    task, lines = TASKS["logistic"](), []
    X_test = task.X[-_TEST:]
    for n in lengths:
        X, y = task.X[:n], task.y[:n]
        seconds = []
        model.read(X, y)  # compiles
        learner, read = _timed(lambda X=X, y=y: model.read(X, y))
        lp.models.linearise_learner(learner)
        affine, fit = _timed(lambda learner=learner: lp.models.linearise_learner(learner))
        everywhere = lp.models.linearise_learner(learner, layers=range(len(model.layers)))
        for one in (learner, affine, everywhere):
            one.logits(X_test)
            seconds.append(min(_timed(lambda one=one: one.logits(X_test))[1] for _ in range(5)))
        each = " | ".join(f"{1e3 * s / len(X_test):.3f}" for s in seconds)
        lines.append(f"| {n} | {read:.2f} | {fit:.2f} | {each} |")
    head = "| context | read, s | fit, s | softmax, ms a row | affine but layer 0 | affine |"
    return "\n".join([head, "|---" * 6 + "|", *lines])


def _timed(call: Callable) -> tuple:
    """What a call returns, and its CPU seconds, which busy neighbours change little."""
    start = time.process_time()
    found = call()
    return found, time.process_time() - start


if __name__ == "__main__":
    options = {"sequential": "--apart" not in sys.argv}
    wanted = [word for word in sys.argv[1:] if word != "--apart"] or [*TASKS, "times"]
    model = lp.models.TabPFN.load()
    if set(wanted) & set(TASKS):
        print(f"{_HEADER}\n" + "|---" * (_HEADER.count("|") - 1) + "|")
    for name in wanted:
        line = f"\n{times(model)}" if name == "times" else row(name, study(model, name, **options))
        print(line, flush=True)
