"""How alike the tokens of one text become by depth: collinearity and the rank they span.

Dimensions: T counted positions of one window, D width, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerrope.probes.angles import unit
from layerrope.probes.trunk import Batches, Trunk, counted, depth_of
from layerrope.training.kinds import Model

RANKS = ("collinearity", "stable_rank", "effective_rank", "centred_rank")
"""What is measured of one window, in the order of `_window`."""


@torch.no_grad()
def collapse(model: Model, batches: Batches) -> dict[str, list[float]]:
    """Of the (T, D) matrix of one window's streams, averaged over windows with two counted positions or more.

    Singular values s are of the matrix as it is. Its mean direction, or one outsized channel, then dominates them;
    `centred_rank` takes the mean over positions out first.

    Returns:
        collinearity: mean cosine between two different positions, (L + 1,).
        stable_rank: sum s^2 / max s^2, (L + 1,).
        effective_rank: exp(H(s^2 / sum s^2)), H in nats, (L + 1,).
        centred_rank: effective rank of the centred matrix, (L + 1,).
    """
    found: list[Tensor] = []
    for ids, targets in batches:
        trunk, mask = Trunk.of(model, ids), counted(model, targets)
        streams = torch.stack([trunk.stream(state) for state in trunk.states()]).double()  # (L + 1, B, T, D)
        found += [_window(streams[:, b, mask[b]]) for b in range(len(ids)) if int(mask[b].sum()) > 1]
    nothing = torch.full((1, depth_of(model) + 1, len(RANKS)), float("nan"))
    means = (torch.stack(found) if found else nothing).mean(0)
    return {name: column.tolist() for name, column in zip(RANKS, means.unbind(-1), strict=True)}


def _window(h: Tensor) -> Tensor:
    """The four numbers of one window at every depth: (L + 1, T, D) to (L + 1, 4)."""
    stable, effective = ranks(h)
    _, centred = ranks(h - h.mean(-2, keepdim=True), beside=h)
    return torch.stack((collinearity(h), stable, effective, centred), dim=-1)


def collinearity(h: Tensor) -> Tensor:
    """Mean cosine between different rows of (..., T, D): 1 when all point one way, 0 when they are orthogonal."""
    u = unit(h)
    T = h.shape[-2]
    return (u.sum(-2).square().sum(-1) - u.square().sum((-1, -2))) / (T * (T - 1))


def ranks(h: Tensor, beside: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Stable and effective rank of (..., T, D), from the eigenvalues s^2 of the smaller Gram matrix.

    0 for a matrix that is zero, or no more than rounding of `beside`, which it was made from.
    """
    gram = h @ h.mT if h.shape[-2] < h.shape[-1] else h.mT @ h
    square = torch.linalg.eigvalsh(gram).clamp(min=0)
    total = square.sum(-1)
    least = 0.0 if beside is None else 1e-24 * beside.square().sum((-1, -2))
    there = total > least
    share = square / torch.where(there, total, 1.0)[..., None]
    stable = torch.where(there, 1 / share.amax(-1).clamp(min=1e-300), 0.0)
    effective = torch.where(there, torch.special.entr(share).sum(-1).exp(), 0.0)
    return stable, effective
