"""A looped run on its own validation text: its loss after several numbers of iterations, plain and contrasted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from layerrope.data import load_data
from layerrope.errors import InputError
from layerrope.looping.loopcd import Contrast, loop_losses
from layerrope.looping.looped import MOST_LOOPS, LoopedLM
from layerrope.training.kinds import check_fits
from layerrope.training.trained import load_trained


@dataclass(frozen=True)
class LoopLoss:
    """The loss after so many iterations, nats per counted token."""

    loops: int
    loss: float
    contrasted: float | None
    """under LoopCD; None where the early iteration is not before the last"""


@dataclass(frozen=True)
class LoopCurve:
    """Losses by iterations, fewest first."""

    label: str
    scheme: str
    trained_loops: int
    tokens: int
    rows: tuple[LoopLoss, ...]


def loop_curve(
    source: str | os.PathLike[str],
    loops: Sequence[int],
    contrast: Contrast | None = None,
    *,
    tokens: int = 20_000,
    batch: int = 8,
    device: torch.device | str = "cpu",
) -> LoopCurve:
    """Score the looped run in `source` (or its checkpoint) after each of `loops` iterations, in one pass over the most.

    Raises:
        InputError: no looped run there, its text is gone, or numbers of iterations of no meaning.
    """
    if any(not 1 <= n <= MOST_LOOPS for n in loops):
        raise InputError(f"iterations run from 1 to {MOST_LOOPS}: got {', '.join(map(str, loops))}")
    found = load_trained(source)
    if not isinstance(found.model, LoopedLM):
        raise InputError(f"{source} is no run of a looped model, so it has no iterations to choose")
    data = load_data(found.config.data)
    check_fits(found.config, data)
    batches = [(x.to(device), y.to(device)) for x, y in data.eval_batches(batch, tokens)]
    losses = loop_losses(found.model.to(device), batches, loops, contrast)
    rows = tuple(LoopLoss(n, plain, star) for n, (plain, star) in losses.items())
    model = found.model.config
    return LoopCurve(found.label, model.scheme, model.loops, sum(y.numel() for _, y in batches), rows)
