"""A model's layers on one batch, runnable in any order and from any state; nothing of the model is changed.

Dimensions: B batch, T position, D width, S streams, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from layerrope.gains import KINDS
from layerrope.model import IGNORED, LM
from layerrope.residual import Sublayer, WithX0
from layerrope.rotary import rotary_table

Batches: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""(ids, targets), each (B, T) on the model's device; targets that are `IGNORED` are not counted."""


@dataclass(frozen=True)
class Step:
    """One sublayer as it ran: `x, rest = read(before); y = branch(f, x, gains); after = write(rest, y)`."""

    layer: int
    kind: str
    x: Tensor
    """what it read, (B, T, D)"""
    y: Tensor
    """what its branch gave, gains included, (B, T, D)"""
    after: Any
    """the state after it"""


@dataclass(frozen=True)
class Trunk:
    """The layers of `model` with all that they are called with on one batch.

    A layer is its weights together with its depth constants and its rows of the gain table: in another order they
    move with it.
    """

    model: LM
    first: Any
    """the state before the first layer"""
    rows: tuple[Tensor | None, ...]
    rope: Tensor | None

    @classmethod
    def of(cls, model: LM, ids: Tensor) -> Trunk:
        config = model.config
        rope = None
        if config.position == "rotary":
            rope = rotary_table(ids.shape[1], config.d_head, config.rope_base, 0, ids.device)
        return cls(model, model.ends.expand(model._embed(ids, 0)), model.gain_rows(ids.device), rope)

    @property
    def n_layer(self) -> int:
        return len(self.rows)

    def steps(self, layer: int, state: Any) -> Iterator[Step]:
        """The sublayers of one layer, run on `state`."""
        mine = self.rows[layer]
        rows = (None, None) if mine is None else mine.unbind(0)
        for kind, row, context in zip(KINDS, rows, ((self.rope,), ()), strict=True):
            sublayer = self.model.layers[layer].get_submodule(kind)
            assert isinstance(sublayer, Sublayer)
            x, rest = sublayer.residual.read(state)
            y = sublayer.branch(sublayer.f, x, row, *context)
            state = sublayer.residual.write(rest, y)
            yield Step(layer, kind, x, y, state)

    def walk(self) -> Iterator[Step]:
        """All sublayers in the order of the model."""
        state = self.first
        for layer in range(self.n_layer):
            for step in self.steps(layer, state):
                state = step.after
                yield step

    def layer(self, layer: int, state: Any) -> Any:
        """The state after one layer."""
        for step in self.steps(layer, state):
            state = step.after
        return state

    def run(self, order: Iterable[int], state: Any) -> Any:
        """The state after the layers of `order`, one after the other."""
        for layer in order:
            state = self.layer(layer, state)
        return state

    def states(self) -> list[Any]:
        """The L + 1 states: before the first layer and after each."""
        found = [self.first]
        for layer in range(self.n_layer):
            found.append(self.layer(layer, found[-1]))
        return found

    def stream(self, state: Any) -> Tensor:
        """`state` as the final norm would read it if the network ended here: (B, T, D)."""
        return self.model.ends.reduce(state)


# --------------------------------------------------------------------------------------------------- moving a stream
def displace(model: LM, state: Any, by: Tensor) -> Any | None:
    """The state whose stream is larger by `by` (B, T, D), or None where the scheme has no such state.

    Several streams all move by the same. Attention Residuals mix their sources with weights that depend on them, so
    there is nothing to add to.
    """
    if isinstance(model.ends, WithX0):
        h, x0 = state
        return (h + by).to(h.dtype), x0
    if not isinstance(state, Tensor):
        return None
    if state.ndim == by.ndim:
        return (state + by).to(state.dtype)
    share = model.ends.reduce(torch.ones_like(state[:1, :1])).flatten()[0]  # of n streams that move by 1 each
    return (state + (by / share)[..., None, :]).to(state.dtype)


def has_stream(model: LM) -> bool:
    """Is there a stream that something can be added to?"""
    h = model.embed.weight[:1, None]
    return displace(model, model.ends.expand(h), h) is not None


# ------------------------------------------------------------------------------------------------------ small helpers
def counted(targets: Tensor) -> Tensor:
    """Which positions count, (B, T) of booleans: those with a target."""
    return targets != IGNORED


def window_losses(model: LM, stream: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of each window in nats, (B,) float64, from the stream (B, T, D)."""
    logits = model.logits(stream)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view_as(targets).double().sum(-1)


def n_counted(batches: Batches) -> int:
    return sum(int(counted(targets).sum()) for _, targets in batches)
