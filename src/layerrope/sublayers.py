"""The two sublayers: attention and MLP. No norm and no residual here: those belong to the scheme.

Dimensions: B batch, T position, D width, H query heads, K key-value heads, C head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.rotary import halves, rotate_halves


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


def _halved(projection: nn.Linear, x: Tensor, d_head: int) -> Tensor:
    """projection(x) with each head's channels in the layout of `halves`."""
    n_head = projection.out_features // d_head
    bias = None if projection.bias is None else halves(projection.bias, n_head)
    return F.linear(x, halves(projection.weight, n_head), bias)


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

    def heads(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, C), k and v (B, K, T, C); q and k rotated, in the layout of `halves`, where there is a table."""
        q, k, v = self.q, self.k, self.v
        if rope is None:
            return self._split(q(x)), self._split(k(x)), self._split(v(x))
        turned = [rotate_halves(self._split(_halved(p, x, self.d_head)), rope) for p in (q, k)]
        return turned[0], turned[1], self._split(v(x))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head)).transpose(-2, -3)

    def forward(self, x: Tensor, rope: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        q, k, v = self.heads(x, rope)
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
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GELU(nn.Module):
    """down(gelu(up(x)))   (Hendrycks & Gimpel 2016, arXiv 1606.08415, exact form)"""

    def __init__(self, d_model: int, d_ff: int, bias: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


MLPS: dict[str, type[SwiGLU] | type[GELU]] = {"swiglu": SwiGLU, "gelu": GELU}
