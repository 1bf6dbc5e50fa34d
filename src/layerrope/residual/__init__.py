"""Residuals: what a sublayer reads from the stream and how its output is written back. One scheme a file."""

from layerrope.residual.attn_res import AttentionResidual, Mixed
from layerrope.residual.base import Add, Branch, Ends, Residual, Single, Site, Sublayer
from layerrope.residual.expanded import ExpandedHyperConnection
from layerrope.residual.hyper import Copies, HyperConnection, check_streams, streams_init
from layerrope.residual.manifold import ManifoldHyperConnection
from layerrope.residual.post_norm import PostNorm, deepnorm_alpha, deepnorm_beta, keel_residual, mixln_split
from layerrope.residual.x0 import WithX0, blend

__all__ = [
    "Add",
    "AttentionResidual",
    "Branch",
    "Copies",
    "Ends",
    "ExpandedHyperConnection",
    "HyperConnection",
    "ManifoldHyperConnection",
    "Mixed",
    "PostNorm",
    "Residual",
    "Single",
    "Site",
    "Sublayer",
    "WithX0",
    "blend",
    "check_streams",
    "deepnorm_alpha",
    "deepnorm_beta",
    "keel_residual",
    "mixln_split",
    "streams_init",
]
