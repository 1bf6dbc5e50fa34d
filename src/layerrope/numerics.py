"""What low precision costs a trained model: its loss in bf16, fp16, int8, int4 and fp8, and where its stream is large.

bf16 and fp16 cast the whole model (norms and gains stay fp32, as in training). int8, int4 and fp8 round the matrices
only, as weight-only quantisation does; w8a8 rounds what the matrices are multiplied with to int8 too, a scale for each
token. All of them compute in fp32: the loss shows the rounding, not a kernel.

Dimensions: B batch, T position, D width, L layers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from layerrope.errors import one_of
from layerrope.exporting.proof import trace
from layerrope.model import IGNORED, LM

GROUP = 32
"""Input channels that share one scale in int4."""


# ------------------------------------------------------------------------------------------------- rounding of matrices
def round_int(weight: Tensor, bits: int, group: int | None = None) -> Tensor:
    """`weight` (out, in) on a symmetric grid of 2^bits - 1 values, one scale a row or group of input channels."""
    top = 2 ** (bits - 1) - 1
    size = weight.shape[1] if group is None else math.gcd(group, weight.shape[1])
    parts = weight.float().unflatten(1, (-1, size))
    scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-12) / top
    return ((parts / scale).round().clamp(-top, top) * scale).flatten(1).to(weight.dtype)


def round_fp8(weight: Tensor) -> Tensor:
    """`weight` (out, in) in float8 e4m3, one scale for each row."""
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return ((weight.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "int8": partial(round_int, bits=8),
    "w8a8": partial(round_int, bits=8),
    "int4": partial(round_int, bits=4, group=GROUP),
    "fp8": round_fp8,
}
CASTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = (*CASTS, *WEIGHTS)


def in_format(model: LM, name: str) -> LM:
    """A copy of `model` in the format. Embedding and head keep fp32 under the weight-only formats."""
    made = copy.deepcopy(model).float().eval()
    if one_of("format", name, FORMATS) in CASTS:
        return made.to(CASTS[name])
    with torch.no_grad():
        for module in made.layers.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(WEIGHTS[name](module.weight))
                if name == "w8a8":
                    module.register_forward_pre_hook(_round_input)
    return made


def _round_input(matrix: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The input (..., in) of a matrix in int8, a scale for each token."""
    x, *rest = given
    return (round_int(x.flatten(0, -2), 8).view_as(x), *rest)


# ---------------------------------------------------------------------------------------------------------- measuring
@dataclass(frozen=True)
class Row:
    """One format's cost."""

    format: str
    loss: float
    """nats per counted token"""
    change: float
    """loss minus fp32's"""
    finite: bool


@dataclass(frozen=True)
class Numerics:
    """A model in every format."""

    rows: tuple[Row, ...]
    largest: tuple[float, ...]
    """largest absolute value of the stream after each layer, fp32, over the batches"""
    rms: tuple[float, ...]
    """its root mean square after each layer"""


@torch.no_grad()
def numerics(model: LM, batches: Sequence[tuple[Tensor, Tensor]], formats: Sequence[str] = FORMATS) -> Numerics:
    """The loss of `model` over `batches` of (ids, targets), (B, T) each, in each of `formats`.

    Raises:
        InputError: an unknown format.
    """
    plain = _loss(in_format(model, "fp32"), batches)
    rows = []
    for name in formats:
        loss = _loss(in_format(model, name), batches)
        rows.append(Row(name, loss, loss - plain, math.isfinite(loss)))
    return Numerics(tuple(rows), *_sizes(in_format(model, "fp32"), batches))


def _loss(model: LM, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
    total = count = 0.0
    for ids, targets in batches:
        loss, counted = model.loss_sum(ids, targets)
        total, count = total + float(loss), count + float(counted)
    return total / count if count else math.nan


def _sizes(model: LM, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(largest absolute value, RMS) of what each layer leaves, whatever the scheme's state is made of."""
    largest = [0.0] * len(model.layers)
    squares, counts = [0.0] * len(model.layers), [0] * len(model.layers)
    for ids, _ in batches:
        for i, state in enumerate(trace(model.layers, partial(model, ids)).states):
            for t in state:
                largest[i] = max(largest[i], float(t.abs().max()))
                squares[i] += float(t.double().square().sum())
                counts[i] += t.numel()
    return tuple(largest), tuple(math.sqrt(s / n) if n else math.nan for s, n in zip(squares, counts, strict=True))


def text_batches(ids: Sequence[int], seq_len: int, batch_size: int, most: int) -> list[tuple[Tensor, Tensor]]:
    """Windows of a text's ids as (ids, targets) batches, at most `most` positions in all; the last id has no target."""
    used = torch.tensor(list(ids[: most + 1]))
    inputs, targets = used[:-1], used[1:]
    pad = -len(inputs) % seq_len
    x = nn.functional.pad(inputs, (0, pad)).view(-1, seq_len)
    y = nn.functional.pad(targets, (0, pad), value=IGNORED).view(-1, seq_len)
    return list(zip(x.split(batch_size), y.split(batch_size), strict=True))
