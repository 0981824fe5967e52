"""Learners with affine maps in place of attention: the maps by least squares, and comparisons."""

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.models import linearise_learner, linearised_agreement

from .tiny_tabpfn import HEADS, rows, save, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("tiny"), scale=2.0)[0]


X, Y = rows(60)


def _attention(layer, head):
    """Queries and outputs of a recorded head, in plain NumPy."""
    queries, keys, values = layer.queries[head], layer.keys[head], layer.values[head]
    scores = (queries @ keys.T).astype(np.float64) * layer.scaling
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return queries.astype(np.float64), weights @ values / weights.sum(axis=1, keepdims=True)


def _ridge(queries, outputs, ridge):
    """Slope and intercept by a least-squares problem with rows for the penalty."""
    mean = queries.mean(axis=0)
    penalty = ridge**0.5 * np.linalg.norm(queries - mean, 2)
    k = queries.shape[1]
    centred = np.vstack([queries - mean, penalty * np.eye(k)])
    targets = np.vstack([outputs - outputs.mean(axis=0), np.zeros((k, outputs.shape[1]))])
    slope = np.linalg.lstsq(centred, targets)[0].T
    return slope, outputs.mean(axis=0) - slope @ mean


@pytest.mark.parametrize("ridge", [1e-4, 0.1])
def test_linearise_learner_solves_the_ridge_problem_of_every_head(model, ridge):
    """Layer 0 and, with its affine maps or the original ones before it, layer 1."""
    learner = model.read(X, Y)
    recorded = model.record(X, Y, X).layers
    found = linearise_learner(learner, layers=[1, 2], ridge=ridge, sequential=False)
    assert found.layers == (1, 2)
    for number, heads in zip(found.layers, found.maps, strict=True):
        for head in range(HEADS):
            slope, intercept = _ridge(*_attention(recorded[number], head), ridge)
            np.testing.assert_allclose(heads.slopes[head], slope, atol=2e-4 * abs(slope).max())
            np.testing.assert_allclose(heads.intercepts[head], intercept, atol=2e-4)


def test_linearise_learner_fits_later_layers_to_affine_ones(model):
    """Layer 2 is fitted to queries that come out of the affine layers 0 and 1."""
    learner = model.read(X, Y)
    found = linearise_learner(learner, layers=[0, 1, 2], ridge=1e-3)
    tokens = learner.embedded(X)
    for number in (0, 1):
        tokens = found.learner.after(number, tokens)
    queries, outputs = learner.attended(2, tokens)
    slope, _ = _ridge(queries[1].astype(np.float64), outputs[1].astype(np.float64), 1e-3)
    heads = found.maps[2]
    np.testing.assert_allclose(heads.slopes[1], slope, atol=1e-3 * abs(slope).max())
    apart = linearise_learner(learner, layers=[0, 1, 2], ridge=1e-3, sequential=False)
    assert abs(np.asarray(apart.maps[2].slopes[1]) - slope).max() > 0.01 * abs(slope).max()


def test_linearise_learner_residual_is_of_rows_left_out(model):
    """By refitting without each row; the penalty stays that of all rows."""
    learner = model.read(X, Y)
    found = linearise_learner(learner, layers=[0], ridge=0.01)
    queries, outputs = _attention(model.record(X, Y, X).layers[0], 1)
    penalty = 0.01 * np.linalg.norm(queries - queries.mean(axis=0), 2) ** 2
    errors = []
    for row in range(len(X)):
        kept = np.arange(len(X)) != row
        # the intercept is free: a column of ones without penalty
        design = np.c_[queries[kept], np.ones(len(X) - 1)]
        gram = design.T @ design + penalty * np.diag([1.0] * queries.shape[1] + [0.0])
        map_ = np.linalg.solve(gram, design.T @ outputs[kept])
        errors.append(np.sum((outputs[row] - np.append(queries[row], 1) @ map_) ** 2))
    total = np.sum((outputs - outputs.mean(axis=0)) ** 2)
    assert found.residual[0, 1] == pytest.approx(np.sum(errors) / total, rel=1e-3)


def test_linearise_learner_chooses_the_ridge_by_generalised_cross_validation(model):
    learner = model.read(X, Y)
    found = linearise_learner(learner, layers=[1])
    queries, outputs = _attention(model.record(X, Y, X).layers[1], 0)
    centred, targets = queries - queries.mean(axis=0), outputs - outputs.mean(axis=0)
    scores = {}
    for ridge in 10.0 ** np.arange(-9, 1):
        gram = centred.T @ centred
        gram += ridge * np.linalg.norm(centred, 2) ** 2 * np.eye(len(gram))
        hat = centred @ np.linalg.solve(gram, centred.T)
        free = 1 - (1 + np.trace(hat)) / len(X)
        scores[ridge] = np.sum((targets - hat @ targets) ** 2) / free**2
    assert scores[found.ridge[0, 0]] == pytest.approx(min(scores.values()), rel=1e-3)
    assert max(scores.values()) > 2 * min(scores.values())


def test_linearise_learner_without_slopes_is_the_mean_output(model):
    learner = model.read(X, Y)
    found = linearise_learner(learner, layers=[1], ridge=np.inf)
    _, outputs = _attention(model.record(X, Y, X).layers[1], 1)
    heads = found.maps[0]
    assert not heads.slopes.any()
    np.testing.assert_allclose(heads.intercepts[1], outputs.mean(axis=0), atol=1e-5)
    assert found.residual == pytest.approx((60 / 59) ** 2)


def test_linearise_learner_keeps_predictions_where_scores_are_small(tmp_path):
    """Queries scaled down make attention affine: the whole model is kept."""
    model, state = tiny(tmp_path)
    for name, tensor in state.items():
        if "in_proj_weight" in name:
            tensor[:16] *= 0.05
    small = lp.models.TabPFN.load(save(tmp_path / "small.safetensors", state))
    fresh = rows(40, seed=1)[0]
    errors = []
    for one in (small, model):
        learner = one.read(X, Y)
        affine = linearise_learner(learner, layers=[0, 1, 2])
        errors.append(abs(affine.logits(fresh) - learner.logits(fresh)).max())
        np.testing.assert_allclose(affine.predict_proba(fresh).sum(axis=1), 1)
    assert errors[0] < 0.002 < errors[1]


def test_linearise_learner_learns_from_given_rows(model):
    learner = model.read(X, Y)
    others = rows(80, seed=3)[0]
    own = linearise_learner(learner, layers=[0], ridge=1e-3)
    given = linearise_learner(learner, layers=[0], ridge=1e-3, inputs=others)
    slope, _ = _ridge(*_attention(model.record(X, Y, others).layers[0], 0), 1e-3)
    found = given.maps[0].slopes[0]
    np.testing.assert_allclose(found, slope, atol=1e-3 * abs(slope).max())
    assert abs(np.asarray(own.maps[0].slopes[0]) - slope).max() > 0.01 * abs(slope).max()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"layers": [3]}, "numbers from 0 to 2"),
        ({"layers": [1, 1]}, "different numbers"),
        ({"ridge": -1.0}, "ridge must be >= 0"),
        ({"ridge": float("nan")}, "ridge must be"),
    ],
)
def test_linearise_learner_names_the_mistake(model, options, rule):
    with pytest.raises(ValueError, match=rule):
        linearise_learner(model.read(X, Y), **options)


KEY = jax.random.key(3)


def test_linearised_agreement_compares_the_learners_of_each_split(model):
    """Every column against predictions of learners built by hand for the rows of a split."""
    X, y = rows(90)
    p = np.random.default_rng(0).dirichlet(np.ones(3), 90)
    data = linearised_agreement(model, X, y, KEY, context=60, test=20, splits=2, probabilities=p)
    assert dict(data.sizes) == {"split": 2, "attention": 3, "layer": 2, "head": 2}
    for number, key in enumerate(jax.random.split(KEY, 2)):
        order = np.asarray(jax.random.permutation(key, 90))
        seen, new = order[:60], order[60:80]
        assert not set(seen) & set(new)
        learner = model.read(X[seen], y[seen])
        softmax = learner.predict_proba(X[new])
        for name, options in {"affine": {}, "constant": {"ridge": np.inf}}.items():
            found = linearise_learner(learner, **options)
            ours = found.predict_proba(X[new])
            part = data.isel(split=number).sel(attention=name)
            assert part.accuracy == np.mean(ours.argmax(1) == y[new])
            assert part.agreement == np.mean(ours.argmax(1) == softmax.argmax(1))
            assert part.distance == pytest.approx(abs(ours - softmax).sum(1).mean() / 2)
            loss = [-np.log(row[label]) for row, label in zip(ours, y[new], strict=True)]
            assert part.cross_entropy == pytest.approx(np.mean(loss))
            assert part.seconds > 0
            if name == "affine":
                np.testing.assert_allclose(part.residual, found.residual, rtol=1e-5)
        part = data.isel(split=number)
        assert part.bayes_accuracy == np.mean(p[new].argmax(1) == y[new])
        assert part.bayes_cross_entropy == pytest.approx(-np.mean(np.log(p[new, y[new]])))
        assert part.sel(attention="softmax").agreement == 1
    assert data.attrs["dtype"] == "float32"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"context": 50, "test": 11}, r"at least context \+ test"),
        ({"context": 0, "test": 11}, "context must be a positive integer"),
        ({"y": Y / 2}, "labels 0, 1, "),
        ({"y": Y[1:]}, "one label for each of the 60 rows"),
        ({"probabilities": np.ones((60, 2))}, r"shape \(60, 3\).*received shape \(60, 2\)"),
        ({"probabilities": np.ones((60, 3))}, "rows that sum to 1; received other rows"),
        ({"context": 2, "test": 40}, "every class must occur"),
    ],
)
def test_linearised_agreement_names_the_mistake(model, options, rule):
    with pytest.raises(ValueError, match=rule):
        linearised_agreement(
            model, **{"X": X, "y": Y, "key": KEY, "context": 30, "test": 20} | options
        )
