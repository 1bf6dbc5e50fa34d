"""Norms and gates: the modules that put a gain on what a sublayer reads and on what it writes.

All three take `(x, row)`: `row` is this site's row of the gain table, or None where the scheme has none. Where
a scheme's gains replace the norm weight, the norm is built without one and the row stands in its place; where
they scale it, both are applied.

Dimensions: B batch, T position, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

_LOW_PRECISION = (torch.bfloat16, torch.float16)


def upcast(x: Tensor) -> Tensor:
    """`x` in at least fp32 (float64 stays)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which operations keep their inputs' precision (meta tensors know no autocast)."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


class KeepFp32(nn.Module):
    """A module whose floating-point parameters follow every `.to(...)` but never below fp32.

    Gains move by less than bf16 can hold (its spacing at 1 is 2^-8), so `model.to(torch.bfloat16)` leaves them.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def keep(t: Tensor) -> Tensor:
            moved = fn(t)
            return t.to(moved.device) if moved.dtype in _LOW_PRECISION else moved

        return super()._apply(keep, recurse)


def rms_norm(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain   (Zhang & Sennrich 2019, arXiv 1910.07467, Eq. 4)

    Args:
        x: (..., D), any floating dtype; squares and mean are taken in at least fp32.
        gain: (D,) or broadcastable, or None for 1.
        eps: added inside the root, to the variance.

    Returns:
        (..., D) in `x`'s dtype, rounded once at the end.
    """
    h = upcast(x)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return (h if gain is None else h * gain).to(x.dtype)


def layer_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * gain + bias   (Ba et al. 2016, arXiv 1607.06450)

    Shapes and precision as in `rms_norm`; the variance is the biased one.
    """
    h = upcast(x)
    h = h - h.mean(-1, keepdim=True)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    h = h if gain is None else h * gain
    return (h if bias is None else h + bias).to(x.dtype)


class RMSNorm(KeepFp32):
    """y = x / rms(x) * weight   (arXiv 1910.07467)

    Args:
        d: width D.
        eps: inside the root; always explicit in configs, 1e-6 on the ladder.
        weight: False builds it without a weight, for schemes whose gains replace it.
    """

    param_roles = {"weight": "norm"}

    def __init__(self, d: int, eps: float = 1e-6, weight: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d, dtype=torch.float32)) if weight else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
        if self.weight is None or row is None:
            return rms_norm(x, row if self.weight is None else self.weight, self.eps)
        return rms_norm(x, self.weight * row, self.eps)


class LayerNorm(KeepFp32):
    """y = (x - mean(x)) / std(x) * weight + bias   (arXiv 1607.06450)

    A row that replaces the weight leaves the bias alone; a row that scales multiplies weight and bias (LNS scales
    the norm's output). `weight=False` keeps the bias.
    """

    param_roles = {"weight": "norm", "bias": "norm"}

    def __init__(self, d: int, eps: float = 1e-5, weight: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d, dtype=torch.float32)) if weight else None
        self.bias = nn.Parameter(torch.empty(d, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
        if self.weight is None or row is None:
            return layer_norm(x, row if self.weight is None else self.weight, self.bias, self.eps)
        return layer_norm(x, self.weight * row, self.bias * row, self.eps)


class Gate(KeepFp32):
    """y = x * weight * row, either of which may be absent; with neither, y = x.

    Args:
        start: None for no weight; otherwise its starting value.
        d: length of the weight (1 for a scalar gate).
    """

    param_roles = {"weight": "gain"}

    def __init__(self, start: float | None = None, d: int = 1) -> None:
        super().__init__()
        self.start = start
        self.weight = None if start is None else nn.Parameter(torch.empty(d, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None and self.start is not None:
            nn.init.constant_(self.weight, self.start)

    def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
        if self.weight is None:
            return x if row is None else (x * row).to(x.dtype)
        return (x * (self.weight if row is None else self.weight * row)).to(x.dtype)


NORMS: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rmsnorm": RMSNorm, "layernorm": LayerNorm}
