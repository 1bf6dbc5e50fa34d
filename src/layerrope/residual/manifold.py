"""Manifold-constrained Hyper-Connections: the matrix that mixes the streams is doubly stochastic.

Dimensions: B batch, T position, S streams (n), D width. The state is H (B, T, S, D).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from layerrope.norms import KeepFp32, no_autocast, upcast
from layerrope.residual.base import Residual, Site
from layerrope.residual.hyper import Coefficients, read_streams, write_streams
from layerrope.roles import Tuning


def sinkhorn(logits: Tensor, n_iteration: int = 20) -> Tensor:
    """M_t = T_row(T_col(M_{t-1})), M_0 = exp(logits)   (mHC, arXiv 2512.24880, Eq. 9)

    The rows come last, so they sum to 1 within rounding however large the logits: each new stream is a convex
    combination of the old ones. The columns sum to 1 in the limit.

    Args:
        logits: (S, S, ...), [new, old]; streams first, so that the small sums run over whole vectors of positions.
        n_iteration: pairs of normalisations, at least 1.

    Returns:
        (S, S, ...)
    """
    # the first pair in the log domain: after it every row and column holds an entry of at least 1/S^2
    mix = torch.softmax(torch.log_softmax(logits, 0), 1)
    for _ in range(n_iteration - 1):
        mix = mix / mix.sum(0, keepdim=True)
        mix = mix / mix.sum(1, keepdim=True)
    return mix


def read_start(n: int, stream: int, share: float = 0.7) -> list[float]:
    """Logits whose sigmoids are `share` at one stream and add up to 1, so that equal streams are read as one.

    >>> [round(1 / (1 + math.exp(-v)), 4) for v in read_start(4, 1)]
    [0.1, 0.7, 0.1, 0.1]
    """
    other = (1 - share) / (n - 1)
    return [math.log(p / (1 - p)) for p in (share if i == stream else other for i in range(n))]


class ManifoldHyperConnection(KeepFp32, Residual):
    """x = H_pre H;  H <- H_res H + H_post^T y   (mHC, arXiv 2512.24880, Eq. 4-9)

    with z = rms(vec(H)) phi, H_pre = sigmoid(scale z + bias), H_post = 2 sigmoid(scale z + bias) and
    H_res = sinkhorn(scale z + bias), three slices of phi, three scales. All coefficients are formed in fp32.

    The paper gives no start for phi and bias. Here phi = 0; H_pre reads 0.7 of this sublayer's own stream and the
    rest of the others, which tells the streams apart; H_post = 1; H_res has logits 0 on the diagonal and `off`
    beside it. Since equal streams stay equal under any H_res, this is Pre-Norm. At `off` = -4 the gradient of H_res
    is three thousand times what it is at +8/-8, where it does not learn; Adam's eps is 1e-20, as in the paper.

    Args:
        n: number of streams S, at least 2.
        iterations: of `sinkhorn`.
        off: starting logit off the diagonal of H_res.
        eps: inside the root of rms.
    """

    param_roles = {"phi": "dynamic", "bias": "static", "scale": "static"}
    param_tuning = dict.fromkeys(("static", "dynamic"), Tuning(fixed_eps=1e-20))

    def __init__(self, site: Site, n: int, iterations: int = 20, off: float = -4.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.n, self.iterations, self.off, self.eps = n, iterations, off, eps
        self.reads = site.index % n
        self.phi = nn.Parameter(torch.empty(n * site.d_model, 2 * n + n * n, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(2 * n + n * n, dtype=torch.float32))  # pre, post, res[new, old]
        self.scale = nn.Parameter(torch.empty(3, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        pre = torch.tensor(read_start(self.n, self.reads))
        res = self.off * (1 - torch.eye(self.n))
        self.bias.copy_(torch.cat((pre, torch.zeros(self.n), res.flatten())))
        self.phi.zero_()
        self.scale.fill_(0.01)

    def coefficients(self, H: Tensor) -> Coefficients:
        x = upcast(H).flatten(-2)
        with no_autocast(H.device):
            z = (x @ self.phi) * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        n, (s_pre, s_post, s_res) = self.n, self.scale.unbind(0)
        pre = torch.sigmoid(s_pre * z[..., :n] + self.bias[:n])
        post = 2 * torch.sigmoid(s_post * z[..., n : 2 * n] + self.bias[n : 2 * n])
        res = (s_res * z[..., 2 * n :] + self.bias[2 * n :]).view(*z.shape[:-1], n, n)
        mix = sinkhorn(torch.movedim(res, (-2, -1), (0, 1)), self.iterations)
        return pre, post, torch.movedim(mix, (1, 0), (-2, -1))

    def read(self, state: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        read, write, mix = self.coefficients(state)
        return read_streams(read, state), (state, write, mix)

    def write(self, rest: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        H, write, mix = rest
        return write_streams(mix, write, H, y)
