"""Decoding a looped model against an earlier iteration of itself   (arXiv 2610.02185).

    z* = z_R + omega (z_R - z_early)

omega is fixed, or cap (1 - (p_1 - p_2)) with p_1 and p_2 the two largest probabilities under z_R: where the model is
sure nothing changes. It needs no training; each token costs one coda and head more.

Dimensions: B batch, T position, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from layerrope.errors import InputError
from layerrope.looping.looped import MOST_LOOPS, LoopedLM
from layerrope.model import IGNORED, check_drawing, sample_token
from layerrope.training.evaluation import undisturbed


@dataclass(frozen=True)
class Contrast:
    """How strongly, and against which iteration."""

    omega: float | None = None
    """fixed weight of the difference; None: adaptive"""
    cap: float = 1.0
    """largest adaptive weight"""
    early: int = 1
    """iterations behind z_early"""

    def __post_init__(self) -> None:
        for name, value in (("omega", self.omega), ("cap", self.cap)):
            if value is not None and not math.isfinite(value):
                raise InputError(f"the contrast's {name} must be a finite number: got {value}")
        if self.early < 1:
            raise InputError(f"the early iteration must be at least 1: got {self.early}")

    def check_before(self, last: int) -> None:
        """Raise InputError unless the early iteration comes before the last one."""
        if self.early >= last:
            raise InputError(f"the early iteration must come before the last, {last}: got {self.early}")


def read_contrast(words: str, early: int = 1) -> Contrast:
    """`adaptive`, or a fixed weight as a number, as one writes it on a command line. Raises InputError."""
    if words == "adaptive":
        return Contrast(early=early)
    try:
        return Contrast(omega=float(words), early=early)
    except ValueError as error:
        raise InputError(f"a contrast is `adaptive` or a finite number: got {words!r}") from error


def contrast(last: Tensor, early: Tensor, how: Contrast) -> Tensor:
    """z* from logits (..., V) after all iterations and after the early ones, in at least fp32."""
    last = last.to(torch.promote_types(last.dtype, torch.float32))
    return last + weight(last, how) * (last - early)


def weight(last: Tensor, how: Contrast) -> Tensor:
    """omega (..., 1) of logits (..., V)."""
    if how.omega is not None:
        return last.new_tensor(how.omega)
    best = last.softmax(-1).topk(2, dim=-1).values
    return how.cap * (1 - (best[..., :1] - best[..., 1:]))


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn from a looped model. Raises InputError for settings of no meaning."""

    loops: int | None = None
    """iterations; None: the config's"""
    how: Contrast | None = None
    """the contrast; None decodes plainly"""
    temperature: float = 1.0
    top_k: int | None = None
    """see `LM.generate`"""

    def counts(self, model: LoopedLM) -> list[int]:
        """The iterations after which logits are needed, the last of them last."""
        most = model.config.loops if self.loops is None else self.loops
        if not 1 <= most <= MOST_LOOPS:
            raise InputError(f"a looped model runs at least 1 iteration and at most {MOST_LOOPS}: got {most}")
        if self.how is None:
            return [most]
        self.how.check_before(most)
        return [self.how.early, most]


@torch.no_grad()
def stream(model: LoopedLM, ids: Tensor, draw: Drawing, generator: torch.Generator | None) -> Iterator[Tensor]:
    """One new token (B,) after the other for the texts `ids` (B, T), which are recomputed for each: there is no cache.

    The model must be in evaluation mode.
    """
    counts = draw.counts(model)
    while True:
        *early, last = (z[:, -1] for z in model.logits_after(ids, counts))
        z = last if draw.how is None else contrast(last, early[0], draw.how)
        token = sample_token(z, draw.temperature, draw.top_k, generator)
        yield token
        ids = torch.cat((ids, token[:, None]), dim=1)


@torch.no_grad()
def generate(
    model: LoopedLM,
    ids: Tensor,
    max_new_tokens: int,
    *,
    loops: int | None = None,
    how: Contrast | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """`ids` (B, T) with `max_new_tokens` sampled tokens appended.

    Args:
        loops, how, temperature, top_k: see `Drawing`.
        seed: of the sampling; None draws from torch's generator.

    Raises:
        InputError: an empty prompt, settings of no meaning, or a contrast with an iteration that is not before the
            last.
    """
    check_drawing(max_new_tokens, temperature, top_k, seed)
    draw = Drawing(loops, how, temperature, top_k)
    draw.counts(model)
    if ids.shape[1] == 0:
        raise InputError("the prompt is empty: give at least one token")
    generator = None if seed is None else torch.Generator(ids.device).manual_seed(seed)
    was_training = model.training
    model.eval()
    new = [token[:, None] for token in islice(stream(model, ids, draw, generator), max_new_tokens)]
    model.train(was_training)
    return torch.cat([ids, *new], dim=1)


@torch.no_grad()
def loop_losses(
    model: LoopedLM, batches: Iterable[tuple[Tensor, Tensor]], loops: Sequence[int], how: Contrast | None = None
) -> dict[int, tuple[float, float | None]]:
    """Mean loss after each number of iterations, nats per counted token: plain, and under the contrast z*.

    Args:
        batches: (ids, targets), each (B, T), on the model's device.
        loops: numbers of iterations, from 1.
        how: the contrast, for every number above `how.early`.

    Raises:
        InputError: no number, or one below 1; a contrast with an iteration that is not before the last; no counted
            token.
    """
    wanted = sorted(set(loops))
    if not wanted or wanted[0] < 1:
        raise InputError(f"give numbers of iterations from 1: got {', '.join(map(str, wanted)) or 'none'}")
    if how is not None:
        how.check_before(wanted[-1])
    counts = sorted({*wanted, how.early}) if how is not None else wanted
    sums, n = torch.zeros(len(wanted), 2, dtype=torch.float64), 0
    with undisturbed(model):
        for ids, targets in batches:
            found = dict(zip(counts, model.logits_after(ids, counts), strict=True))
            n += int((targets != IGNORED).sum())
            sums += torch.tensor([_losses(found, count, targets, how) for count in wanted], dtype=torch.float64)
    if not n:
        raise InputError("there is no counted token to score: give more text")
    contrasted = {count: how is not None and count > how.early for count in wanted}
    means = dict(zip(wanted, (sums / n).tolist(), strict=True))
    return {count: (plain, star if contrasted[count] else None) for count, (plain, star) in means.items()}


def _losses(found: Mapping[int, Tensor], count: int, targets: Tensor, how: Contrast | None) -> tuple[float, float]:
    """Summed losses of the logits after `count` iterations: as they are, and contrasted where they can be."""
    z = found[count]
    star = contrast(z, found[how.early], how) if how is not None and count > how.early else z
    return _summed(z, targets), _summed(star, targets)


def _summed(z: Tensor, targets: Tensor) -> float:
    return float(F.cross_entropy(z.flatten(0, 1).double(), targets.flatten(), ignore_index=IGNORED, reduction="sum"))
