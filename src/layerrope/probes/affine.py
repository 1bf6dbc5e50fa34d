"""Is a layer more than a straight line? Each layer replaced by the affine map that fits it best, on text not fitted.

Dimensions: N positions, D width, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layerrope.probes.trunk import (
    Batches,
    Trunk,
    counted,
    depth_of,
    displace,
    has_stream,
    n_counted,
    n_scored,
    window_losses,
)
from layerrope.training.kinds import Model

LEAST = 4
"""Counted positions that a fit needs for each of its D + 1 unknowns a channel."""

NEEDED = 1.1
"""A layer whose replacement raises the loss by this factor is counted as needed (DepthBench)."""


@torch.no_grad()
def affine(model: Model, batches: Batches) -> dict[str, Any]:
    """Replace one layer after the other by the least-squares map h' = A h + b   (usefulness score of DepthBench)

    The windows are dealt out in turn: even ones for the fit, odd ones for the losses. Several streams all move by
    what the map adds to their sum or mean.

    Returns:
        loss: of the whole model on the held-out windows; ratio: loss with the replacement over it, (L,).
        useful: share of layers whose ratio exceeds 1.1; fitted_on, held_out: counted positions.
        why_not: in place of all that, the reason where it cannot be done.
    """
    fit, held = _deal(batches)
    least = LEAST * (model.config.d_model + 1)
    if not has_stream(model):
        return {"why_not": "Attention Residuals have no stream for a map to act on"}
    if n_counted(model, fit) < least or not n_scored(held):
        return {"why_not": f"the fit needs {least:,} tokens and as many again to test on: give more with --tokens"}
    maps = _fit(model, fit)
    whole, replaced = 0.0, [0.0] * len(maps)
    for ids, targets in held:
        trunk = Trunk.of(model, ids)
        states = trunk.states()
        whole += float(window_losses(model, trunk.stream(states[-1]), targets).sum())
        for layer, weights in enumerate(maps):
            moved = _moved(trunk, trunk.enter(layer, states[layer]), weights)
            state = trunk.run(range(layer + 1, trunk.n_layer), moved, layer + 1)
            replaced[layer] += float(window_losses(model, trunk.stream(state), targets).sum())
    ratio = [loss / whole for loss in replaced]
    useful = sum(r > NEEDED for r in ratio) / len(ratio)
    facts = {"fitted_on": n_counted(model, fit), "held_out": n_counted(model, held)}
    return {"loss": whole / n_scored(held), "ratio": ratio, "useful": useful, **facts}


def _deal(batches: Batches) -> tuple[Batches, Batches]:
    """Every other window for the fit, the rest held out."""
    ids, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    rows = len(batches[0][0])

    def take(start: int) -> Batches:
        return list(zip(ids[start::2].split(rows), targets[start::2].split(rows), strict=True))

    return take(0), take(1)


def _fit(model: Model, batches: Batches) -> list[Tensor]:
    """Each layer's map, (D + 1, D) float64, from normal equations with as little ridge as float64 asks for."""
    D, n_layer = model.config.d_model, depth_of(model)
    device = next(model.parameters()).device
    gram = torch.zeros(n_layer, D + 1, D + 1, dtype=torch.float64, device=device)
    cross = torch.zeros(n_layer, D + 1, D, dtype=torch.float64, device=device)
    for ids, targets in batches:
        trunk, mask = Trunk.of(model, ids), counted(model, targets)
        state = trunk.first
        for layer in range(n_layer):
            before = trunk.enter(layer, state)
            state = trunk.layer(layer, before)
            h, after = (trunk.stream(s)[mask].double() for s in (before, state))
            x = _with_one(h)
            gram[layer] += x.mT @ x
            cross[layer] += x.mT @ (after - h)
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    ridge = 1e-10 * scale * torch.eye(D + 1, dtype=torch.float64, device=device)
    return list(torch.linalg.solve(gram + ridge, cross))


def _moved(trunk: Trunk, state: Any, weights: Tensor) -> Any:
    h = trunk.stream(state)
    return displace(trunk.model, state, (_with_one(h.double()) @ weights).to(h.dtype))


def _with_one(h: Tensor) -> Tensor:
    return torch.cat((h, torch.ones_like(h[..., :1])), dim=-1)
