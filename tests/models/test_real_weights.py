"""The published TabPFN: exchangeable rows, good predictions, and affine attention after layer 0.

And the published SmolLM2: its recording, and its own loss if all tokens are kept.
"""

import contextlib
import io
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from largeprompt import models
from largeprompt.models import TabPFN, linearise_learner

from ..oracles import tabpfn as ground_truth
from ..test_docs import ROOT, same_text
from ..weights import fetched

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return TabPFN.load(fetched("tabpfn"))


@pytest.fixture(scope="module")
def task():
    """Labels by radius: 250 rows for the context, 150 for the test with Bayes' predictions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    odds = 3 * (np.sum(X**2, axis=1) - 2.4)
    y = (rng.random(400) < 1 / (1 + np.exp(-odds))).astype(int)
    return X[:250], y[:250], X[250:], (odds[250:] > 0).astype(int)


def test_tabpfn_logits_are_those_of_pytorch(model, task):
    X, y, X_test, _ = task
    state = load_file(fetched("tabpfn"))
    wanted = ground_truth.logits(state, 4, X[:100], y[:100], X_test[:10])
    found = model.read(X[:100], y[:100]).logits(X_test[:10])
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_linearise_learner_keeps_the_predictions_of_tabpfn(model, task):
    """Layers 1 to 11 affine: nearly all predictions stay; with constants they do not."""
    X, y, X_test, bayes = task
    learner = model.read(X, y)
    softmax = learner.predict_proba(X_test).argmax(axis=1)
    assert np.mean(softmax == bayes) > 0.9
    affine = linearise_learner(learner)
    assert np.median(affine.residual) < 0.005
    assert np.mean(affine.predict_proba(X_test).argmax(axis=1) == softmax) > 0.94
    constant = linearise_learner(learner, ridge=np.inf)
    assert np.mean(constant.predict_proba(X_test).argmax(axis=1) == softmax) < 0.8


def test_linearise_learner_fails_at_layer_0(model, task):
    """It looks up single rows: no affine map serves."""
    X, y, _, _ = task
    found = linearise_learner(model.read(X, y), layers=[0])
    assert found.residual.min() > 0.1


def test_code_of_the_document_prints_what_it_shows(model):
    """The ```py blocks of docs/in_context_learner.md, which need the weights."""
    page = (ROOT / "docs" / "in_context_learner.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(py|text)\n(.*?)```", page, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec("".join(body for kind, body in blocks if kind == "py"), {})
    assert same_text(printed.getvalue(), "".join(body for kind, body in blocks if kind == "text"))


def test_smollm2_is_recorded_and_keeps_its_loss():
    """100 tokens of this project's licence, and the 12 after them."""
    model, tokenizer = models.load_pretrained(fetched("smollm2"))
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    ids = np.asarray(tokenizer(text, verbose=False)["input_ids"][:112])
    assert tokenizer.decode(ids) == text[: len(tokenizer.decode(ids))]
    recording = models.record(model, ids[:100], queries=16, progress=False)
    assert len(recording.layers) == 30
    assert recording.layers[0].queries.shape == (9, 16, 64)
    assert recording.layers[0].keys.shape == (3, 100, 64)
    assert max(layer.error for layer in recording.layers if layer.error is not None) < 1e-5
    with torch.no_grad():
        logs = model(torch.as_tensor(ids)[None]).logits[0].log_softmax(-1).numpy()
    own = -logs[100:-1][np.arange(11), ids[101:]]
    assert own.mean() < 5  # nats; a guess has log 49152 = 10.8
    cache = models.compress_prompt(model, recording, atoms=100, progress=False)
    found = models.next_token_loss(model, cache, ids[100:])
    np.testing.assert_allclose(found[0], own, atol=1e-4)
