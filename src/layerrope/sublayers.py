"""The two sublayers: attention and MLP. No norm and no residual here: those belong to the scheme.

Dimensions: B batch, T position, D width, H query heads, K key-value heads, C head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.rotary import rotate


class KVCache:
    """Keys and values of one layer's past positions, (B, K, T, C) each."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.k is not None and self.v is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v = k, v
        return k, v


def _joined(*parts: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of several projections of one input as one matrix product."""
    bias = None if parts[0].bias is None else torch.cat([p.bias for p in parts])
    return torch.cat([p.weight for p in parts]), bias


class Attention(nn.Module):
    """Causal softmax attention with grouped key-value heads and, where a table is given, rotary positions."""

    def __init__(self, d_model: int, n_head: int, n_kv_head: int, bias: bool = False) -> None:
        super().__init__()
        self.d_head = d_model // n_head
        self.n_head, self.n_kv_head = n_head, n_kv_head
        self.q = nn.Linear(d_model, n_head * self.d_head, bias=bias)
        self.k = nn.Linear(d_model, n_kv_head * self.d_head, bias=bias)
        self.v = nn.Linear(d_model, n_kv_head * self.d_head, bias=bias)
        self.o = nn.Linear(n_head * self.d_head, d_model, bias=bias)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, C), k and v (B, K, T, C), from one product with the three weights side by side."""
        H, K = self.n_head, self.n_kv_head
        qkv = F.linear(x, *_joined(self.q, self.k, self.v)).unflatten(-1, (H + 2 * K, self.d_head))
        q, k, v = qkv.transpose(-2, -3).split((H, K, K), dim=-3)
        return q, k, v

    def forward(self, x: Tensor, rope: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        q, k, v = self.heads(x)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        past = 0
        if cache is not None:
            past = cache.length
            k, v = cache.append(k, v)
        T = q.shape[-2]
        mask = None
        if past and T > 1:
            mask = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)
        grouped = self.n_head != self.n_kv_head
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=not past and T > 1, enable_gqa=grouped)
        return self.o(y.transpose(-2, -3).flatten(-2))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))   (Shazeer 2020, arXiv 2002.05202)"""

    def __init__(self, d_model: int, d_ff: int, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, *_joined(self.gate, self.up)).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class GELU(nn.Module):
    """down(gelu(up(x)))   (Hendrycks & Gimpel 2016, arXiv 1606.08415, exact form)"""

    def __init__(self, d_model: int, d_ff: int, bias: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


MLPS: dict[str, type[SwiGLU] | type[GELU]] = {"swiglu": SwiGLU, "gelu": GELU}
