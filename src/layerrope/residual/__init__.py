"""Residuals: what a sublayer reads from the stream and how its output is written back. One scheme a file."""

from layerrope.residual.base import Add, Branch, Ends, Residual, Single, Site, Sublayer
from layerrope.residual.post_norm import PostNorm

__all__ = ["Add", "Branch", "Ends", "PostNorm", "Residual", "Single", "Site", "Sublayer"]
