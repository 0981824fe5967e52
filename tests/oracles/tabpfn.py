"""Ground truth for TabPFN: the layers of PyTorch in double precision, and the rule of inputs."""

import numpy as np
import torch


def random_state(seed, *, features=7, width=16, hidden=24, layers=3, classes=4, scale=1.0):
    """Random tensors of a small TabPFN by the names of its checkpoints, in single precision."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return torch.tensor(scale * rng.normal(size=shape) / shape[-1] ** 0.5, dtype=torch.float32)

    state = {}

    def affine(name, rows, columns):
        state[f"{name}.weight"], state[f"{name}.bias"] = normal(rows, columns), normal(rows)

    affine("encoder", width, features)
    affine("y_encoder", width, 1)
    for number in range(layers):
        layer = f"transformer_encoder.layers.{number}"
        state[f"{layer}.self_attn.in_proj_weight"] = normal(3 * width, width)
        state[f"{layer}.self_attn.in_proj_bias"] = normal(3 * width)
        affine(f"{layer}.self_attn.out_proj", width, width)
        affine(f"{layer}.linear1", hidden, width)
        affine(f"{layer}.linear2", width, hidden)
        for norm in ("norm1", "norm2"):
            state[f"{layer}.{norm}.weight"] = 1 + normal(width)
            state[f"{layer}.{norm}.bias"] = normal(width)
    affine("decoder.0", hidden, width)
    affine("decoder.2", classes, hidden)
    return {f"module.{name}": value for name, value in state.items()}


def inputs(X, X_test, features):
    """Rows as the model sees them: one feature at a time."""
    columns = []
    for column, new in zip(X.T, X_test.T, strict=True):
        if len(set(column)) == 1:
            continue
        mean, deviation = column.mean(), np.std(column, ddof=1) + 1e-6
        x = (column - mean) / deviation
        inner = x[abs(x - x.mean()) <= 4 * np.std(x, ddof=1)]
        low, high = (inner.mean() + sign * 4 * np.std(inner, ddof=1) for sign in (-1, 1))
        both = np.clip((np.concatenate([column, new]) - mean) / deviation, -100, 100)
        both = np.array([max(v, low - np.log(1 + abs(v))) for v in both])
        columns.append([min(v, high + np.log(1 + abs(v))) for v in both])
    found = np.zeros((len(X) + len(X_test), features))
    found[:, : len(columns)] = np.array(columns).T * features / len(columns)
    return found


def logits(state, heads, X, y, X_test):
    """Logits of the test rows: all rows in one sequence, test rows masked as keys."""
    state = {name.removeprefix("module."): value.double() for name, value in state.items()}

    def affine(name, x):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    features = state["encoder.weight"].shape[1]
    tokens = affine("encoder", torch.tensor(inputs(X, X_test, features)))
    n, total = len(X), len(tokens)
    labels = torch.tensor(np.asarray(y), dtype=torch.float64)[:, None]
    tokens = torch.cat([tokens[:n] + affine("y_encoder", labels), tokens[n:]])
    mask = torch.zeros(total, total, dtype=torch.bool)
    mask[:, n:] = True
    prefix = "transformer_encoder.layers."
    count = 1 + max(int(name.split(".")[2]) for name in state if name.startswith(prefix))
    for number in range(count):
        own = f"{prefix}{number}."
        weights = {k.removeprefix(own): v for k, v in state.items() if k.startswith(own)}
        hidden, width = weights["linear1.weight"].shape
        layer = torch.nn.TransformerEncoderLayer(
            width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True
        ).double()
        layer.load_state_dict(weights)
        with torch.no_grad():
            tokens = layer(tokens[None], src_mask=mask)[0]
    hidden = torch.nn.functional.gelu(affine("decoder.0", tokens[n:]))
    classes = int(np.max(y)) + 1
    return affine("decoder.2", hidden).numpy()[:, :classes]
