"""How large the stream is by depth, and how much each sublayer adds to it.

Dimensions: B batch, T position, D width, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from layerrope.probes.trunk import Batches, Trunk, counted, n_counted
from layerrope.stream import base_angles, site_gains
from layerrope.training.kinds import Model


@torch.no_grad()
def stream_sizes(model: Model, batches: Batches) -> dict[str, list[float]]:
    """The stream before the first sublayer and after each of the 2L, over all counted positions and channels.

    Returns:
        rms: sqrt(E h^2), (2L + 1,).
        variance: E h^2 - (E h)^2, the layer-wise variance of LNS (arXiv 2502.05795, section 2), (2L + 1,).
    """
    sums = [torch.stack([_moments(h[mask]) for h in streams]) for streams, mask in _streams(model, batches)]
    n_values = n_counted(model, batches) * model.config.d_model
    mean, square = (torch.stack(sums).sum(0) / n_values).unbind(-1)
    return {"rms": square.sqrt().tolist(), "variance": (square - mean.square()).clamp(min=0).tolist()}


def _streams(model: Model, batches: Batches) -> Iterator[tuple[list[Tensor], Tensor]]:
    for ids, targets in batches:
        trunk = Trunk.of(model, ids)
        yield (
            [trunk.stream(state) for state in (trunk.first, *(step.after for step in trunk.walk()))],
            counted(model, targets),
        )


def _moments(h: Tensor) -> Tensor:
    """(sum h, sum h^2) in float64."""
    h = h.double()
    return torch.stack((h.sum(), h.square().sum()))


@torch.no_grad()
def updates(model: Model, batches: Batches) -> dict[str, list[float]]:
    """What each of the 2L sublayers writes (y), against what it read (x), over counted positions.

    x is the stream where a sublayer reads the stream; the mix that it reads where it reads several streams or
    sources; r h + z x0 for nanochat.

    Returns:
        ratio: E|y| / E|x|, Euclidean lengths, (2L,).
        cosine: E cos(y, x), (2L,); 0 where y is 0.
    """
    sums = []
    for ids, targets in batches:
        trunk, mask = Trunk.of(model, ids), counted(model, targets)
        sums.append(torch.stack([_lengths(step.x[mask], step.y[mask]) for step in trunk.walk()]))
    n, y, x, cosine = torch.stack(sums).sum(0).unbind(-1)
    return {"ratio": (y / x).tolist(), "cosine": (cosine / n).tolist()}


def _lengths(x: Tensor, y: Tensor) -> Tensor:
    """(positions, sum |y|, sum |x|, sum cos(y, x)) in float64; x and y are (N, D)."""
    x, y = x.double(), y.double()
    cosine = F.cosine_similarity(y, x, dim=-1).sum()
    return torch.stack((cosine.new_tensor(len(x)), y.norm(dim=-1).sum(), x.norm(dim=-1).sum(), cosine))


@torch.no_grad()
def gains(model: Model, batches: Batches) -> dict[str, Any]:
    """The gains in front of and behind each sublayer, by site and layer: norm weight or gate times the table's row.

    Returns:
        rms: site -> root mean square over channels, (L,). A site without a gain has no entry.
        angle: site -> LayerRoPE's angle of the first channel pair in degrees, (L,); empty without its rotation.
    """
    rms = {site: rows.double().square().mean(-1).sqrt().tolist() for site, rows in site_gains(model).items()}
    angle = {site: rows.tolist() for site, rows in base_angles(model).items()}
    return {"rms": rms, "angle": angle}
