"""Small models for the tests: one shape, every scheme, parameters moved away from their start."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from layerrope.config import ModelConfig
from layerrope.model import LM
from layerrope.roles import declared

torch.set_num_threads(1)  # these models are too small to share, and waiting threads cost more than they give

TINY = ModelConfig(n_layer=4, n_head=2, d_model=16, d_ff=24, vocab_size=31, seq_len=12, embed_std=1.0, init_std=0.2)


def tiny(spec: str, **changes: object) -> ModelConfig:
    return replace(TINY, scheme=spec, **changes)  # type: ignore[arg-type]


def perturbed(spec: str, *, size: float = 0.2, seed: int = 1, **changes: object) -> LM:
    """A tiny model whose parameters have all left their starting values."""
    model = LM(tiny(spec, **changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator))
    return model


def token_ids(*shape: int, seed: int = 0, vocab_size: int = TINY.vocab_size) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def role_of(model: nn.Module) -> dict[str, str]:
    """Each parameter's role."""
    return {row.name: row.role for row in declared(model)}
