"""Post-Norm and its kin: the stream is normalised after each add."""

from __future__ import annotations

from torch import Tensor

from layerrope.norms import upcast
from layerrope.residual.base import Residual, Site


class PostNorm(Residual):
    """h <- norm(alpha h + y)   (Vaswani et al. 2017, arXiv 1706.03762, section 3.1, alpha = 1)

    The sum is taken in at least fp32: with a large alpha a bf16 sum keeps two or three bits of y.
    """

    def __init__(self, site: Site, alpha: float = 1.0) -> None:
        super().__init__()
        self.norm, self.alpha = site.norm(site.d_model), alpha

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, state

    def write(self, rest: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.alpha * upcast(rest) + upcast(y)).to(rest.dtype)
