"""Expanded Hyper-Connections: many streams, of which each position mixes and writes a few.

Dimensions: B batch, T position, S streams (n), K active streams, R written vectors, D width. The state is
H (B, T, S, D).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.norms import KeepFp32, no_autocast, rms_norm, upcast
from layerrope.residual.base import Residual, Site
from layerrope.residual.hyper import contract, read_streams
from layerrope.residual.manifold import read_start, sinkhorn
from layerrope.roles import Tuning

KERNELS = (4, 8, 12)
"""Lengths, in positions, of the causal convolutions of an MLP's output."""


def causal_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """sum_tau kernel[tau] * x[t - tau], channel by channel: (B, T, D) and (kappa, D) to (B, T, D)."""
    padded = F.pad(x.mT, (len(kernel) - 1, 0))
    return F.conv1d(padded, kernel.flip(0).T[:, None], groups=x.shape[-1]).mT


def orthogonalise(vectors: list[Tensor]) -> list[Tensor]:
    """Modified Gram-Schmidt over the width, each vector freed of its part along those before it; none rescaled."""
    done: list[Tensor] = []
    for v in vectors:
        for u in done:
            v = v - (v * u).sum(-1, keepdim=True) / (u.square().sum(-1, keepdim=True) + 1e-12) * u
        done.append(v)
    return done


@dataclass(frozen=True)
class Active:
    """The streams that a sublayer mixes and writes at each position."""

    index: Tensor  # (B, T, K)
    score: Tensor  # (B, T, K): the router's, which gates the write
    streams: Tensor  # (B, T, K, D)

    def put_back(self, streams: Tensor, H: Tensor) -> Tensor:
        """H with these streams in the active places."""
        return torch.scatter(H, -2, self.index[..., None].expand(streams.shape), streams.to(H.dtype))


class ExpandedHyperConnection(KeepFp32, Residual):
    """x = H_pre H;  H_a <- H_res H_a + p * H_post^T v, a the active streams   (xHC, arXiv 2607.14530)

    A router p = sigmoid(rms(vec(H)) W) picks the best `active - fixed` streams beside the `fixed` first ones. v is
    the output y alone at attention; at the MLP it is y and three causal convolutions of it, made orthogonal. H_pre,
    H_post and H_res are as in mHC, the last two from the active streams alone.

    From secondary notes; the paper's own text and code were not at hand. See docs/fidelity.md.

    Args:
        n: number of streams S.
        active: number K of them that a position writes.
        fixed: how many are always active.
        iterations, off, eps: see `ManifoldHyperConnection`.
    """

    param_roles = {
        **dict.fromkeys(("router", "phi_pre", "phi_post", "phi_res", "kernels"), "dynamic"),
        **dict.fromkeys(("bias_pre", "bias_post", "bias_res", "scale"), "static"),
    }
    param_tuning = dict.fromkeys(("static", "dynamic"), Tuning(fixed_eps=1e-20))

    def __init__(
        self,
        site: Site,
        n: int,
        active: int,
        fixed: int,
        iterations: int = 20,
        off: float = -4.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        d, K, is_mlp = site.d_model, active, site.kind == "mlp"
        self.n, self.active, self.fixed = n, active, fixed
        self.iterations, self.off, self.eps = iterations, off, eps
        self.reads = site.index % n
        self.written = 1 + len(KERNELS) * is_mlp

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=torch.float32))

        self.router, self.phi_pre = empty(n * d, n), empty(n * d, n)
        self.phi_post, self.phi_res = empty(K * d, K * self.written), empty(K * d, K * K)
        self.bias_pre, self.bias_post, self.bias_res = empty(n), empty(K, self.written), empty(K, K)
        self.scale = empty(3)
        self.kernels = empty(sum(KERNELS), d) if is_mlp else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for name in ("phi_pre", "phi_post", "phi_res", "bias_post"):
            getattr(self, name).zero_()
        self.bias_pre.copy_(torch.tensor(read_start(self.n, self.reads)))
        self.bias_res.copy_(self.off * (1 - torch.eye(self.active)))
        self.scale.fill_(0.01)
        for weight in (self.router, self.kernels):
            if weight is not None and not weight.is_meta:
                weight.normal_(0.0, 0.02)

    def _rms(self, H: Tensor, *weights: Tensor) -> list[Tensor]:
        """rms(vec(H)) @ weight for each weight."""
        x = rms_norm(upcast(H).flatten(-2), None, self.eps)
        with no_autocast(x.device):
            return [x @ w for w in weights]

    def route(self, H: Tensor, logits: Tensor) -> Active:
        """The first `fixed` streams and the best of the rest."""
        score = torch.sigmoid(logits)
        best = score[..., self.fixed :].topk(self.active - self.fixed, dim=-1, sorted=True).indices + self.fixed
        always = torch.arange(self.fixed, device=H.device).expand(*best.shape[:-1], self.fixed)
        index = torch.cat((always, best), dim=-1)
        streams = torch.gather(H, -2, index[..., None].expand(*index.shape, H.shape[-1]))
        return Active(index, torch.gather(score, -1, index), streams)

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Active]]:
        routed, pre = self._rms(state, self.router, self.phi_pre)
        x = read_streams(torch.sigmoid(self.scale[0] * pre + self.bias_pre), state)
        return x, (state, self.route(state, routed))

    def write(self, rest: tuple[Tensor, Active], y: Tensor) -> Tensor:
        H, active = rest
        K, shape = self.active, active.score.shape[:-1]
        post, res = self._rms(active.streams, self.phi_post, self.phi_res)
        post = 2 * torch.sigmoid(self.scale[1] * post.view(*shape, K, self.written) + self.bias_post)
        res = self.scale[2] * res.view(*shape, K, K) + self.bias_res
        mix = torch.movedim(sinkhorn(torch.movedim(res, (-2, -1), (0, 1)), self.iterations), (1, 0), (-2, -1))
        vectors = torch.stack(self.vectors(upcast(y)), dim=-2)  # (B, T, R, D)
        update = active.score[..., None] * contract(post.mT, vectors)
        return active.put_back(contract(mix, active.streams) + update, H)

    def vectors(self, y: Tensor) -> list[Tensor]:
        """What is written: y, and at the MLP its convolutions too."""
        if self.kernels is None:
            return [y]
        with no_autocast(y.device):
            return orthogonalise(
                [y, *(causal_convolution(y, kernel) for kernel in torch.split(self.kernels, list(KERNELS)))]
            )
