"""Decoding a looped model against an earlier iteration of itself   (arXiv 2610.02185).

    z* = z_R + omega (z_R - z_early)

omega is fixed, or cap (1 - (p_1 - p_2)) with p_1 and p_2 the two largest probabilities under z_R: where the model is
sure nothing changes. It needs no training; each token costs one coda and head more.

Dimensions: B batch, T position, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layerrope.errors import InputError
from layerrope.looped import LoopedLM
from layerrope.model import sample_token


@dataclass(frozen=True)
class Contrast:
    """How strongly, and against which iteration."""

    omega: float | None = None
    """fixed weight of the difference; None: adaptive"""
    cap: float = 1.0
    """largest adaptive weight"""
    early: int = 1
    """iterations behind z_early"""


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


@torch.no_grad()
def generate(
    model: LoopedLM,
    ids: Tensor,
    n_new: int,
    *,
    loops: int | None = None,
    how: Contrast | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """`ids` (B, T) with `n_new` sampled tokens appended. The text is recomputed for each: there is no cache.

    Args:
        loops: iterations; None: the config's.
        how: the contrast; None decodes plainly.
        temperature, top_k, seed: see `LM.generate`.

    Raises:
        InputError: an empty prompt, or a contrast with an iteration that is not before the last.
    """
    most = model.config.loops if loops is None else loops
    if ids.shape[1] == 0:
        raise InputError("the prompt is empty: give at least one token")
    if how is not None and not 1 <= how.early < most:
        raise InputError(f"the early iteration must lie between 1 and {most - 1}: got {how.early}")
    generator = None if seed is None else torch.Generator(ids.device).manual_seed(seed)
    was_training = model.training
    model.eval()
    for _ in range(n_new):
        counts = [most] if how is None else [how.early, most]
        *early, last = (z[:, -1] for z in model.logits_after(ids, counts))
        z = last if how is None else contrast(last, early[0], how)
        ids = torch.cat((ids, sample_token(z, temperature, top_k, generator)[:, None]), dim=1)
    model.train(was_training)
    return ids
