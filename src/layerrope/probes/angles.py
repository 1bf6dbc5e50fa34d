"""Angles between the streams of different depths: how far layers turn what they pass on.

Dimensions: N counted positions, D width, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from layerrope.probes.trunk import Batches, Trunk, counted, depth_of
from layerrope.training.kinds import Model


def unit(h: Tensor) -> Tensor:
    """`h` (..., D) at length 1, float64; zero stays zero."""
    h = h.double()
    return h / h.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    """arccos(cos(a, b)) / pi in [0, 1] of unit vectors (..., D): (...).

    As 2 atan2(|a - b|, |a + b|), which is exactly 0 for equal and exactly 1 for opposite vectors; the arc cosine
    loses half of the digits there (Kahan, "How futile are mindless assessments of roundoff", section 12).
    """
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)) / math.pi


@torch.no_grad()
def angles(model: Model, batches: Batches) -> dict[str, list[float]]:
    """From each layer's input to its output, averaged over counted positions.

    Returns:
        neighbour: angular distance, (L,): 0 for a layer that changes nothing, 0.5 for one that turns by a right angle.
        block_influence: 1 - E cos(h_l, h_(l+1))   (ShortGPT, arXiv 2403.03853, Eq. 1), (L,).
    """
    sums, n = torch.zeros(depth_of(model), 2, dtype=torch.float64), 0
    for ids, targets in batches:
        trunk, mask = Trunk.of(model, ids), counted(model, targets)
        n += int(mask.sum())
        sums += torch.stack([_turn(*(unit(trunk.stream(s)[mask]) for s in pair)) for pair in _layers(trunk)]).cpu()
    neighbour, influence = (sums / n).unbind(-1)
    return {"neighbour": neighbour.tolist(), "block_influence": influence.tolist()}


@torch.no_grad()
def angle_matrix(model: Model, batches: Batches) -> dict[str, list[list[float]]]:
    """Angular distance between the streams at any two depths   (Gromov et al. 2024, arXiv 2403.17887, Eq. 4)

    Returns:
        matrix: (L + 1, L + 1), symmetric, zeros on the diagonal; depth 0 is the embedding.
    """
    size = depth_of(model) + 1
    sums, n = torch.zeros(size, size, dtype=torch.float64), 0
    for streams in _unit_streams(model, batches):
        n += len(streams[0])
        for i in range(size):
            for j in range(i + 1, size):
                sums[i, j] += float(angular_distance(streams[i], streams[j]).sum())
    return {"matrix": ((sums + sums.T) / n).tolist()}


def _unit_streams(model: Model, batches: Batches) -> Iterator[list[Tensor]]:
    """The streams at the L + 1 depths at length 1, (N, D) each, batch by batch."""
    for ids, targets in batches:
        trunk, mask = Trunk.of(model, ids), counted(model, targets)
        yield [unit(trunk.stream(state)[mask]) for state in trunk.states()]


def _layers(trunk: Trunk) -> Iterator[tuple[Any, Any]]:
    """The states before and after the sublayers of every layer."""
    state = trunk.first
    for layer in range(trunk.n_layer):
        before = trunk.enter(layer, state)
        state = trunk.layer(layer, before)
        yield before, state


def _turn(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((angular_distance(a, b).sum(), _one_less_cosine(a, b)))


def _one_less_cosine(a: Tensor, b: Tensor) -> Tensor:
    """sum (1 - cos) = sum |a - b|^2 / 2 of unit vectors (N, D)."""
    return (a - b).square().sum() / 2
