"""The study of real transformers: its verdict on a stored result, its parts on made-up heads."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

import largeprompt as lp
from largeprompt.models import RecordedLayer, Recording
from reproduction.panels import Panel
from reproduction.studies import _head_numbers as head_numbers
from reproduction.studies import _texts as frozen
from reproduction.studies import real_transformers

from ..weights import fetched

STUDY = real_transformers.STUDY
STORED = Path(__file__).parents[1] / "data" / "real_transformers.nc"
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def stored():
    """The result at quick scale, in single precision."""
    with xr.open_dataset(STORED, engine="scipy") as data:
        return data.load().astype(np.float64)


def _layer(rng, heads=2, n=80, queries=400, scale=0.5):
    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return RecordedLayer(
        normal(heads, queries, 4), normal(heads, n, 4), normal(heads, n, 3), scale, error=1e-7
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def recorded(rng):
    return _layer(rng).head(1)


def _weights(recorded):
    """Softmax weights of every query, token by token."""
    keys, queries = np.asarray(recorded.prompt.keys, float), np.asarray(recorded.queries, float)
    scores = np.array([[0.5 * np.dot(k, z) for k in keys] for z in queries])
    return scores, np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)


def test_examine_finds_that_the_statement_holds(stored):
    findings = STUDY.findings(stored)
    assert [check.evidence for check in findings.checks if not check.holds] == []
    assert findings.verdict.word == "holds"
    parts = [check.part for check in findings.checks]
    assert {"claim", "control", "accuracy"} == set(parts)


def test_unnoticed_is_empty(stored):
    assert STUDY.unnoticed(stored) == []
    assert set(STUDY.notices) | set(STUDY.context) == set(stored.data_vars)
    assert not set(STUDY.notices) & set(STUDY.context)
    for name in STUDY.context:
        assert STUDY.findings(stored.assign({name: 3 * stored[name]})).as_expected


def test_panels_of_the_stored_result(stored):
    panels = STUDY.panels(stored)
    assert [panel.title.split(",")[0] for panel in panels] == [
        "TabPFN",
        "SmolLM2",
        "MiniLM",
        "SmolLM2",
    ]
    best = next(s for s in panels[0].series if s.name == "best affine map")
    by_hand = np.log(np.median(stored.tabpfn_residual.sel(map="best").values, axis=2)).mean(axis=0)
    np.testing.assert_allclose(best.y, np.exp(by_hand))
    assert all(panel.shown(series).all() for panel in panels for series in panel.series)
    assert isinstance(panels[0], Panel)


def _shown(number):
    return f"{number:.2g}"


def test_document_has_the_numbers_of_the_stored_result(stored):
    interval, over_heads = real_transformers.interval, real_transformers.over_heads
    later, first = (stored.isel(tabpfn_layer=part) for part in (slice(1, None), slice(0, 1)))
    tilted, literal = (
        over_heads(later.tabpfn_residual.sel(map=at), "tabpfn") for at in ("mean query", "origin")
    )
    error = over_heads(stored.smollm2_compression_error, "smollm2")
    ratio = error.isel(measure=0) / error.isel(measure=1)
    rows = [
        over_heads(later.tabpfn_residual.sel(map="best"), "tabpfn"),
        tilted,
        literal / tilted,
        over_heads(later.tabpfn_paired_deviation, "tabpfn"),
        over_heads(first.tabpfn_residual.sel(map="best"), "tabpfn"),
        over_heads(stored.smollm2_residual.sel(map="best"), "smollm2"),
        over_heads(stored.smollm2_effective_share, "smollm2"),
        error.sel(size=65, measure="gaussian tail"),
        ratio.sel(size=65),
        ratio.sel(size=16),
        over_heads(stored.minilm_residual.sel(map="best"), "minilm"),
        over_heads(stored.minilm_residual.sel(map="mean query"), "minilm"),
    ]
    page = (Path(__file__).parents[2] / "docs" / "real_transformers.md").read_text()
    found = re.findall(r"^\|[^|]+\| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", page, re.MULTILINE)
    assert found == [tuple(map(_shown, interval(row))) for row in rows]


def test_document_has_the_controls_of_the_stored_result(stored):
    rows: dict[str, list[str]] = {"tokens": [], "values": [], "effective": [], "residual": []}
    for name in real_transformers.MODELS:
        part = stored.isel({f"{name}_layer": slice(1 if name == "tabpfn" else 0, None)})
        rows["tokens"].append(f"{float(stored[f'{name}_gaussian_error'].mean()):.2f}")
        rows["values"].append(f"{float(stored[f'{name}_shuffled_deviation'].mean()):.2f}")
        share = part[f"{name}_random_effective_share"]
        rows["effective"].append(f"{float(share.median()):.2f}")
        literal = part[f"{name}_random_residual"].sel(map="origin")
        rows["residual"].append(_shown(float(literal.median())))
    page = (Path(__file__).parents[2] / "docs" / "real_transformers.md").read_text()
    table = page.split("| control | number |")[1].split("\n\n")[0]
    found = re.findall(r"\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    assert found == [tuple(row) for row in rows.values()]


def test_interval_is_that_of_student():
    """Of the logarithms 0, 1, 2: mean 1, standard error 1/sqrt(3), quantile 4.3027."""
    middle, low, high = real_transformers.interval(xr.DataArray(np.exp([0.0, 1.0, 2.0])))
    reach = 4.302652729911275 / np.sqrt(3)
    np.testing.assert_allclose([middle, low, high], np.exp([1, 1 - reach, 1 + reach]), rtol=1e-9)


def test_averaging_agrees_with_sums_over_tokens(recorded):
    found = head_numbers.averaging(recorded)
    scores, weights = _weights(recorded)
    shares = np.sort([1 / sum(p**2 for p in row) / len(row) for row in weights])
    middle = len(shares) // 2
    assert found["effective_share"] == pytest.approx(shares[middle - 1 : middle + 1].mean())
    assert found["score_deviation"] == pytest.approx(np.sqrt(scores.var(axis=1).mean()))
    keys, queries = np.asarray(recorded.prompt.keys, float), np.asarray(recorded.queries, float)
    at_mean = np.exp(0.5 * keys @ queries.mean(axis=0))
    squares = []
    for z in queries:
        steps = 0.5 * keys @ (z - queries.mean(axis=0))
        mean = np.average(steps, weights=at_mean)
        squares.append(np.average((steps - mean) ** 2, weights=at_mean))
    assert found["centred_deviation"] == pytest.approx(np.sqrt(np.mean(squares)))
    assert len(found["residual"]) == 3
    assert found["residual"][0] < 1


def test_shuffled_values_expect_the_mean_over_all_permutations(rng):
    recorded = _layer(rng, n=5).head(0)
    _, weights = _weights(recorded)
    values = np.asarray(recorded.prompt.values, float)
    values -= values.mean(axis=0)

    def deviation(values):
        return np.mean(np.sum((weights @ values) ** 2, axis=1))

    mean = np.mean([deviation(values[list(p)]) for p in itertools.permutations(range(5))])
    found = head_numbers.shuffled_values(recorded, rng)
    assert found["paired_deviation"] == pytest.approx(deviation(values) / mean)
    orders = [np.random.default_rng(seed).permutation(5) for seed in range(3)]
    for seed, order in enumerate(orders):
        again = head_numbers.shuffled_values(recorded, np.random.default_rng(seed))
        assert again["shuffled_deviation"] == pytest.approx(deviation(values[order]) / mean)


def test_gaussian_tokens_obey_the_lemma_up_to_their_exact_error(rng, monkeypatch):
    heads = [_layer(rng, heads=1).head(0) for _ in range(12)]
    ratios = [head_numbers.gaussian_tokens(head, rng)["gaussian_error"] for head in heads]
    assert 0.8 < np.mean(ratios) < 1.25
    exact = lp.output_error
    monkeypatch.setattr(lp, "output_error", lambda *given: 2 * np.asarray(exact(*given)))
    ratios = [head_numbers.gaussian_tokens(head, rng)["gaussian_error"] for head in heads]
    assert not 0.8 < np.mean(ratios) < 1.25


def test_gaussian_tokens_differ_from_tokens_with_an_outlier(rng):
    layer = _layer(rng, heads=1)
    layer.keys[0, 0] = 30.0
    layer.values[0, 0] = 10.0
    found = head_numbers.gaussian_tokens(layer.head(0), rng)
    assert found["token_residual"] > 3 * found["gaussian_residual"]


def test_small_measures_have_the_errors_of_compress(rng):
    recorded = _layer(rng, queries=64).head(1)
    sizes = [[16, 9, 2], [30, 25, 1]]
    found = head_numbers.small_measures(recorded, sizes)
    head, prompt, queries = recorded
    wanted = []
    for n, atoms, rank in sizes:
        tail = lp.compress(prompt, queries, head=head, atoms=atoms, rank=rank)
        kept = lp.compress(prompt, queries, head=head, atoms=n, method="most attended")
        assert tail.error is not None
        assert kept.error is not None
        wanted.append([float(tail.error.mean), float(kept.error.mean)])
    np.testing.assert_allclose(found["compression_error"], wanted)
    assert found["excess_bytes"] <= 0


def test_task_draws_labels_of_its_odds():
    rng = np.random.default_rng(1)
    for name in STUDY.full["tasks"]:
        X, y = real_transformers.task(name, rng, 2000)
        assert set(y) == set(range(3 if name == "three classes" else 2)), name
        assert 0.25 < np.mean(y > 0) < 0.75, name
    X, y = real_transformers.task("product", rng, 2000)
    assert np.mean((X[:, 0] * X[:, 1] > 0) == y) > 0.75


def test_untrained_learner_has_the_shapes_of_the_trained_one(tmp_path):
    """Uniform matrices, no offsets, norms that only standardise; another model each time."""
    pytest.importorskip("torch")
    from ..models.tiny_tabpfn import rows, tiny

    model, _ = tiny(tmp_path)
    found = real_transformers._untrained_learner(model, np.random.default_rng(0))
    shapes = [[leaf.shape for leaf in jax.tree.leaves(one)] for one in (model, found)]
    assert shapes[0] == shapes[1]
    for layer in found.layers:
        matrix = np.asarray(layer.hidden.matrix)
        assert 0.9 < abs(matrix).max() * matrix.shape[1] ** 0.5 < 1
        assert matrix.var() == pytest.approx(1 / (3 * matrix.shape[1]), rel=0.2)
        assert not np.any(layer.query.offset)
        np.testing.assert_array_equal(layer.norm_1.weight, 1)
        assert not np.any(layer.norm_2.bias)
    X, y = rows(40)
    again = real_transformers._untrained_learner(model, np.random.default_rng(1))
    logits = [one.read(X, y).logits(X[:5]) for one in (model, found, again)]
    assert all(np.all(np.isfinite(one)) for one in logits)
    assert min(np.abs(logits[0] - logits[1]).max(), np.abs(logits[1] - logits[2]).max()) > 1e-3


CONFIG = {
    **STUDY.quick,
    "tasks": ["logistic", "radius"],
    "rows": 80,
    "row_queries": 40,
    "texts": ["story", "code"],
    "sizes": [[16, 9, 2], [65, 60, 2]],
}


@pytest.fixture
def made_up(monkeypatch):
    """Models whose heads see Gaussian tokens, in place of the real ones."""
    rng = np.random.default_rng(0)

    def recording():
        return Recording("made up", (tuple(_layer(rng) for _ in range(3)),))

    learner = SimpleNamespace(record=lambda *given: recording(), layers=(None,) * 3)
    monkeypatch.setattr(lp.models, "weights_path", Path)
    monkeypatch.setattr(lp.models, "TabPFN", SimpleNamespace(load=lambda path: learner))
    monkeypatch.setattr(lp.models, "load_pretrained", lambda path: (path, None))
    monkeypatch.setattr(lp.models, "record", lambda *given, **how: recording())
    monkeypatch.setattr(real_transformers, "_random_weights", lambda model, seed: model)
    monkeypatch.setattr(real_transformers, "_untrained_learner", lambda model, rng: model)


@pytest.mark.usefixtures("made_up")
@pytest.mark.slow
def test_measure_of_models_that_average(stored):
    """All numbers are there; heads on Gaussian tokens are no decoder."""
    findings = STUDY.run(CONFIG, KEY)
    assert set(findings.data.data_vars) == set(stored.data_vars)
    for name, variable in findings.data.data_vars.items():
        assert variable.dims == stored[name].dims
        assert np.all(np.isfinite(variable)), name
    assert findings.data.smollm2_layer.values.tolist() == [0]  # every third of three
    assert not findings.as_expected
    broken = [check.statement for check in findings.checks if not check.holds]
    assert any(statement.startswith("SmolLM2: effective tokens") for statement in broken)


def test_texts_are_long_enough():
    assert set(STUDY.quick["texts"]) < set(STUDY.full["texts"]) == set(frozen.NAMES)
    assert min(len(frozen.text(name)) for name in frozen.NAMES) > 3000
    assert set(STUDY.quick) == set(STUDY.full)


@pytest.mark.slow
def test_real_learner_and_encoder_at_small_size():
    """Two of the three models, few rows, some layers: the claims that such prompts can show."""
    rng = np.random.default_rng(0)
    config = {
        **STUDY.quick,
        "tasks": ["radius"],
        "rows": 200,
        "row_queries": 200,
        "texts": ["story"],
        "stride": {"tabpfn": 2, "minilm": 5},
    }
    data = real_transformers._in_context_learner(fetched("tabpfn"), config, rng)
    assert data.tabpfn_layer.values.tolist() == [0, 2, 4, 6, 8, 10]
    best = data.tabpfn_residual.sel(map="best")
    assert float(best[:, 1:].median()) < 0.01
    assert float(best[:, 0].median()) > 0.1
    assert 0.8 < float(data.tabpfn_gaussian_error.mean()) < 1.25
    assert 0.8 < float(data.tabpfn_shuffled_deviation.mean()) < 1.25
    assert float(data.tabpfn_recording_error) < 1e-4
    literal = {
        kind: data[f"tabpfn_{kind}residual"].sel(map="origin").isel(tabpfn_layer=slice(1, None))
        for kind in ("", "random_")
    }
    assert float(literal["random_"].median()) < 0.1 < float(literal[""].median())
    how = {"length": 128, "queries": "all"}
    data = real_transformers._language_model("minilm", fetched("minilm"), config, how, rng)
    assert float(data.minilm_recording_error) < 1e-4
    assert float(data.minilm_random_effective_share.median()) > 0.8
    assert 0.8 < float(data.minilm_gaussian_error.mean()) < 1.25
