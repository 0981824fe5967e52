"""`probe` against NumPy, on recordings of tiny models and of synthetic heads."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr

import largeprompt as lp
from largeprompt.cli.model_commands import _summary
from largeprompt.models import RecordedLayer, Recording, probing
from largeprompt.models.probing import METHODS, QUANTITIES


def _layer(seed, heads=2, groups=1, queries=128, tokens=120, dim=4, scale=0.5, positions=None):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    keys = normal(groups, tokens, dim)
    values = keys + 0.3 * normal(groups, tokens, dim)
    z = 0.5 + normal(heads, queries, dim)
    return RecordedLayer(z, keys, values, scale, positions=positions)


@pytest.fixture(scope="module")
def recording():
    positions = np.arange(119, 247)
    return Recording(
        "synthetic",
        (
            (_layer(0), _layer(1, heads=1)),
            (_layer(2, tokens=247, positions=positions), _layer(3, heads=1)),
        ),
        ("one", "two"),
        depth=5,
    )


@pytest.fixture(scope="module")
def found(recording):
    return lp.models.probe(recording, sinks=3, sizes=(8, 30), tolerance=0.05)


def _seen(recording, p, layer, head, tokens=120):
    part = recording.prompts[p][layer]
    keys, values = (
        a[part.group(head), :tokens].astype(np.float64) for a in (part.keys, part.values)
    )
    scores = part.scaling * part.queries[head].astype(np.float64) @ keys.T
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return keys, values, scores, weights


@pytest.mark.parametrize(("p", "layer", "head"), [(0, 0, 1), (1, 0, 0), (1, 1, 0)])
def test_probe_of_one_head_in_numpy(recording, found, p, layer, head):
    keys, values, scores, weights = _seen(recording, p, layer, head)
    one = found.isel(prompt=p, layer=layer, head=head)
    assert one.tokens == 120
    np.testing.assert_allclose(one.score_deviation**2, scores.var(axis=1).mean(), rtol=1e-5)
    effective = np.median(1 / (weights**2).sum(axis=1))
    np.testing.assert_allclose(one.effective_tokens, effective, rtol=1e-5)
    np.testing.assert_allclose(one.sink_mass, weights[:, :3].sum(axis=1).mean(), rtol=1e-5)
    assert one.top_token == weights.mean(axis=0).argmax()
    # scores centred at the mean query, under the law that the mean query tilts to
    part = recording.prompts[p][layer]
    z = part.scaling * part.queries[head].astype(np.float64)
    tilted = np.exp(keys @ z.mean(axis=0))
    tilted /= tilted.sum()
    squares = []
    for step in z - z.mean(axis=0):
        score = keys @ step
        squares.append(tilted @ (score - tilted @ score) ** 2)
    np.testing.assert_allclose(one.score_deviation_centred**2, np.mean(squares), rtol=1e-5)
    outputs = weights @ values
    variance = ((outputs - outputs.mean(axis=0)) ** 2).sum(axis=1).mean()
    deviation = ((outputs - values.mean(axis=0)) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(one.variance_share, variance / deviation, rtol=1e-5)
    # the literal map: slope Cov(v, k), through the mean value at the origin
    gaps = keys - keys.mean(axis=0)
    slope = (values - values.mean(axis=0)).T @ gaps / len(keys)
    literal = z @ slope.T + values.mean(axis=0)
    residual = ((literal - outputs) ** 2).sum(axis=1).mean() / variance
    np.testing.assert_allclose(one.residual.sel(map="origin"), residual, rtol=1e-4)
    np.testing.assert_allclose(one.residual_origin, residual, rtol=1e-4)
    # a prefix of the same tokens
    half = one.isel(prefix=3)
    length = int(half.prefix_length)
    terms = weights[:, :length] / weights[:, :length].sum(axis=1, keepdims=True)
    error = ((terms @ values[:length] - outputs) ** 2).sum(axis=1).mean() / deviation
    np.testing.assert_allclose(half.prefix_error, error, rtol=1e-4)
    assert one.prefix_error.isel(prefix=-1) == 0
    whole = one.prefix_residual.isel(prefix=-1)
    np.testing.assert_allclose(whole, one.residual.sel(map="best"), rtol=1e-4)


def test_probe_lengths_are_those_of_tokens_as_a_law(recording, found):
    head, prompt, queries = recording.prompts[0][0].head(1)
    one = found.isel(prompt=0, layer=0, head=1)
    index = np.unique(np.linspace(0, 127, 8).astype(int))
    _, values, _, weights = _seen(recording, 0, 0, 1)
    deviation = (((weights @ values) - values.mean(axis=0)) ** 2).sum(axis=1).mean()
    tokens = lp.Empirical(np.asarray(prompt.as_prompt().points))
    needed = int(one.prompt_length)
    errors = [
        float(np.mean([lp.output_error(head, tokens, queries[i], L) for i in index])) / deviation
        for L in (needed - 1, needed)
    ]
    assert errors[1] <= 0.05 < errors[0]
    # by sampling, at the length of the table nearest to the answer
    rng = np.random.default_rng(0)
    place = int(np.abs(found.length.values - 100).argmin())
    L = 100
    chosen = rng.integers(0, prompt.n, (4000, L))
    terms = np.exp(_seen(recording, 0, 0, 1)[2][index][:, chosen])  # (queries, prompts, tokens)
    outputs = np.einsum("qpl,plv->qpv", terms, values[chosen]) / terms.sum(axis=-1, keepdims=True)
    squares = ((outputs - (weights @ values)[index][:, None]) ** 2).sum(axis=-1)
    wanted = np.mean(squares) / deviation
    assert found.length.values[place] == pytest.approx(L)
    assert float(one.predicted_error[place]) == pytest.approx(wanted, rel=0.05)
    decoder = found.isel(prompt=1, layer=0)  # a text is no sample of its tokens
    assert decoder.prompt_length.isnull().all()
    assert decoder.predicted_error.isnull().all()
    assert found.prompt_length.isel(prompt=1, layer=1, head=0).notnull()


def test_probe_compression_is_measured_on_queries_that_did_not_choose(recording, found):
    """Held out are every fourth query; of these the even ones choose, the odd ones measure."""
    head, prompt, queries = recording.prompts[0][0].head(1)
    one = found.isel(prompt=0, layer=0, head=1)
    _, values, _, weights = _seen(recording, 0, 0, 1)
    exact, held_out = weights @ values, np.arange(3, 128, 4)
    for number, size in enumerate((8, 30)):
        squares = {}
        for method in METHODS:
            budget = size * 8 * 4  # bytes of tokens of 4 + 4 numbers
            small = lp.compress(prompt, queries, size=budget, head=head, method=method)
            gaps = np.asarray(lp.attend(head, small, queries[held_out])) - exact[held_out]
            squares[method] = np.sum(gaps**2, axis=1)
            place = {"size": size, "method": method}
            assert small.error is not None
            wanted = float(small.error.mean)
            assert float(one.compression_error_by_method.sel(place)) == wanted
        best = min(METHODS, key=lambda method: squares[method][::2].mean())
        assert one.compression_method.values[number] == best
        away = exact[held_out][1::2] - values.mean(axis=0)
        error = squares[best][1::2].mean() / np.sum(away**2, axis=1).mean()
        np.testing.assert_allclose(one.compression_error[number], error, rtol=1e-3)
        away, gaps = np.sum(away**2, axis=1), squares[best][1::2]
        # the jackknife of the ratio of two means
        every = np.arange(len(gaps))
        left_out = [np.mean(gaps[every != i]) / np.mean(away[every != i]) for i in every]
        error = np.std(left_out) * np.sqrt(len(gaps) - 1)
        np.testing.assert_allclose(one.compression_standard_error[number], error, rtol=0.1)


def test_probe_reads_linear_and_frozen_heads():
    small = _layer(0, heads=1, scale=0.05)
    sharp = _layer(0, heads=1, scale=8.0)
    found = lp.models.probe(Recording("two", ((small, sharp),)))
    assert np.isfinite(found.prompt_length.values).all()
    assert found.regime.values.ravel().tolist() == ["self-averaging", "frozen"]
    assert found.residual_best.values.ravel()[0] < 0.01 < found.residual_best.values.ravel()[1]
    assert found.residual_origin.values.ravel()[0] < 0.01
    assert found.effective_tokens.values.ravel()[0] > 100
    assert found.effective_tokens.values.ravel()[1] < 2


def test_probe_dataset_goes_to_a_file(found, tmp_path):
    assert found.sizes["prompt"] == 2
    assert np.isnan(found.score_deviation.values[:, 1, 1]).all()  # a layer with fewer heads
    assert found.attrs["model"] == "synthetic"
    assert json.loads(found.attrs["texts"])[0] == "one"
    assert "2 of 5 layers have attention" in " ".join(_summary(found).notes)
    assert {"largeprompt", "jax", "code", "tolerance"} <= set(found.attrs)
    assert all(found[name].attrs["description"] for name in QUANTITIES)
    found.to_netcdf(tmp_path / "probe.nc", engine="scipy")
    again = xr.load_dataset(tmp_path / "probe.nc", engine="scipy")
    np.testing.assert_array_equal(again.residual.values, found.residual.values)
    assert again.regime.values[0, 0, 0] == found.regime.values[0, 0, 0]


def test_probe_with_few_queries_says_so():
    few = Recording("few", ((_layer(0, heads=1, queries=5),),))
    with (
        pytest.warns(UserWarning, match="8 queries are needed and 5 are recorded"),
        pytest.warns(UserWarning, match="prompts are NaN where 128 .* and 5 are recorded"),
    ):
        found = lp.models.probe(few, sizes=(1, 8))
    assert np.isnan(found.compression_error.values).all()
    assert np.isnan(found.compression_error_by_method.values).all()
    assert found.compression_method.values.ravel().tolist() == ["gaussian tail"] * 2
    assert np.isnan(found.residual_best.values).all()
    assert np.isfinite(found.effective_tokens.values).all()


def test_probe_moves_the_bar_by_one_for_each_head(recording, monkeypatch):
    """With the layer in its label, so that it moves in a pipe too."""
    seen = []

    @contextmanager
    def bar(label, total, **_):
        seen.append((label, total))
        yield lambda steps=1, label=None: seen.append((steps, label))

    monkeypatch.setattr(probing, "progress_bar", bar)
    lp.models.probe(recording, sizes=(8,))
    assert seen[0] == ("probing", 6)
    labels = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0), (1, 1)]
    assert seen[1:] == [(1, f"probing prompt {p}, layer {layer}") for p, layer in labels]


def test_probe_of_scores_too_wide_for_the_integral_says_so():
    wide = Recording("wide", ((_layer(0, heads=1, scale=2000.0),),))
    with pytest.warns(UserWarning, match="are NaN for 1 heads, whose scores are too wide"):
        found = lp.models.probe(wide, sizes=(8,))
    assert np.isnan(found.prompt_length.values).all()
    assert found.regime.item() == "frozen"
    assert found.effective_tokens.item() == pytest.approx(1, abs=0.1)


def test_probe_needs_two_tokens():
    positions = np.array([0, *range(119, 247)])
    layer = _layer(0, heads=1, queries=129, tokens=247, positions=positions)
    with pytest.raises(ValueError, match="1 tokens and 129 queries in layer 0, head 0 of prompt 0"):
        lp.models.probe(Recording("short", ((layer,),)))
    found = lp.models.probe(Recording("short", ((layer,),)), length=120, sizes=(8,))
    assert found.queries.item() == 128


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
def test_probe_of_a_model_has_its_own_attention(family):
    """Grouped heads in two of four architectures; weights are those that the model returns."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from .tiny_transformers import tiny_transformer

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 250}
    model = tiny_transformer(family, **sizes)
    ids = np.random.default_rng(0).integers(0, 60, 247)
    found = lp.models.probe(lp.models.record(model, ids, queries=128), sizes=(8,), sinks=3)
    assert dict(found.sizes)["head"] == 4
    tokens = 247 if family == "bert" else 120  # that all recorded queries saw
    assert found.tokens.values.ravel().tolist() == [tokens] * 4
    assert float(found.recording_error.max()) < 1e-5
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(torch.as_tensor(ids)[None], output_attentions=True).attentions[0][0]
    weights = np.asarray(own)[:, -128:, :tokens].astype(np.float64)
    weights /= weights.sum(axis=-1, keepdims=True)
    effective = np.median(1 / np.sum(weights**2, axis=-1), axis=-1)
    np.testing.assert_allclose(found.effective_tokens[0, 0], effective, rtol=1e-3)
    sinks = weights[..., :3].sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(found.sink_mass[0, 0], sinks, rtol=1e-3)
