"""The three scales at which every study can be asked for: tiny (seconds), micro (CPUs), paper."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from layerrope.comparing.rates import GRID
from layerrope.config import PAPER_EMBED_STD, ModelConfig, tiers
from layerrope.data import DataConfig
from layerrope.training.recipe import TrainConfig


@dataclass(frozen=True)
class Scale:
    """Sizes and settings of studies at one scale."""

    ladder: tuple[str, ...]
    """names in `SIZES`, small to large"""
    size: str
    """of studies at one size"""
    depths: tuple[int, ...]
    narrow: ModelConfig
    """the shape of the depth study, at any depth"""
    depth_budget: str
    depth_lrs: tuple[float, ...]
    aspect_target: int
    """parameters in the layers, equal for all shapes of the aspect study"""
    aspect_depths: tuple[int, ...]
    contexts: tuple[int, ...]
    budget: str
    short: str
    """the shorter budget of the ablation"""
    lrs: tuple[float, ...]
    bracket: int
    """rates to add where a best one is at the edge"""
    seeds: tuple[int, ...]
    batch_size: int
    data: str
    tokenizer: str
    settings: dict[str, Any] = field(default_factory=dict)
    """of TrainConfig"""


def _tiny(d_model: int, n_layer: int = 2) -> ModelConfig:
    return ModelConfig(n_layer=n_layer, n_head=1, d_model=d_model, d_ff=2 * d_model, seq_len=16)


SIZES: dict[str, ModelConfig] = {
    **{f"tiny-{width}": _tiny(width) for width in (8, 12, 16)},
    **tiers,
}
"""Sizes by name: the tiers, and shapes that train in a second."""

PAPER_LRS = tuple(1e-3 * 2**k for k in range(7))
"""1e-3 to 6.4e-2, the rates of the LayerRoPE paper's sweeps (arXiv 2610.09179, Table 6) but for Post-Norm's."""

SCALES: dict[str, Scale] = {
    "tiny": Scale(
        ladder=("tiny-8", "tiny-12", "tiny-16"),
        size="tiny-8",
        depths=(2, 4),
        narrow=_tiny(8),
        depth_budget="6",
        depth_lrs=(3e-3,),
        aspect_target=3000,
        aspect_depths=(1, 2, 4),
        contexts=(16, 32),
        budget="6",
        short="4",
        lrs=(3e-3, 1e-2),
        bracket=0,
        seeds=(0,),
        batch_size=2,
        data="embedded",
        tokenizer="bytes",
        settings={"eval_tokens": 128, "log_every": 2},
    ),
    "micro": Scale(
        ladder=("micro-100k", "micro-400k", "micro-800k", "micro-2m"),
        size="micro-400k",
        depths=(8, 16, 32, 64, 128, 256, 512),
        narrow=tiers["micro-100k"],
        depth_budget="400",
        depth_lrs=(3e-3,),
        aspect_target=400_000,
        aspect_depths=(2, 4, 8, 16, 32, 64),
        contexts=(64, 128, 256, 512, 1024),
        budget="20x",
        short="5x",
        lrs=GRID,
        bracket=2,
        seeds=(0, 1, 2),
        batch_size=16,
        data="embedded",
        tokenizer="bytes",
        settings={"eval_tokens": 65_536, "compile": True, "checkpoint_every": 100, "keep_checkpoints": 1},
    ),
    "paper": Scale(
        ladder=("60m", "130m", "250m", "500m", "1b"),
        size="130m",
        depths=(48, 96, 192, 256, 384, 512),
        narrow=tiers["d128-L48"],
        depth_budget="20000",
        depth_lrs=(1e-3,),
        aspect_target=300_000_000,
        aspect_depths=(16, 20, 24, 32, 42, 70),
        contexts=(256, 512, 1024, 2048, 4096),
        budget="80x",
        short="20x",
        lrs=PAPER_LRS,
        bracket=2,
        seeds=(0, 1, 2),
        batch_size=512,
        data="hf:allenai/c4:en",
        tokenizer="hub:google-t5/t5-base",
        settings={"eval_tokens": 10_000_000, "precision": "paper", "compile": True, "keep_checkpoints": 1},
    ),
}


def base_config(scale: Scale, model: ModelConfig) -> TrainConfig:
    """The settings of a scale around a model; the embedding starts at the papers' sqrt(2/5)."""
    model = replace(model, embed_std=PAPER_EMBED_STD)
    data = DataConfig(source=scale.data, tokenizer=scale.tokenizer, seq_len=model.seq_len)
    return TrainConfig(model=model, data=data, batch_size=scale.batch_size, **scale.settings)


def equal_shapes(target: int, depths: tuple[int, ...], like: ModelConfig) -> dict[str, ModelConfig]:
    """Shapes of these depths with about `target` parameters in the layers, by name: `L16 x 64`.

    The MLP is 8/3 of the width, as in LLaMA; widths are multiples of 8, and heads as near to 64 channels as divides.
    """
    made: dict[str, ModelConfig] = {}
    for n_layer in depths:
        width = min(range(8, 8193, 8), key=lambda d: abs(n_layer * _layer_parameters(d) - target))
        heads = min((h for h in range(1, width // 2 + 1) if width % (2 * h) == 0), key=lambda h: abs(width / h - 64))
        made[f"L{n_layer} x {width}"] = replace(
            like, n_layer=n_layer, d_model=width, d_ff=_hidden(width), n_head=heads, n_kv_head=None
        )
    return made


def _hidden(width: int) -> int:
    return 8 * math.ceil(width / 3)


def _layer_parameters(width: int) -> int:
    """Matrices of one layer: q, k, v, o and the three of SwiGLU."""
    return 4 * width**2 + 3 * width * _hidden(width)
