"""Attention of a decoder to a compressed prompt and the tokens after it, in PyTorch.

A Gaussian tail with tilt u0, mean (m_k, m_v) and factor (F_k, F_v) is stored as rank + 1 rows of
keys, values and biases: (F_k, F_v, -<F_k, u0>) and (m_k, m_v, log mass - <m_k, u0>). One product
of queries and rows then gives a = F_k'(u - u0), the log mass log w + <m_k, u - u0> + |a|^2 / 2 and,
with the softmax weight p of the tail, its output p m_v + F_v (p a).
"""

from typing import Any, NamedTuple

import numpy as np


class Rows(NamedTuple):
    """A prompt of every key-value head: factor, mean, kept tokens, then tokens after the prompt.

    Tensors have shapes (prompts, groups, rows, dimension), biases (prompts, groups, 1, rows). The
    first `rank` rows are those of the factor, the next is the mean, the last `new` are tokens
    after the prompt. Rows that a head does not need have bias -inf, or are 0 in the factor.
    """

    keys: Any
    values: Any
    biases: Any
    rank: int
    new: int = 0

    @classmethod
    def of(cls, prompts: list[list[Any]], device: Any) -> "Rows":
        """Rows of `Compressed` measures, one for each prompt and key-value head."""
        import torch  # pyright: ignore[reportMissingImports]  # an optional extra

        measures = [measure for groups in prompts for measure in groups]
        tails = [measure.tail for measure in measures if measure.tail is not None]
        rank = max((tail.rank for tail in tails), default=0)
        count = rank + 1 + max(measure.n for measure in measures)
        k, v = measures[0].keys.shape[1], measures[0].values.shape[1]
        rows = np.zeros((len(measures), count, k + v + 1), np.float32)
        rows[:, rank:, -1] = -np.inf
        for row, measure in zip(rows, measures, strict=True):
            tail, kept = measure.tail, slice(rank + 1, rank + 1 + measure.n)
            row[kept, :k], row[kept, k:-1] = measure.keys, measure.values
            row[kept, -1] = 0.0 if measure.log_weights is None else measure.log_weights
            if tail is not None:
                factor, mean = (np.asarray(a, np.float64) for a in (tail.factor, tail.mean))
                tilt = np.asarray(tail.tilt, np.float64)
                row[: tail.rank, :-1], row[rank, :-1] = factor.T, mean
                row[: tail.rank, -1] = -tilt @ factor[:k]
                row[rank, -1] = float(tail.log_mass) - tilt @ mean[:k]
        shaped = torch.from_numpy(rows).to(device).unflatten(0, (len(prompts), -1))
        keys, values, biases = shaped.split((k, v, 1), dim=-1)
        return cls(keys.contiguous(), values.contiguous(), biases.mT.contiguous(), rank)

    def appended(self, keys: Any, values: Any) -> "Rows":
        """With tokens after the prompt."""
        import torch  # pyright: ignore[reportMissingImports]  # an optional extra

        count = keys.shape[2]
        return Rows(
            torch.cat([self.keys, keys.to(self.keys.dtype)], dim=2),
            torch.cat([self.values, values.to(self.values.dtype)], dim=2),
            torch.nn.functional.pad(self.biases, (0, count)),
            self.rank,
            self.new + count,
        )

    def cropped(self, count: int) -> "Rows":
        """Without the last `count` tokens."""
        rows = self.keys.shape[2] - count
        return Rows(
            self.keys[:, :, :rows],
            self.values[:, :, :rows],
            self.biases[..., :rows],
            self.rank,
            self.new - count,
        )


def attend_to_rows(query: Any, rows: Rows, mask: Any, scaling: float) -> Any:
    """Softmax attention of queries (prompts, heads, tokens, dimension) to compressed prompts.

    The queries are those of the last tokens, and see the prompt and the tokens up to their own;
    `mask` (prompts, 1, tokens, new), boolean or added to scores, replaces causality. Computes in
    single precision. Returns (prompts, tokens, heads, dimension of values).
    """
    import torch  # pyright: ignore[reportMissingImports]  # an optional extra

    prompts, heads, tokens, dim = query.shape
    groups, rank = rows.keys.shape[1], rows.rank
    u = query.to(rows.keys.dtype).mul(scaling).reshape(prompts, groups, -1, dim)
    products = u @ rows.keys.mT + rows.biases
    along, scores = products[..., :rank], products[..., rank:]
    if rank:
        lift = along.square().sum(-1, keepdim=True) / 2
        scores = torch.cat([scores[..., :1] + lift, scores[..., 1:]], dim=-1)
    if mask is None and tokens > 1:
        mask = torch.ones(tokens, rows.new, dtype=torch.bool, device=query.device)
        mask = mask.tril(rows.new - tokens)[None, None]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        mask = torch.nn.functional.pad(mask.to(scores.dtype), (scores.shape[-1] - rows.new, 0))
        shaped = scores.unflatten(2, (-1, tokens)) + mask[:, :, None]
        scores = shaped.flatten(2, 3)
    weights = scores.softmax(-1)
    if rank:
        weights = torch.cat([along * weights[..., :1], weights], dim=-1)
    found = (weights @ rows.values).reshape(prompts, heads, tokens, -1)
    return found.transpose(1, 2).to(query.dtype).contiguous()
