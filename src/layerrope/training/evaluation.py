"""Evaluation that leaves no trace: same weights, same random numbers, same modes, whatever the batch size."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from layerrope.model import IGNORED
from layerrope.training.kinds import Model
from layerrope.training.machine import autocast
from layerrope.vision.vit import ViT


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module's mode and torch's random state are as they were."""
    modes = {module: module.training for module in model.modules()}
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=[device.index or 0 for device in devices]):
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


def evaluate(
    model: Model,
    batches: Iterable[tuple[Tensor, Tensor]],
    precision: str = "fp32",
    add: Callable[[Sequence[float]], Sequence[float]] = list,
) -> float:
    """The mean loss in nats per counted token over `batches` of (ids, targets) (B, T).

    Sums and counts are added in float64, so the result does not depend on how the windows are batched. Smaller
    batches are filled up to the first one's size with ignored rows: a compiled model sees one shape. NaN when no
    target is counted. `add` sums numbers over the ranks of a run, each of which has batches of its own.
    """
    device = next(model.parameters()).device
    total, count, rows = 0.0, 0, None
    with undisturbed(model), torch.no_grad(), autocast(device, precision):
        for ids, targets in batches:
            rows = len(ids) if rows is None else rows
            loss, counted = model.loss_sum(_filled(ids, rows, 0).to(device), _filled(targets, rows, IGNORED).to(device))
            total, count = total + float(loss), count + int(counted)
    total, count = add((total, count))
    return total / count if count else float("nan")


def shared(batches: Iterable[tuple[Tensor, Tensor]], rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every `world`-th of `batches`, from the `rank`-th on. All ranks get equally many: where the batches run out, one
    without counted targets fills up, since ranks that gather weights must run as many forward passes as the others."""
    rest = iter(batches)
    while chunk := list(itertools.islice(rest, world)):
        ids, targets = chunk[min(rank, len(chunk) - 1)]
        yield ids, targets if rank < len(chunk) else torch.full_like(targets, IGNORED)


def accuracy(model: ViT, batches: Iterable[tuple[Tensor, Tensor]], precision: str = "fp32") -> float:
    """The share of counted labels that get the largest logit, over `batches` of (images, labels)."""
    device = next(model.parameters()).device
    right, count, rows = 0, 0, None
    with undisturbed(model), torch.no_grad(), autocast(device, precision):
        for images, labels in batches:
            rows = len(images) if rows is None else rows
            best = model(_filled(images, rows, 0).to(device))[: len(labels)].argmax(-1).cpu()
            right, count = right + int((best == labels).sum()), count + int((labels != IGNORED).sum())
    return right / count if count else float("nan")


def _filled(x: Tensor, rows: int, value: int) -> Tensor:
    """`x` (B, ...) with rows of `value` added up to `rows`."""
    return torch.cat((x, x.new_full((max(0, rows - len(x)), *x.shape[1:]), value)))
