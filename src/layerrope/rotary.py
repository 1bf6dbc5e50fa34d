"""Rotary positions: pairs (2i, 2i+1) of a head turn by m theta_i, theta_i = base^(-2i/d_h)   (arXiv 2104.09864).

Dimensions: B batch, H heads, T position, C head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerrope.norms import upcast


def rotary_table(
    n_position: int, d_head: int, base: float = 10_000.0, first: int = 0, device: torch.device | None = None
) -> Tensor:
    """cos and sin of m theta_i for positions m = first .. first + n_position - 1.

    The angles are formed in float64 and rounded once, so they are right at position 65,536 and beyond; the table is
    recomputed where it is needed instead of kept in a buffer, which a meta build would wipe.

    Returns:
        (2, T, C/2) fp32: cos, then sin.
    """
    if device is not None and device.type == "mps":  # no float64 there
        return rotary_table(n_position, d_head, base, first).to(device)
    channel = torch.arange(0, d_head, 2, dtype=torch.float64, device=device)
    m = torch.arange(first, first + n_position, dtype=torch.float64, device=device)
    angle = torch.outer(m, base ** (-channel / d_head))
    return torch.stack((angle.cos(), angle.sin())).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate `x` (B, H, T, C), pairs (2i, 2i+1), by `table` (2, T, C/2); computed in fp32, rounded once."""
    h = upcast(x)
    cos, sin = table
    u, v = h[..., 0::2], h[..., 1::2]
    return torch.stack((u * cos - v * sin, u * sin + v * cos), dim=-1).flatten(-2).to(x.dtype)


def halves(weight: Tensor, n_head: int) -> Tensor:
    """The rows of a query or key projection (H C, ...) with each head's pairs (2i, 2i+1) moved to (i, C/2 + i).

    Scores do not change when queries and keys are permuted alike, so attention runs on this layout, whose two halves
    are contiguous, while the weights keep the pairs. It is also the layout of stock Llama checkpoints.
    """
    return weight.unflatten(0, (n_head, -1, 2)).transpose(1, 2).flatten(0, 2)


def pairs(weight: Tensor, n_head: int) -> Tensor:
    """The inverse of `halves`."""
    return weight.unflatten(0, (n_head, 2, -1)).transpose(1, 2).flatten(0, 2)


def rotate_halves(x: Tensor, table: Tensor) -> Tensor:
    """`rotate` for the layout of `halves`: the pair of channel i is channel C/2 + i."""
    h = upcast(x)
    cos, sin = table
    u, v = h.chunk(2, dim=-1)
    return torch.cat((u * cos - v * sin, u * sin + v * cos), dim=-1).to(x.dtype)
