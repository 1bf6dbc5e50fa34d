"""The study of looping: its sizes, and three ways to spend a budget on one shape.

Every way has the same parameters. Looped, the core runs `loops` times in the mean; once, the model is a plain decoder
and costs less a token, so it stands there twice: on as many tokens, and on as many FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from layerrope.accounting import flops_per_token
from layerrope.data import DataConfig
from layerrope.errors import one_of
from layerrope.looping.looped import LoopedConfig, looped_tiers
from layerrope.studies.plan import Cell
from layerrope.studies.scales import Scale
from layerrope.training.kinds import LoopedTrainConfig

LOOP_SIZES: dict[str, LoopedConfig] = {
    "loop-tiny": LoopedConfig(1, 1, 1, 3, n_head=1, d_model=8, d_ff=16, seq_len=16),
    **looped_tiers,
}
"""Looped sizes by name: the tiers, and a shape that trains in a second."""

TOKENS = {"parcae-140m": "11.2B", "parcae-370m": "29.6B", "parcae-770m": "61.6B", "parcae-1.3b": "104B"}
"""What the paper trains its sizes on (arXiv 2604.12946)."""

ONCE: dict[str, Any] = {"model.loops": 1, "model.draw": False}
"""The fields that make a looped model a plain decoder of the same parameters."""


@dataclass(frozen=True)
class LoopScale:
    """What the study takes at a scale, beyond or in place of what other studies take."""

    size: str
    """name in `LOOP_SIZES`"""
    lrs: tuple[float, ...] = ()
    """peak rates; none: the scale's"""
    text: tuple[str, str] | None = None
    """data and tokenizer; None: the scale's"""
    settings: dict[str, Any] | None = None
    """of the run, in place of the scale's"""


_PARCAE: dict[str, Any] = {
    "batch_size": 256,
    "optimizer": "muon",
    "betas": (0.8, 0.95),
    "adam_eps": 1e-10,
    "weight_decay": 0.2,
    "clip": 1.0,
    "schedule": "wsd",
    "warmup": 0.0,
    "decay": 0.5,
    "min_lr": 0.0,
    "precision": "bf16",
    "compile": True,
    "eval_tokens": 10_000_000,
    "keep_checkpoints": 1,
}
"""The recipe of arXiv 2604.12946, as far as this trainer has its parts: its weight decay also falls to 0, its Muon is
another variant. Muon's updates have AdamW's size here, so the rates that are tried reach below the paper's 8e-3."""

LOOP_SCALES: dict[str, LoopScale] = {
    "tiny": LoopScale("loop-tiny"),
    "micro": LoopScale("loop-micro"),
    "paper": LoopScale("parcae-140m", (1e-3, 2e-3, 4e-3, 8e-3), ("hf:HuggingFaceFW/fineweb-edu", "bpe:32768"), _PARCAE),
}


def loop_scale(name: str) -> LoopScale:
    return LOOP_SCALES[one_of("scale", name, LOOP_SCALES)]


def loop_base(scale: Scale, own: LoopScale) -> LoopedTrainConfig:
    """The run from which every run of the study is made."""
    source, tokenizer = own.text or (scale.data, scale.tokenizer)
    model = LOOP_SIZES[own.size]
    data = DataConfig(source=source, tokenizer=tokenizer, seq_len=model.seq_len)
    settings = own.settings or {**scale.settings, "batch_size": scale.batch_size}
    return LoopedTrainConfig(model=model, data=data, **settings)


def ways(model: LoopedConfig) -> dict[str, dict[str, Any]]:
    """What a reader calls a way to run `model`, and the fields that make it."""
    return {f"{model.loops} loops": {}, "once, equal tokens": ONCE, "once, equal FLOPs": ONCE}


def at_equal_flops(cell: Cell, model: LoopedConfig) -> Cell:
    """The cell on as many more steps as its model costs less than `model`, where its way asks for that."""
    if cell.setting["run"] != "once, equal FLOPs":
        return cell
    once = replace(model, loops=1, draw=False)
    ratio = flops_per_token(model) / flops_per_token(once)
    return replace(cell, fields={**cell.fields, "steps": round(cell.fields["steps"] * ratio)})
