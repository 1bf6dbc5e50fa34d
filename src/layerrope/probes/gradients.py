"""How large the loss's gradient is by depth: in the weights of each layer, and in the stream.

Dimensions: B batch, T position, D width, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layerrope.probes.trunk import Batches, Trunk, counted, displace, has_stream, n_counted, n_scored, window_losses
from layerrope.training.kinds import Model


def gradients(model: Model, batches: Batches) -> dict[str, Any]:
    """Of the mean loss over all counted tokens.

    Parameters outside the layers (the embedding, the gain table, the head) are not in it, and none of the
    parameters' own `grad` is touched.

    Returns:
        weights: Euclidean length of the gradient of all parameters of each layer, (L,); of a looped model one for
            each layer with weights of its own, through all iterations.
        stream: root mean square over counted positions of the length of dL/dh_t, L the sum of the losses, at the
            L + 1 depths; None for Attention Residuals, where there is no stream to displace.
    """
    groups = [[p for p in layer.parameters() if p.requires_grad] for layer in model.layers]
    flat: list[Tensor] = [p for group in groups for p in group]
    total = [torch.zeros_like(p, dtype=torch.float64) for p in flat]
    square: Tensor | float = 0.0
    streams = has_stream(model)
    for ids, targets in batches:
        to_weights, to_stream = _batch(model, ids, targets, flat, streams)
        for sums, grad in zip(total, to_weights, strict=True):
            sums += grad
        square = square + to_stream
    n, positions = n_scored(batches), n_counted(model, batches)
    lengths = iter(total)
    weights = [float(sum(next(lengths).square().sum() for _ in group) ** 0.5) / n for group in groups]
    return {
        "weights": weights,
        "stream": (square / positions).sqrt().tolist() if isinstance(square, Tensor) and streams else None,
    }


def _batch(
    model: Model, ids: Tensor, targets: Tensor, flat: list[Tensor], streams: bool
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the summed loss: of each parameter of `flat`, and sum_t |dL/dh_t|^2 at each depth, (L + 1,)."""
    with torch.enable_grad():
        trunk = Trunk.of(model, ids)
        h = trunk.stream(trunk.first)
        still = [torch.zeros_like(h, dtype=torch.float32, requires_grad=True) for _ in range(trunk.n_layer + 1)]
        state = trunk.first
        for depth in range(trunk.n_layer + 1):
            state = displace(model, state, still[depth]) if streams else state
            state = trunk.enter(depth, state)
            state = trunk.layer(depth, state) if depth < trunk.n_layer else state
        loss = window_losses(model, trunk.stream(state), targets).sum()
        wanted = flat + still if streams else flat
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    mask = counted(model, targets)
    lengths = [grad.double()[mask].square().sum() for grad in found[len(flat) :]]
    return list(found[: len(flat)]), torch.stack(lengths).cpu() if lengths else torch.zeros(())
