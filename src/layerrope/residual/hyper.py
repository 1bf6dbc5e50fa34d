"""Hyper-Connections: the stream becomes n streams; each sublayer reads a mix, writes to all, and mixes the streams.

Dimensions: B batch, T position, S streams (n), D width. The state is H (B, T, S, D).
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from layerrope.errors import InputError
from layerrope.norms import KeepFp32, no_autocast, upcast
from layerrope.residual.base import Ends, Residual, Site

Coefficients: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""What one sublayer does to the streams, at least fp32: read (..., S), write (..., S), and mix (..., S, S) with
mix[i, j] the part of old stream i in new stream j."""


# ------------------------------------------------------------------------------------------- arithmetic on streams
def contract(weights: Tensor, H: Tensor) -> Tensor:
    """sum_i weights[..., i, j] H[..., i, d]: (..., S, J) and (..., S, D) to (..., J, D), in at least fp32.

    Eager: one batched product. Compiled: a sum of products, which the compiler fuses with what stands around it.
    """
    streams = upcast(H)
    if torch.compiler.is_compiling():
        return (weights[..., None] * streams[..., None, :]).sum(-3)
    with no_autocast(H.device):
        return weights.mT @ streams


def project(x: Tensor, W: Tensor) -> Tensor:
    """x @ W for a narrow W: (..., D) and (D, K) to (..., K); fused when compiled, as `contract` is."""
    if torch.compiler.is_compiling():
        return (x[..., None, :] * W.mT).sum(-1)
    with no_autocast(x.device):
        return x @ W


def read_streams(read: Tensor, H: Tensor) -> Tensor:
    """sum_i read_i H_i: (B, T, D) in H's dtype."""
    return contract(read[..., None], H)[..., 0, :].to(H.dtype)


def write_streams(mix: Tensor, write: Tensor, H: Tensor, y: Tensor) -> Tensor:
    """sum_i mix_ij H_i + write_j y: (B, T, S, D) in H's dtype. The old streams enter through `mix` alone."""
    return (contract(mix, H) + write[..., None] * y[..., None, :]).to(H.dtype)


class Copies(Ends):
    """Every stream starts as the embedding; the streams' sum (or mean) goes to the final norm."""

    def __init__(self, n: int, mean: bool = False) -> None:
        super().__init__()
        self.n, self.mean = n, mean

    def expand(self, h: Tensor) -> Tensor:
        return h[..., None, :].expand(*h.shape[:-1], self.n, h.shape[-1]).contiguous()

    def reduce(self, state: Tensor) -> Tensor:
        return state.mean(-2) if self.mean else state.sum(-2)


MOST_STREAMS = 64
"""Each stream is a copy of the residual state; the papers use 2 to 8."""


def check_streams(name: str, n: int, least: int = 1) -> int:
    """`n`, where it is a possible number of streams; InputError otherwise."""
    if not least <= n <= MOST_STREAMS:
        raise InputError(
            f"n of scheme {name!r} is a number of streams, at least {least}, at most {MOST_STREAMS}: got {n}"
        )
    return n


# ---------------------------------------------------------------------------------------------- Hyper-Connections
class HyperConnection(KeepFp32, Residual):
    """x = A_m^T H;  H <- A_r^T H + B^T y   (Hyper-Connections, arXiv 2409.19606, sections 2-4)

    Static: A_m (S), A_r (S, S) and B (S) are parameters. Dynamic: each gets scale * tanh(norm(H) W) added, with the
    norm over each stream. Starts at A_m = the stream of this sublayer, A_r = I, B = 1, W = 0: Pre-Norm. Coefficients
    are formed in fp32.

    Args:
        n: number of streams S.
        dynamic: False leaves the input-dependent part out.
        tanh: False leaves the tanh out.
    """

    param_roles = {"A": "static", "B": "static", "scale": "static", "W": "dynamic"}

    def __init__(self, site: Site, n: int, dynamic: bool = True, tanh: bool = True) -> None:
        super().__init__()
        self.reads, self.tanh = site.index % n, tanh
        self.A = nn.Parameter(torch.empty(n, n + 1, dtype=torch.float32))  # A_m beside A_r
        self.B = nn.Parameter(torch.empty(n, dtype=torch.float32))
        self.norm = site.norm(site.d_model) if dynamic else None
        self.W = nn.Parameter(torch.empty(site.d_model, n + 2, dtype=torch.float32)) if dynamic else None  # m, r, beta
        self.scale = nn.Parameter(torch.empty(2, dtype=torch.float32)) if dynamic else None  # of A and of B
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        streams = torch.eye(len(self.A))
        self.A.copy_(torch.cat((streams[:, self.reads, None], streams), dim=1))
        self.B.fill_(1.0)
        if self.W is not None and self.scale is not None:
            self.W.zero_()
            self.scale.fill_(0.01)

    def coefficients(self, H: Tensor) -> Coefficients:
        width, depth = self.A, self.B
        if self.norm is not None and self.W is not None and self.scale is not None:
            z = project(self.norm(upcast(H)), self.W)
            z = torch.tanh(z) if self.tanh else z
            width, depth = width + self.scale[0] * z[..., :-1], depth + self.scale[1] * z[..., -1]
        return width[..., 0], depth, width[..., 1:]

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        read, write, mix = self.coefficients(state)
        return read_streams(read, state), (state, write, mix)

    def write(self, rest: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        H, write, mix = rest
        return write_streams(mix, write, H, y)


def streams_init(role: str, n: int) -> float:
    """1/sqrt(n) on the output projections, so that the sum over n streams keeps its scale   (arXiv 2409.19606)"""
    return n**-0.5 if role in {"o", "down"} else 1.0
