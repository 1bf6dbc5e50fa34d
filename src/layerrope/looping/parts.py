"""The parts of a looped model: its layers, and how the input enters each iteration   (Parcae, arXiv 2604.12946).

Dimensions: B batch, T position, D width, H heads, C head width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.axes import Scheme
from layerrope.norms import KeepFp32, rms_norm, upcast
from layerrope.residual import Site, Sublayer
from layerrope.rotary import halves, rotate_halves

GATED = 32
"""Channels of x that a value gate looks at."""


class Injection(KeepFp32):
    """u = exp(-delta A) h + delta (B e),  A = exp(A_log), delta = softplus(dt_bias), each (D,)

    exp(-delta A) lies between 0 and 1 whatever the parameters, so the loop cannot amplify h by itself. Starts at
    A = 1 and delta = -log sqrt(1/5): a decay of 0.4472.
    """

    param_roles = {"A_log": "static", "dt_bias": "static"}

    def __init__(self, d: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.empty(d, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(d, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.A_log)
        nn.init.constant_(self.dt_bias, math.log(math.expm1(-0.5 * math.log(0.2))))

    def delta(self) -> Tensor:
        return F.softplus(self.dt_bias)

    def decay(self) -> Tensor:
        return torch.exp(-self.delta() * torch.exp(self.A_log))

    def forward(self, h: Tensor, Be: Tensor) -> Tensor:
        """u (B, T, D) from the state h and the projected input B e, in h's dtype."""
        return (self.decay() * upcast(h) + self.delta() * upcast(Be)).to(h.dtype)


class LoopAttention(nn.Module):
    """Causal attention with RMS-normalised queries and keys, rotary positions, and value embeddings in some layers:
    v <- v + 2 sigmoid(gate(x)) * value, one gate a head, from the first channels of x.
    """

    param_roles = {"value_gate.weight": "static"}

    def __init__(self, d_model: int, n_head: int, gated: bool, eps: float) -> None:
        super().__init__()
        self.d_head, self.eps = d_model // n_head, eps
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.value_gate = nn.Linear(min(GATED, d_model), n_head, bias=False) if gated else None

    def _turned(self, projection: nn.Linear, x: Tensor, rope: Tensor) -> Tensor:
        weight = halves(projection.weight, projection.out_features // self.d_head)
        return rms_norm(rotate_halves(self._heads(F.linear(x, weight)), rope), None, self.eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head)).transpose(-2, -3)

    def forward(self, x: Tensor, rope: Tensor, value: Tensor | None) -> Tensor:
        q, k, v = self._turned(self.q, x, rope), self._turned(self.k, x, rope), self._heads(self.v(x))
        if self.value_gate is not None and value is not None:
            gate = 2 * torch.sigmoid(self.value_gate(x[..., : self.value_gate.in_features]))  # (B, T, H)
            v = v + (gate.mT[..., None] * self._heads(value)).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(-2, -3).flatten(-2))


class ReLU2(nn.Module):
    """down(relu(up(x))^2)   (So et al. 2021, arXiv 2109.08668)"""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).square())


class LoopLayer(nn.Module):
    """Attention, then MLP, under a scheme; a value embedding of its own where `vocab_size` is not 0."""

    def __init__(
        self, chosen: Scheme, sites: tuple[Site, Site], n_head: int, d_ff: int, vocab_size: int, eps: float
    ) -> None:
        super().__init__()
        d, n_layer = sites[0].d_model, sites[0].n_layer
        self.param_tuning = chosen.tuning(n_layer, d)
        fs = (LoopAttention(d, n_head, bool(vocab_size), eps), ReLU2(d, d_ff))
        self.attn, self.mlp = (
            Sublayer(f, chosen.residual(site), chosen.branch(site, chosen.covers(site.kind)))
            for f, site in zip(fs, sites, strict=True)
        )
        self.value = nn.Embedding(vocab_size, d) if vocab_size else None

    def forward(self, state: Any, rows: Tensor | None, rope: Tensor, ids: Tensor) -> Any:
        """The next state. `rows` (2, 2, ...): attention and MLP, read and write gains, each (D,) or (B, 1, D)."""
        attn, mlp = (None, None) if rows is None else rows.unbind(0)
        value = None if self.value is None else self.value(ids)
        return self.mlp(self.attn(state, attn, rope, value), mlp)
