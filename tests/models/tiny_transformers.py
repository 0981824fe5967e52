"""Tiny transformers with random weights, of four architectures."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # scores of deviation about 1, not 0
}
INNER = {"intermediate_size": 48}
GROUPED = {**SIZES, **INNER, "num_key_value_heads": 2}  # two query heads share keys and values


def tiny_transformer(family, **sizes):
    """A decoder with logits, or an encoder ("bert"), in evaluation mode; equal for equal sizes."""
    torch.manual_seed(0)
    wide, grouped = {**SIZES, **sizes}, {**GROUPED, **sizes}
    match family:
        case "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**wide))
        case "llama":
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**grouped))
        case "qwen3":
            dim = grouped["hidden_size"] // grouped["num_attention_heads"]
            config = transformers.Qwen3Config(**grouped, head_dim=dim)  # 128 by default
            model = transformers.Qwen3ForCausalLM(config)
        case "bert":
            model = transformers.BertModel(transformers.BertConfig(**wide, **INNER))
        case _:
            raise AssertionError(family)
    return model.eval()
