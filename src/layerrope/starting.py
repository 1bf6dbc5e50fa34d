"""Starting values that depend on (seed, parameter name) alone: schemes of one seed share all that they both have.

Drawn on the CPU in fp32: every device and dtype starts from the same numbers. Meta tensors are left alone.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn


def name_seed(seed: int, name: str) -> int:
    """A seed for one parameter: the same whatever other parameters the model has."""
    return (seed * 0x9E3779B1 + zlib.crc32(name.encode())) % 2**63


@torch.no_grad()
def reset_modules(model: nn.Module, seed: int) -> None:
    """Norms, gates, gains and residuals by their own rule, and biases of linear maps to zero; matrices are left."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if all(p.is_meta for p in module.parameters(recurse=False)):
            continue  # nothing to fill
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        elif reset is not None and not isinstance(module, nn.Linear | nn.Embedding):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(name_seed(seed, name))
                reset()


@torch.no_grad()
def fill_normal(weight: Tensor, std: float, seed: int) -> None:
    """N(0, std^2)"""
    if not weight.is_meta:
        generator = torch.Generator().manual_seed(seed)
        weight.copy_(torch.empty(weight.shape, dtype=torch.float32).normal_(0.0, std, generator=generator))


@torch.no_grad()
def fill_orthogonal(weight: Tensor, gain: float, seed: int) -> None:
    """`gain` times a random matrix (M, N) whose rows, or columns where they are fewer, are orthonormal."""
    if not weight.is_meta:
        generator = torch.Generator().manual_seed(seed)
        weight.copy_(nn.init.orthogonal_(torch.empty(weight.shape, dtype=torch.float32), gain, generator))
