"""What a looped model costs to train: its iterations are drawn, so FLOPs are means over the draws.

Dimensions: D width, T positions, R iterations of a sequence, k those of them that carry gradient.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from layerrope.looping.looped import LoopedConfig, LoopedLM


def mean_loops(config: LoopedConfig) -> tuple[float, float]:
    """(E R, E k) in training: R is 1 or a Poisson number with mean `loops` if that is larger, k = min(R, truncation).

    >>> [round(x, 3) for x in mean_loops(LoopedConfig(loops=8))]
    [8.0, 3.944]
    """
    mu, most = config.loops, config.truncation
    if not config.draw:
        return float(mu), float(min(mu, most))
    last = mu + 12 * math.isqrt(mu) + 24  # what lies beyond adds less than 1e-12
    chances = [math.exp(r * math.log(mu) - mu - math.lgamma(r + 1)) for r in range(last + 1)]
    drawn = [(max(r, 1), p) for r, p in enumerate(chances)]
    return sum(r * p for r, p in drawn), sum(min(r, most) * p for r, p in drawn)


def looked_up(model: LoopedLM) -> int:
    """Parameters that are looked up and never multiplied: value embeddings (the token embedding is the head too)."""
    return sum(p.numel() for name, p in model.named_parameters() if name.endswith(".value.weight"))


def loop_flops(model: LoopedLM) -> int:
    """Mean FLOPs of a training token: every matrix product and causal attention, a multiply-add being two.

    What runs once costs 6 a parameter, as in a plain decoder. Of the core, 2 a parameter for each iteration and 4 for
    each that carries gradient: truncation saves the backward pass of the others.
    """
    config = model.config
    core = range(config.prelude, config.prelude + config.core)
    inside = sum(p.numel() for i in core for n, p in model.layers[i].named_parameters() if n != "value.weight")
    once = sum(p.numel() for p in model.parameters()) - looked_up(model) - inside
    forward, backward = mean_loops(config)
    attention = 2 * config.d_model * config.seq_len * (3 * (config.n_layer - config.core))
    attention += 2 * config.d_model * config.seq_len * config.core * (forward + 2 * backward)
    return round(6 * once + inside * (2 * forward + 4 * backward) + attention)


def loop_loss(model: LoopedLM, ids: Tensor) -> Tensor:
    """A loss that keeps for its backward pass what the longest training sequence keeps: `truncation` iterations.

    Sets the model to evaluation mode, so that nothing is drawn.
    """
    (logits,) = model.eval().logits_after(ids, [min(model.config.truncation, model.config.loops)])
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
