"""`load_pretrained` from files that `save_pretrained` and the gguf package write."""

import json

import numpy as np
import pytest

import largeprompt as lp

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["<unk>", "<s>", "</s>", *"abcdefghij", "ab"]
HEADS, GROUPS = 4, 2


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    return transformers.LlamaForCausalLM(config).eval()


def _interleaved(matrix, heads):
    """Rows of each head in the order of gguf files: those that turn together are neighbours."""
    rows, columns = matrix.shape
    return (
        matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(matrix.shape)
    )


def _gguf(path, model, skipped=""):
    """A file of one model, without quantisation."""
    gguf = pytest.importorskip("gguf")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3] + [1] * 11)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors = {"token_embd.weight": model.model.embed_tokens.weight}
    tensors["output_norm.weight"] = model.model.norm.weight
    for number, layer in enumerate(model.model.layers):
        for theirs, ours in names.items():
            tensors[f"blk.{number}.{ours}.weight"] = layer.get_submodule(theirs).weight
    for name, tensor in tensors.items():
        array = tensor.detach().numpy()
        if "attn_q" in name or "attn_k" in name:
            array = _interleaved(array, HEADS if "attn_q" in name else GROUPS)
        if name != skipped:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_load_pretrained_of_a_gguf_file(llama, tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    parsed, build = [], gguf.GGUFReader._build_fields
    monkeypatch.setattr(
        gguf.GGUFReader, "_build_fields", lambda *given: parsed.append(1) or build(*given)
    )
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    model, tokenizer = lp.models.load_pretrained(_gguf(tmp_path / "tiny.gguf", llama))
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == before
    assert len(parsed) <= 1  # which takes most of the time of loading a real file
    (tmp_path / "tiny.gguf").unlink()
    with torch.no_grad():
        for parameter in model.parameters():  # in memory, not a map of the file
            parameter += 0
    ids = torch.as_tensor(np.random.default_rng(0).integers(3, 13, size=(1, 40)))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=1e-4, atol=1e-5)
    assert not model.training
    assert tokenizer("abcj")["input_ids"][-3:] == [13, 5, 12]
    recording = lp.models.record(model, ids[0], queries=9)
    assert recording.model == "tiny"
    wanted = lp.models.record(llama, ids[0], queries=9)
    for found, layer in zip(recording.layers, wanted.layers, strict=True):
        np.testing.assert_allclose(found.queries, layer.queries, atol=1e-5)


def test_load_pretrained_of_damaged_gguf_files(llama, tmp_path):
    path = _gguf(tmp_path / "less.gguf", llama, skipped="blk.1.ffn_up.weight")
    with pytest.raises(
        ValueError, match=r"missing tensors \['model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        lp.models.load_pretrained(path)
    whole = _gguf(tmp_path / "tiny.gguf", llama).read_bytes()
    for name, data in (("short.gguf", whole[: len(whole) // 2]), ("no.gguf", b"no such format")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=r"must be a whole \.gguf file") as found:
            lp.models.load_pretrained(tmp_path / name)
        assert "\n" not in str(found.value)


def _with_tokenizer(path):
    """The folder with a tokenizer of two words."""
    (path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab"]), encoding="utf-8"
    )
    transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    return path


def _encoder(kind):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=7, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    return kind(config).eval()


@pytest.fixture
def folder(tmp_path):
    """A tiny encoder and a tokenizer of two words."""
    _encoder(transformers.BertModel).save_pretrained(tmp_path / "tiny")
    return _with_tokenizer(tmp_path / "tiny")


def test_load_pretrained_of_a_decoder_from_a_folder(llama, tmp_path, capfd):
    """With its logits, tied to the embedding or not, and without a word of transformers."""
    torch.manual_seed(1)
    gpt2 = transformers.GPT2Config(
        vocab_size=14, n_embd=8, n_layer=1, n_head=2, n_positions=32, tie_word_embeddings=False
    )
    ids = torch.as_tensor(np.random.default_rng(0).integers(3, 13, size=(1, 20)))
    for name, saved in (("llama", llama), ("gpt2", transformers.GPT2LMHeadModel(gpt2).eval())):
        saved.save_pretrained(tmp_path / name)
        _with_tokenizer(tmp_path / name)
        capfd.readouterr()
        model, _ = lp.models.load_pretrained(tmp_path / name)
        assert capfd.readouterr() == ("", "")
        assert type(model) is type(saved)
        with torch.no_grad():
            torch.testing.assert_close(model(ids).logits, saved(ids).logits)


def test_load_pretrained_leaves_out_heads_for_tasks(tmp_path, capfd):
    saved = _encoder(transformers.BertForMaskedLM)
    saved.save_pretrained(tmp_path / "tiny")
    capfd.readouterr()
    model, _ = lp.models.load_pretrained(_with_tokenizer(tmp_path / "tiny"))
    assert capfd.readouterr() == ("", "")
    ids = torch.as_tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        wanted = saved.bert(ids).last_hidden_state
        torch.testing.assert_close(model(ids).last_hidden_state, wanted)


def test_load_pretrained_of_a_folder_without_a_tensor(folder):
    """Transformers would fill it with random numbers."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    state = load_file(path)
    del state["encoder.layer.0.attention.self.query.weight"]
    save_file(state, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"missing tensors \['encoder\.layer\.0\.attention\.self"):
        lp.models.load_pretrained(folder)


def test_load_pretrained_from_a_folder(folder, tmp_path):
    model, tokenizer = lp.models.load_pretrained(folder)
    recording = lp.models.record(model, "a b a b", tokenizer=tokenizer)
    assert recording.model == "tiny"
    assert recording.layers[0].n == 6
    with pytest.raises(ValueError, match=r"a folder with config\.json, or a \.gguf file"):
        lp.models.load_pretrained(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "missing", "configuration"])
def test_load_pretrained_from_a_damaged_folder(folder, damage):
    weights = folder / "model.safetensors"
    match damage:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "missing":
            weights.unlink()
        case "configuration":
            (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="a folder with a whole model and its token") as found:
        lp.models.load_pretrained(folder)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("class_name", ["AutoConfig", "AutoModel", "AutoTokenizer"])
def test_load_pretrained_runs_no_code_of_the_folder(folder, class_name, monkeypatch):
    """Neither asks whether to run it, nor runs it, for a class that only the folder has."""
    ran = folder.parent / "ran"
    (folder / "own.py").write_text(
        "from transformers import BertConfig, BertModel, BertTokenizer\n"
        f"open({str(ran)!r}, 'w')\n"
        "class Own(BertConfig):\n    model_type = 'own'\n",
        encoding="utf-8",
    )
    name = "tokenizer_config.json" if class_name == "AutoTokenizer" else "config.json"
    settings = json.loads((folder / name).read_text(encoding="utf-8"))
    settings["auto_map"] = {class_name: ["own.Own", None] if "Tok" in class_name else "own.Own"}
    settings |= {"tokenizer_class": "Own"} if "Tok" in class_name else {"model_type": "own"}
    (folder / name).write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    if class_name == "AutoTokenizer":  # the tokenizer of a known kind serves without its code
        lp.models.load_pretrained(folder)
    else:
        with pytest.raises(ValueError, match="a folder with a whole model and its token") as found:
            lp.models.load_pretrained(folder)
        assert "\n" not in str(found.value)
    assert not ran.exists()
