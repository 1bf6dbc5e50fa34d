"""What a model is: `ModelConfig`, the presets and the tiers (the paper's ladder, the depth runs, micro sizes)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from layerrope.errors import InputError, one_of

MOST_LAYERS = 10_000
"""Models are built layer by layer: beyond, a damaged file or a slip of the finger would fill the memory."""
MOST = 100_000_000
"""Of any other number in a shape: the bytes of a matrix of so many rows and columns are still counted in 64 bits."""
PAPER_EMBED_STD = math.sqrt(2 / 5)
"""Standard deviation of the embedding at the start on the papers' ladder (LayerRoPE, LNS, GaLore)."""


def check_counts(config: Any, *names: str) -> None:
    """Raise InputError for one of these that is no whole number from 1 to `MOST` (layers: to `MOST_LAYERS`)."""
    for name in names:
        check_count(name, getattr(config, name), MOST_LAYERS if name == "n_layer" else MOST)


def check_count(name: str, value: Any, most: int) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `most`."""
    if not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number: got {value!r}")
    if not 1 <= int(value) <= most:
        raise InputError(f"{name} must be at {'least 1' if int(value) < 1 else f'most {most}'}: got {value}")


@dataclass(frozen=True)
class ModelConfig:
    """Shape, parts and scheme of a decoder language model. Raises InputError for shapes that do not fit."""

    n_layer: int = 24
    """layers (blocks); sublayers are twice as many"""
    n_head: int = 2
    """query heads"""
    n_kv_head: int | None = None
    """key-value heads; None: as many as query heads"""
    d_model: int = 64
    """width of the stream"""
    d_ff: int = 176
    """hidden width of the MLP"""
    vocab_size: int = 257
    """token ids run from 0 to vocab_size - 1"""
    seq_len: int = 128
    """tokens per training sequence (and the number of learned positions)"""
    scheme: str = "prenorm"
    """depth scheme, with options: `layerrope:rotation=off`"""
    norm: str = "rmsnorm"
    """rmsnorm or layernorm"""
    eps: float = 1e-6
    """inside the norm's root"""
    position: str = "rotary"
    """rotary or learned"""
    rope_base: float = 10_000.0
    """base of the rotary spectrum"""
    mlp: str = "swiglu"
    """swiglu or gelu"""
    bias: bool = False
    """biases in the linear maps"""
    tie: bool = False
    """share the embedding with the head"""
    init_std: float = 0.02
    """standard deviation of the weights at the start, before the scheme's multiplier by role"""
    embed_std: float = 0.02
    """standard deviation of the token embedding at the start"""

    def __post_init__(self) -> None:
        check_counts(self, "n_layer", "n_head", "d_model", "d_ff", "vocab_size", "seq_len")
        if self.d_model % self.n_head:
            raise InputError(f"d_model {self.d_model} is not divisible by n_head {self.n_head}: change one of them")
        check_count("n_kv_head", self.kv_heads, MOST)
        if self.n_head % self.kv_heads:
            raise InputError(f"n_kv_head {self.n_kv_head} does not divide n_head {self.n_head}")
        one_of("norm", self.norm, ("rmsnorm", "layernorm"))
        one_of("position", self.position, ("rotary", "learned"))
        one_of("mlp", self.mlp, ("swiglu", "gelu"))
        if self.position == "rotary" and self.d_head % 2:
            raise InputError(f"rotary positions need an even head width: d_model / n_head is {self.d_head}")
        for name in ("eps", "rope_base", "init_std", "embed_std"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InputError(f"{name} must be positive: got {getattr(self, name)}")

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_head

    @property
    def kv_heads(self) -> int:
        return self.n_head if self.n_kv_head is None else self.n_kv_head


PRESETS: dict[str, dict[str, object]] = {
    "modern": {"norm": "rmsnorm", "position": "rotary", "mlp": "swiglu", "bias": False},
    "gpt-2017": {"norm": "layernorm", "position": "learned", "mlp": "gelu", "bias": True, "eps": 1e-5},
}


def preset(name: str, config: ModelConfig) -> ModelConfig:
    """`config` with the parts of a preset: "modern", or "gpt-2017" (LayerNorm, learned positions, GELU)."""
    return replace(config, **PRESETS[one_of("preset", name, PRESETS)])  # type: ignore[arg-type]


def _ladder(d_model: int, n_layer: int, n_head: int, d_ff: int) -> ModelConfig:
    """A LLaMA of the LayerRoPE / LNS / GaLore ladder: V = 32,000, T = 256, untied, embedding std sqrt(2/5)."""
    return ModelConfig(
        n_layer=n_layer,
        n_head=n_head,
        d_model=d_model,
        d_ff=d_ff,
        vocab_size=32_000,
        seq_len=256,
        embed_std=PAPER_EMBED_STD,
    )


def _micro(d_model: int, n_layer: int) -> ModelConfig:
    """A LLaMA for CPUs: heads of 32 channels, V = 257 (bytes), T = 128, the ladder's embedding std sqrt(2/5)."""
    d_ff = -(-8 * d_model // 3 // 8) * 8  # 8/3 of the width, up to a multiple of 8
    return ModelConfig(n_layer=n_layer, n_head=d_model // 32, d_model=d_model, d_ff=d_ff, embed_std=PAPER_EMBED_STD)


tiers: dict[str, ModelConfig] = {
    "micro": _micro(64, 24),
    "micro-100k": _micro(32, 8),
    "micro-400k": _micro(64, 8),
    "micro-800k": _micro(64, 16),
    "micro-2m": _micro(96, 16),
    "60m": _ladder(512, 8, 8, 1376),
    "130m": _ladder(768, 12, 12, 2048),
    "250m": _ladder(896, 20, 14, 2389),
    "350m": _ladder(1024, 24, 16, 2736),
    "500m": _ladder(1280, 24, 20, 3413),
    "1b": _ladder(2048, 24, 32, 5461),
    "7b": _ladder(4096, 32, 32, 11008),
    **{f"d128-L{n}": _ladder(128, n, 4, 352) for n in (48, 96, 192, 256, 384, 512)},
}
"""Named sizes: micro tiers for CPUs, the paper's ladder (arXiv 2610.09179, Table 5) and its depth runs."""


def tier(name: str) -> ModelConfig:
    """The config of a tier. Raises InputError with the nearest names."""
    return tiers[one_of("tier", name, tiers)]
