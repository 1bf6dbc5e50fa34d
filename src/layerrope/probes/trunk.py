"""A model's layers on one batch, runnable in any order and from any state; nothing of the model is changed.

Decoders, looped decoders and Vision Transformers alike. Of a looped model every execution of a layer is one, at its
depth: prelude, core, core, ..., coda.

Dimensions: B batch, T position, D width, S streams, L executed layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.gains import KINDS
from layerrope.looping.looped import LoopedLM
from layerrope.model import IGNORED, LM
from layerrope.residual import Sublayer, WithX0
from layerrope.rotary import rotary_table
from layerrope.stream import executed, gain_rows
from layerrope.training.kinds import Model
from layerrope.vision.vit import ViT

Batches: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""(ids, targets), each (B, T), or (images, labels), (B, C, height, width) and (B,), on the model's device; targets that
are `IGNORED` are not counted."""


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


class Looping(NamedTuple):
    """A state inside a loop: that of its layers, and what enters every iteration."""

    state: Any
    Be: Tensor


@dataclass(frozen=True)
class Place:
    """One executed layer: its weights, its rows of the gain table, what else its sublayers are called with."""

    layer: nn.Module
    rows: Tensor | None
    contexts: tuple[tuple[Any, ...], tuple[Any, ...]]


Enter: TypeAlias = Callable[[Any], Any]
"""What happens to the state in front of a layer."""


@dataclass(frozen=True)
class Trunk:
    """The layers of `model` with all that they are called with on one batch.

    A layer is its weights together with its depth constants and its rows of the gain table: in another order they
    move with it. What a looped model does between its parts (inject the input, C) belongs to the depth and stays there.
    """

    model: Model
    first: Any
    """the state before the first layer"""
    places: tuple[Place, ...]
    enters: dict[int, Enter]
    """by depth, L for the end"""

    @classmethod
    def of(cls, model: Model, ids: Tensor) -> Trunk:
        rows, layers = gain_rows(model, ids.device), [model.layers[i] for i in executed(model)]
        contexts = _contexts(model, layers, ids)
        places = (Place(*each) for each in zip(layers, rows, contexts, strict=True))
        enters = _loop_enters(model) if isinstance(model, LoopedLM) else {}
        return cls(model, model.ends.expand(_embedded(model, ids)), tuple(places), enters)

    @property
    def n_layer(self) -> int:
        return len(self.places)

    def enter(self, depth: int, state: Any) -> Any:
        """The state that the layer at `depth` finds; at depth L, the one that the network ends with."""
        return self.enters[depth](state) if depth in self.enters else state

    def steps(self, layer: int, state: Any) -> Iterator[Step]:
        """The sublayers of one layer, run on `state`."""
        place = self.places[layer]
        rows = (None, None) if place.rows is None else place.rows.unbind(0)
        for kind, row, context in zip(KINDS, rows, place.contexts, strict=True):
            sublayer = place.layer.get_submodule(kind)
            assert isinstance(sublayer, Sublayer)
            x, rest = sublayer.residual.read(inner(state))
            y = sublayer.branch(sublayer.f, x, row, *context)
            state = _with(state, sublayer.residual.write(rest, y))
            yield Step(layer, kind, x, y, state)

    def walk(self) -> Iterator[Step]:
        """All sublayers in the order of the model."""
        state = self.first
        for layer in range(self.n_layer):
            for step in self.steps(layer, self.enter(layer, state)):
                state = step.after
                yield step

    def layer(self, layer: int, state: Any) -> Any:
        """The state after the two sublayers of one layer."""
        for step in self.steps(layer, state):
            state = step.after
        return state

    def run(self, order: Iterable[int | None], state: Any, start: int = 0) -> Any:
        """The state at the end of the network after the layers of `order`, at the depths from `start` on.

        None leaves its depth without a layer.
        """
        depth = start
        for layer in order:
            state = self.enter(depth, state)
            state = state if layer is None else self.layer(layer, state)
            depth += 1
        return self.enter(depth, state) if depth == self.n_layer else state

    def states(self) -> list[Any]:
        """The L + 1 states: before the first layer and after each."""
        found = [self.first]
        for layer in range(self.n_layer):
            found.append(self.layer(layer, self.enter(layer, found[-1])))
        found[-1] = self.enter(self.n_layer, found[-1])
        return found

    def stream(self, state: Any) -> Tensor:
        """`state` as the final norm would read it if the network ended here: (B, T, D)."""
        return self.model.ends.reduce(inner(state))


def depth_of(model: Model) -> int:
    """L, executed layers."""
    return len(executed(model))


def inner(state: Any) -> Any:
    """The state that layers read."""
    return state.state if isinstance(state, Looping) else state


def _with(state: Any, after: Any) -> Any:
    return Looping(after, state.Be) if isinstance(state, Looping) else after


def _embedded(model: Model, ids: Tensor) -> Tensor:
    """The stream before the first layer, (B, T, D)."""
    if isinstance(model, ViT):
        return model.tokens(ids)
    return model.embed(ids) if isinstance(model, LoopedLM) else model._embed(ids, 0)


def _contexts(model: Model, layers: Sequence[nn.Module], ids: Tensor) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """What attention and MLP of every executed layer are called with beside x."""
    if isinstance(model, ViT):
        return [((), ())] * len(layers)
    config, rope = model.config, None
    if isinstance(model, LoopedLM) or model.config.position == "rotary":
        rope = rotary_table(ids.shape[1], config.d_model // config.n_head, config.rope_base, 0, ids.device)
    if isinstance(model, LM):
        return [((rope,), ())] * len(layers)
    values = [getattr(layer, "value", None) for layer in layers]
    return [((rope, None if value is None else value(ids)), ()) for value in values]


def _loop_enters(model: LoopedLM) -> dict[int, Enter]:
    """Where the loop begins, where it begins again, and where it ends."""
    p, n, loops, ends = model.config.prelude, model.config.core, model.config.loops, model.ends

    def begin(state: Any) -> Looping:
        Be = model.B(model.prelude_norm(ends.reduce(state)))
        return Looping(ends.expand(model.inject(torch.zeros_like(Be), Be)), Be)

    def again(state: Looping) -> Looping:
        return Looping(ends.expand(model.inject(ends.reduce(state.state), state.Be)), state.Be)

    def leave(state: Looping) -> Any:
        h = ends.reduce(state.state)
        return ends.expand(model.C(h).to(h.dtype))

    return {p: begin, **{p + t * n: again for t in range(1, loops)}, p + loops * n: leave}


# --------------------------------------------------------------------------------------------------- moving a stream
def displace(model: Model, state: Any, by: Tensor) -> Any | None:
    """The state whose stream is larger by `by` (B, T, D), or None where the scheme has no such state.

    Several streams all move by the same. Attention Residuals mix their sources with weights that depend on them, so
    there is nothing to add to.
    """
    if isinstance(state, Looping):
        return Looping(displace(model, state.state, by), state.Be)
    if isinstance(model.ends, WithX0):
        h, x0 = state
        return (h + by).to(h.dtype), x0
    if not isinstance(state, Tensor):
        return None
    if state.ndim == by.ndim:
        return (state + by).to(state.dtype)
    share = model.ends.reduce(torch.ones_like(state[:1, :1])).flatten()[0]  # of n streams that move by 1 each
    return (state + (by / share)[..., None, :]).to(state.dtype)


def has_stream(model: Model) -> bool:
    """Is there a stream that something can be added to?"""
    h = next(model.parameters()).new_zeros(1, 1, model.config.d_model)
    return displace(model, model.ends.expand(h), h) is not None


# ------------------------------------------------------------------------------------------------------ small helpers
def scored(targets: Tensor) -> Tensor:
    """Which targets count: booleans of their shape."""
    return targets != IGNORED


def counted(model: Model, targets: Tensor) -> Tensor:
    """Which positions count, (B, T) of booleans: those with a target; of a counted image, all."""
    here = scored(targets)
    return here[:, None].expand(-1, model.config.seq_len) if isinstance(model, ViT) else here


def window_losses(model: Model, stream: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of each window or image in nats, (B,) float64, from the stream (B, T, D)."""
    logits = model.logits(stream)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(len(targets), -1).double().sum(-1)


def n_scored(batches: Batches) -> int:
    """Targets that count: tokens, or images."""
    return sum(int(scored(targets).sum()) for _, targets in batches)


def n_counted(model: Model, batches: Batches) -> int:
    """Positions that count."""
    return sum(int(counted(model, targets).sum()) for _, targets in batches)
