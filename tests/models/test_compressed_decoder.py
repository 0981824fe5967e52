"""Decoders with compressed prompts, against the models themselves and against `lp.attend`."""

import contextlib
import io
import re
from pathlib import Path
from typing import get_args

import equinox as eqx
import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.compression.compress import Method
from largeprompt.models import compressed_decoder
from largeprompt.models.compressed_rows import Rows, attend_to_rows

from ..test_docs import same_text
from .tiny_transformers import tiny_transformer

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

LENGTH, AFTER, GROUPS = 60, 12, 2
LONG = {"max_position_embeddings": 128}


@pytest.fixture(scope="module", params=["gpt2", "llama", "qwen3"])
def decoder(request):
    """A model, token ids of two prompts with what follows, and the recording of the prompts."""
    model = tiny_transformer(request.param, **LONG)
    ids = np.random.default_rng(0).integers(3, 60, size=(2, LENGTH + AFTER))
    return model, ids, lp.models.record(model, ids[:, :LENGTH], queries=32, progress=False)


@pytest.fixture(scope="module")
def llama():
    model = tiny_transformer("llama", **LONG)
    ids = np.random.default_rng(1).integers(3, 60, size=LENGTH)
    return model, ids, lp.models.record(model, ids, queries=32)


def _own_losses(model, ids):
    with torch.no_grad():
        logits = model(torch.as_tensor(ids)).logits
    logs = logits[:, LENGTH:-1].log_softmax(-1)
    return -logs.gather(-1, torch.as_tensor(ids)[:, LENGTH + 1 :, None])[..., 0].numpy()


def _mixed(rng, groups, weighted, rank, atoms=9, dim=8):
    """Compressed measures of one prompt, with tails of different ranks, or none."""
    found = []
    for group in range(groups):
        keys, values = (rng.normal(size=(80, dim)).astype(np.float32) for _ in range(2))
        queries = rng.normal(size=(48, dim)).astype(np.float32) + 0.5
        found.append(
            lp.compress(
                lp.KeyValues(keys, values + keys),
                queries,
                atoms=atoms - group,
                rank=rank if group == 0 else None,
                method="centroids" if weighted and group else "gaussian tail",
                head=lp.Head.key_value(dim, dim, scale=0.4),
            )
        )
    return found


def test_attend_to_rows_is_attend_of_the_measure():
    rng = np.random.default_rng(2)
    prompts = [_mixed(rng, 2, True, 3), _mixed(rng, 2, False, 0, atoms=5)]
    rows = Rows.of(prompts, "cpu")
    new = rng.normal(size=(2, 2, 2, 3, 8)).astype(np.float32)  # keys and values of three tokens
    rows = rows.appended(*map(torch.from_numpy, new))
    queries = rng.normal(size=(2, 6, 2, 8)).astype(np.float32) + 0.5  # the last two tokens
    found = attend_to_rows(torch.from_numpy(queries), rows, None, 0.4).numpy()
    head = lp.Head.key_value(8, 8, scale=0.4)
    for prompt, group, token in ((0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)):
        keys, values = new[:, prompt, group, : 2 + token]
        measure = prompts[prompt][group].append(keys, values)
        heads = slice(3 * group, 3 * group + 3)
        wanted = lp.attend(head, measure, queries[prompt, heads, token])
        np.testing.assert_allclose(found[prompt, token, heads], wanted, rtol=1e-5, atol=1e-5)


def test_attend_to_rows_reads_masks():
    rng = np.random.default_rng(3)
    rows = Rows.of([_mixed(rng, 1, False, 2)], "cpu")
    new = torch.from_numpy(rng.normal(size=(2, 1, 1, 3, 8)).astype(np.float32))
    query = torch.from_numpy(rng.normal(size=(1, 2, 1, 8)).astype(np.float32))
    seen = torch.tensor([[[[True, False, True]]]])
    without = attend_to_rows(query, rows.appended(*new[..., [0, 2], :]), None, 0.4)
    for mask in (seen, torch.zeros(seen.shape).masked_fill(~seen, -1e30)):
        found = attend_to_rows(query, rows.appended(*new), mask, 0.4)
        torch.testing.assert_close(found, without)


def test_next_token_loss_is_the_models_own_if_all_tokens_are_kept(decoder):
    model, ids, recording = decoder
    before = model.config._attn_implementation
    model.train()
    cache = lp.models.compress_prompt(model, recording, atoms=LENGTH, progress=False)
    found = lp.models.next_token_loss(model, cache, ids[:, LENGTH:])
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == before
    assert cache.get_seq_length() == LENGTH  # as before the call
    np.testing.assert_allclose(found, _own_losses(model.eval(), ids), atol=2e-5)


def test_next_token_loss_grows_as_prompts_shrink(decoder):
    model, ids, recording = decoder
    own = _own_losses(model, ids)
    gaps = []
    for tokens in (40, 50, 58):
        cache = lp.models.compress_prompt(model, recording, tokens=tokens, progress=False)
        groups = recording.layers[0].keys.shape[0]
        if 32 * 4 // groups < 64:  # queries of the heads that share keys: too few to hold some out
            assert cache.errors is cache.standard_errors is None
        else:
            assert cache.errors.shape == cache.standard_errors.shape == (2, 2, groups)
            assert np.all(cache.standard_errors > 0)
        gaps.append(np.abs(lp.models.next_token_loss(model, cache, ids[:, LENGTH:]) - own).mean())
    assert gaps[0] > gaps[1] > gaps[2] > 1e-3


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_compress_prompt_of_prompts_padded_on_the_left(family):
    """Different lengths before the prompts' ends and, as a tokenizer pads them, after these."""
    model, lengths = tiny_transformer(family, **LONG), (LENGTH, LENGTH - 15)
    ids = torch.as_tensor(np.random.default_rng(4).integers(3, 60, size=(2, LENGTH + AFTER)))
    mask = torch.ones_like(ids)
    ids[1, :15], mask[1, :15] = 0, 0
    prompts = {"input_ids": ids[:, :LENGTH], "attention_mask": mask[:, :LENGTH]}
    recording = lp.models.record(model, prompts, queries=32, progress=False)
    cache = lp.models.compress_prompt(model, recording, atoms=LENGTH, progress=False)
    assert (cache.get_seq_length(), cache.lengths.tolist()) == (LENGTH, list(lengths))
    losses = lp.models.next_token_loss(model, cache, ids[:, LENGTH:])
    for row, start in enumerate((0, 15)):
        with torch.no_grad():  # alone, without padding
            logs = model(ids[row : row + 1, start:]).logits[0, lengths[row] : -1].log_softmax(-1)
        own = -logs.gather(-1, ids[row, LENGTH + 1 :, None])[:, 0]
        np.testing.assert_allclose(losses[row], own, atol=2e-5)
    mask[0, LENGTH : LENGTH + 3] = 0  # fewer tokens after the longer prompt
    how = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(ids, **how)
    with lp.models.compressed_attention(model):
        assert torch.equal(model.generate(ids, past_key_values=cache, **how), wanted)
        cache.reset()
        cache.batch_repeat_interleave(2)
        beams = model.generate(ids, past_key_values=cache, num_beams=2, **how)
    assert torch.equal(beams, model.generate(ids, num_beams=2, **how))
    assert not model._forward_pre_hooks
    assert not model.base_model._forward_pre_hooks


def test_compress_prompt_of_prompts_padded_on_the_left_is_that_of_each(llama):
    model, ids, recording = llama
    short = lp.models.record(model, ids[:48], queries=32)
    both = lp.models.Recording("two", (recording.layers, short.layers))
    together = lp.models.compress_prompt(model, both, tokens=45, progress=False)
    assert together.errors[0].max() != together.errors[1].max()
    losses = lp.models.next_token_loss(model, together, [ids[:AFTER]] * 2)
    for row, one in enumerate((recording, short)):
        cache = lp.models.compress_prompt(model, one, tokens=45, progress=False)
        found = lp.models.next_token_loss(model, cache, ids[:AFTER])
        np.testing.assert_allclose(found[0], losses[row], atol=2e-5)
    after = torch.as_tensor(ids[None, :2].repeat(2, axis=0))
    mask = torch.ones(2, LENGTH + 2, dtype=torch.long)
    with lp.models.compressed_attention(model):
        with pytest.raises(ValueError, match="received position 60 after prompt 1 of 48 tokens"):
            model.generate(
                torch.zeros_like(mask), attention_mask=mask, past_key_values=together, max_length=64
            )
        with pytest.raises(ValueError, match=r"shape \(2, 62\): of the padded.*shape \(2, 2\)"):
            model(after, attention_mask=mask[:, :2], past_key_values=together)
        with pytest.raises(ValueError, match="one row of tokens for every compressed prompt"):
            model(after[:1], past_key_values=together)


@pytest.mark.parametrize("method", get_args(Method))
def test_compress_prompt_by_every_method_is_attend_of_its_measures(llama, method, monkeypatch):
    """What the model reads in the cache is what `lp.attend` reads in the measures of `compress`."""
    measures = []

    def compress(*arguments, **how):
        measures.append(lp.compress(*arguments, **how))
        return measures[-1]

    model, ids, recording = llama
    monkeypatch.setattr(compressed_decoder, "compress", compress)
    cache = lp.models.compress_prompt(
        model, recording, tokens=45, method=method, key=jax.random.key(0), progress=False
    )
    (scaling,) = {layer.scaling for layer in recording.layers}
    head = lp.Head.key_value(8, 8, scale=scaling)
    for number, (layer, recorded) in enumerate(zip(cache.layers, recording.layers, strict=True)):
        queries = recorded.queries[:, -5:].reshape(1, GROUPS * 10, 1, 8)  # two heads in a group
        found = attend_to_rows(torch.from_numpy(queries), layer.rows, None, scaling)[0, 0].numpy()
        for group in range(GROUPS):
            part = slice(10 * group, 10 * group + 10)
            wanted = lp.attend(head, measures[GROUPS * number + group], queries[0, part, 0])
            np.testing.assert_allclose(found[part], wanted, rtol=1e-5, atol=1e-5)
    assert cache.nbytes < len(measures) * LENGTH * (8 + 8) * 4  # of the whole prompt
    losses = lp.models.next_token_loss(model, cache, ids[:9])
    assert np.abs(losses - _own_losses(model, np.append(ids, ids[:9])[None])).max() > 1e-3


def test_compress_prompt_generates_like_the_model_if_all_tokens_are_kept(decoder):
    model, ids, recording = decoder
    inputs = torch.as_tensor(ids[:, : LENGTH + 1])  # at least one token after the prompt
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    arguments["attention_mask"] = torch.ones_like(inputs)
    wanted = model.generate(inputs, **arguments)
    cache = lp.models.compress_prompt(model, recording, atoms=LENGTH, progress=False)
    with lp.models.compressed_attention(model):
        found = model.generate(inputs, past_key_values=cache, **arguments)
    assert torch.equal(found, wanted)
    assert cache.get_seq_length() == LENGTH + 5  # the last token has not been read
    cache.reset()
    assert cache.get_seq_length() == LENGTH
    cache.batch_repeat_interleave(3)
    with lp.models.compressed_attention(model):
        beams = model.generate(inputs, past_key_values=cache, num_beams=3, **arguments)
    assert torch.equal(beams, model.generate(inputs, num_beams=3, **arguments))


def test_compress_prompt_continues_positions_token_by_token(decoder):
    model, ids, recording = decoder
    cache = lp.models.compress_prompt(model, recording, tokens=45, progress=False)
    after = torch.as_tensor(ids[:, LENGTH:])
    with torch.no_grad(), lp.models.compressed_attention(model):
        at_once = model(after, past_key_values=cache).logits
        cache.crop(-AFTER)
        steps = []
        for token in range(AFTER):
            assert cache.get_mask_sizes(1, 0) == (token + 1, LENGTH)
            steps.append(model(after[:, token : token + 1], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_compress_prompt_serves_queries_of_later_positions(family, monkeypatch):
    """`compress` sees queries of the next positions, of all heads of a group, in order of time."""
    seen = []

    def compress(prompt, queries, **how):
        seen.append(queries)
        return lp.compress(prompt, queries, **how)

    model = tiny_transformer(family, **LONG)
    ids = np.random.default_rng(0).integers(3, 60, size=LENGTH)
    recording = lp.models.record(model, ids, queries=32)
    monkeypatch.setattr(compressed_decoder, "compress", compress)
    lp.models.compress_prompt(model, recording, atoms=40, rank=2, progress=False)
    layer, groups = recording.layers[0], len(recording.layers[0].keys)
    turned = layer.queries
    if family != "gpt2":
        turned = lp.models.rotate(turned, 64, base=1e4)
    for group, queries in enumerate(seen[:groups]):
        wanted = turned[group * 4 // groups : (group + 1) * 4 // groups]
        for time, rows in enumerate(queries.reshape(32, 4 // groups, 8)):
            order = np.argsort(rows[:, 0])
            expected = wanted[:, time][np.argsort(wanted[:, time, 0])]
            np.testing.assert_allclose(rows[order], expected, atol=1e-5)
    # each head of a group is among the queries that measure the error: every fourth
    if family != "gpt2":
        of_first = [np.abs(turned[0] - row).max(axis=1).min() < 1e-5 for row in seen[0][3::4]]
        assert np.mean(of_first) == 0.5
    del seen[:]
    lp.models.compress_prompt(model, recording, atoms=40, rank=2, ahead=0, progress=False)
    assert {row.tobytes() for row in seen[0]} <= {
        row.tobytes() for head in layer.queries for row in head
    }


def test_compress_prompt_in_half_precision(llama):
    _, ids, _ = llama
    model = tiny_transformer("llama", **LONG).bfloat16()
    recording = lp.models.record(model, ids, queries=32)
    cache = lp.models.compress_prompt(model, recording, atoms=LENGTH, progress=False)
    found = lp.models.next_token_loss(model, cache, ids[:AFTER])
    with torch.no_grad():
        logits = model(torch.as_tensor(np.append(ids, ids[:AFTER]))[None]).logits.float()
    logs = logits[0, LENGTH:-1].log_softmax(-1).numpy()
    wanted = -logs[np.arange(AFTER - 1), ids[1:AFTER]]
    # rounding of bfloat16: 0.03 here; two tokens fewer in the cache would give 0.11
    np.testing.assert_allclose(found[0], wanted, atol=0.06)


def test_compressed_attention_restores_the_model_after_an_error(llama):
    model, *_ = llama
    model.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="here"), lp.models.compressed_attention(model):
        raise RuntimeError("here")
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("sdpa")


def test_compressed_attention_needs_the_cache_and_the_cache_needs_it(llama):
    model, ids, recording = llama
    cache = lp.models.compress_prompt(model, recording, tokens=45, progress=False)
    row = torch.as_tensor(ids[:3])[None]
    with pytest.raises(ValueError, match="needs attention that knows it"):
        model(row, past_key_values=cache)
    with lp.models.compressed_attention(model):
        with pytest.raises(ValueError, match="needs a cache of compress_prompt"):
            model(row)
        with pytest.raises(ValueError, match="one row of tokens for every compressed prompt"):
            model(row.repeat(2, 1), past_key_values=cache)
        model.train()
        model.model.layers[0].self_attn.attention_dropout = 0.5
        with pytest.raises(ValueError, match="no dropout"):
            model(row, past_key_values=cache)
        model.model.layers[0].self_attn.attention_dropout = 0.0
        model.eval()
        elsewhere = torch.zeros(1, 2, 1, 8, device="meta")
        with pytest.raises(ValueError, match="the model must be on cpu, as the cache"):
            cache.update(elsewhere, elsewhere, 0)
    with pytest.raises(ValueError, match="only tokens after a compressed prompt"):
        cache.crop(-LENGTH)


def test_compress_prompt_and_next_token_loss_say_what_is_wrong(llama):
    model, ids, recording = llama
    compress, loss = lp.models.compress_prompt, lp.models.next_token_loss
    with pytest.raises(ValueError, match="either tokens or atoms"):
        compress(model, recording)
    with pytest.raises(ValueError, match="first \\+ last must be at most"):
        compress(model, recording, tokens=45, first=40, last=40)
    with pytest.raises(ValueError, match="size must be at least"):
        compress(model, recording, tokens=20, progress=False)
    with pytest.raises(ValueError, match="a model of the transformers library"):
        compress(torch.nn.Linear(2, 2), recording, tokens=45)
    both_ways = [eqx.tree_at(lambda one: one.positions, layer, None) for layer in recording.layers]
    with pytest.raises(ValueError, match="compress_prompt takes causal models"):
        compress(model, lp.models.Recording("encoder", (tuple(both_ways),)), tokens=45)
    with pytest.raises(ValueError, match="ahead must be a non-negative integer"):
        compress(model, recording, tokens=45, ahead=-1)
    with pytest.raises(ValueError, match="first must be a non-negative integer"):
        compress(model, recording, tokens=45, first=-1)
    with pytest.raises(ValueError, match="last must be a non-negative integer"):
        compress(model, recording, tokens=45, last=-5)
    half = lp.models.Recording("half", (recording.layers[:1],))
    with pytest.raises(ValueError, match="recording must be of this model"):
        compress(model, half, tokens=45)
    uneven = lp.models.record(model, [ids, ids[:31]], queries=16, progress=False)
    with pytest.raises(ValueError, match="32 for a prompt of 31 tokens"):
        compress(model, uneven, tokens=45)
    model.model.layers[0].self_attn.sliding_window = 16
    with pytest.raises(ValueError, match="sliding window of 16"):
        compress(model, recording, tokens=45)
    del model.model.layers[0].self_attn.sliding_window
    cache = compress(model, recording, tokens=45, progress=False)
    with pytest.raises(ValueError, match="at least 2 of each"):
        loss(model, cache, [3])
    with pytest.raises(ValueError, match="needs a model with logits"):
        loss(model.model, cache, [3, 4])
    with pytest.raises(ValueError, match="cache must be one of compress_prompt; received a NoneT"):
        loss(model, None, [3, 4])
    with pytest.raises(ValueError, match="a model of the transformers library"):
        loss(None, cache, [3, 4])
    with pytest.raises(ValueError, match=r"tokens must be between 0 and 59.*; received 60"):
        loss(model, cache, [3, 60])
    with pytest.raises(ValueError, match="tokens must have values; received a tensor on the dev"):
        loss(model, cache, torch.zeros(3, dtype=torch.long, device="meta"))


def test_code_of_the_document_prints_what_it_shows():
    """The ```py block of docs/compressed_decoder.md."""
    page = (Path(__file__).parents[2] / "docs" / "compressed_decoder.md").read_text()
    (code,) = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert same_text(printed.getvalue(), shown)
