"""Residuals: what a sublayer reads from the stream and how its output is written back. One scheme a file."""

from layerrope.residual.base import Add, Branch, Ends, Residual, Single, Site, Sublayer
from layerrope.residual.post_norm import PostNorm, deepnorm_alpha, deepnorm_beta, keel, mixln_split
from layerrope.residual.x0 import WithX0, blend

__all__ = [
    "Add",
    "Branch",
    "Ends",
    "PostNorm",
    "Residual",
    "Single",
    "Site",
    "Sublayer",
    "WithX0",
    "blend",
    "deepnorm_alpha",
    "deepnorm_beta",
    "keel",
    "mixln_split",
]
