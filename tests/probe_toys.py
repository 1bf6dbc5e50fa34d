"""Models whose layers do something known, for the probes' tests."""

from __future__ import annotations

import copy

import torch
from nets import perturbed, tiny, token_ids
from torch import Tensor, nn

from layerrope.model import LM
from layerrope.probes import Batches


def batches(windows: int = 7, rows: int = 3, seed: int = 5) -> Batches:
    ids, targets = token_ids(windows, 12, seed=seed), token_ids(windows, 12, seed=seed + 1)
    return list(zip(ids.split(rows), targets.split(rows), strict=True))


class Linear(nn.Module):
    """y = W x, the same at every position."""

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        self.W = nn.Parameter(W)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W.T


class CausalMean(nn.Module):
    """y_s = mean of x_0 ... x_s"""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(-2) / torch.arange(1, x.shape[-2] + 1)[:, None]


def plain(*fs: nn.Module, **changes: object) -> LM:
    """h <- h + f(h), one layer for each f; attention writes nothing."""
    model = LM(tiny("rezero:start=1", n_layer=len(fs), **changes))
    for layer, f in zip(model.layers, fs, strict=True):
        nn.init.zeros_(layer.get_parameter("attn.f.o.weight"))
        layer.get_submodule("mlp").f = f
    return model


def identities(spec: str = "prenorm") -> LM:
    """A perturbed model whose sublayers all write zero."""
    model = perturbed(spec)
    for name, p in model.named_parameters():
        if name.endswith(("f.o.weight", "f.down.weight")):
            nn.init.zeros_(p)
    return model


class Rows(nn.Module):
    """A gain table with these rows."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, n_depth: int) -> Tensor:
        return self.rows[:n_depth]


def reordered(model: LM, order: list[int]) -> LM:
    """A model of its own that holds copies of these layers, with their rows of the gain table, in this order."""
    made = copy.deepcopy(model)
    made.layers = nn.ModuleList(copy.deepcopy(model.layers[i]) for i in order)
    if model.gains is not None:
        made.gains = Rows(model.gains(len(model.layers)).detach()[order])
    return made
