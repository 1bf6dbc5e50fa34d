"""nanochat's stream: each layer first rescales the stream and adds back the embedding.

Dimensions: B batch, T position, D width. The state is (h, x0), both (B, T, D).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from layerrope.norms import KeepFp32
from layerrope.residual.base import Ends, Residual, Site

State = tuple[Tensor, Tensor]


def x0_start(layer: int, n_layer: int) -> tuple[float, float]:
    """(r, z) of a layer at the start: r from 1.15 down to 1.05, z from 0.20 down to 0.05, linear in depth.

    >>> [tuple(round(v, 4) for v in x0_start(i, 3)) for i in range(3)]
    [(1.15, 0.2), (1.1, 0.125), (1.05, 0.05)]
    """
    at = layer / (n_layer - 1) if n_layer > 1 else 0.0
    return 1.15 - 0.10 * at, 0.20 - 0.15 * at


class Blend(KeepFp32, Residual):
    """h <- r h + z x0, then h <- h + y   (nanochat gpt.py; r and z are learned, one pair a layer)

    Stands at the attention of each layer.
    """

    param_roles = {"mix": "gain"}

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.start = x0_start(site.layer, site.n_layer)
        self.mix = nn.Parameter(torch.empty(2, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.mix.copy_(torch.tensor(self.start))

    def read(self, state: State) -> tuple[Tensor, State]:
        h, x0 = state
        r, z = self.mix.unbind(0)
        h = (r * h + z * x0).to(h.dtype)
        return h, (h, x0)

    def write(self, rest: State, y: Tensor) -> State:
        h, x0 = rest
        return h + y.to(h.dtype), x0


class Carry(Residual):
    """h <- h + y, with x0 beside it. Stands at the MLP of each layer."""

    def read(self, state: State) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, rest: State, y: Tensor) -> State:
        h, x0 = rest
        return h + y.to(h.dtype), x0


def blend(site: Site) -> Residual:
    return Blend(site) if site.kind == "attn" else Carry()


class WithX0(Ends):
    """x0 = norm(embedding), which is also the first stream; the norm has no weight."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm = site.norm(site.d_model, weight=False)

    def expand(self, h: Tensor) -> State:
        x0 = self.norm(h)
        return x0, x0

    def reduce(self, state: State) -> Tensor:
        return state[0]
