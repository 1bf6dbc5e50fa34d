"""Post-Norm and its kin: the stream is normalised after each add."""

from __future__ import annotations

from torch import Tensor

from layerrope.norms import upcast
from layerrope.residual.base import Add, Residual, Site


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


def deepnorm_alpha(n_layer: int) -> float:
    """(2N)^(1/4), N layers of a decoder alone   (DeepNet, arXiv 2203.00555, Fig. 2)

    >>> round(deepnorm_alpha(24), 4)
    2.6321
    """
    return (2 * n_layer) ** 0.25


def deepnorm_beta(role: str, n_layer: int) -> float:
    """(8N)^(-1/4) on the weights of v, o and the MLP, 1 elsewhere   (DeepNet, arXiv 2203.00555, Fig. 2)

    >>> round(deepnorm_beta("o", 24), 4), deepnorm_beta("q", 24)
    (0.2686, 1.0)
    """
    return (8 * n_layer) ** -0.25 if role in {"v", "o", "gate", "up", "down"} else 1.0


def keel_residual(site: Site) -> Residual:
    """h <- norm(2N h + y), N layers; alpha is 1 in the first layer, and the first add has no norm

    (Keel, arXiv 2601.19895: alpha is the number of sublayers.) f reads norm(h); see the branch.
    """
    if site.index == 0:
        return Add()
    return PostNorm(site, alpha=1.0 if site.layer == 0 else float(site.n_sublayer))


def mixln_split(n_layer: int, fraction: float) -> int:
    """How many of the first layers are Post-Norm: floor(fraction N)   (Mix-LN, arXiv 2412.13795)

    >>> [mixln_split(n, 0.25) for n in (8, 12, 24, 32)]
    [2, 3, 6, 8]
    """
    return int(fraction * n_layer)
