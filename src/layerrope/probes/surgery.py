"""What the loss says to a layer that is left out, or to two layers that change places.

Dimensions: W windows or images, L executed layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from layerrope.probes.trunk import Batches, Trunk, depth_of, n_scored, window_losses
from layerrope.training.kinds import Model

Losses = dict[Any, list[Tensor]]
"""What was done -> the losses of each window, batch by batch."""


@torch.no_grad()
def drop(model: Model, batches: Batches) -> dict[str, Any]:
    """Leave out one layer after the other: its input state is handed to the next layer as it is.

    With Attention Residuals the layer then adds no source.

    Returns:
        loss: of the whole model, nats per counted token.
        change: loss without the layer less `loss`, (L,).
        standard_error: of `change` over windows, paired, (L,).
        ratio: loss without the layer over `loss`, (L,).
    """
    losses: Losses = {layer: [] for layer in range(depth_of(model))}
    whole: list[Tensor] = []
    for ids, targets in batches:
        trunk = Trunk.of(model, ids)
        states = trunk.states()
        whole.append(window_losses(model, trunk.stream(states[-1]), targets))
        for layer in losses:
            state = trunk.run([None, *range(layer + 1, trunk.n_layer)], states[layer], layer)
            losses[layer].append(window_losses(model, trunk.stream(state), targets))
    return _changes(losses, whole, batches)


@torch.no_grad()
def swap(model: Model, batches: Batches, every_pair: bool = False) -> dict[str, Any]:
    """Let two layers change places: neighbours, or any two.

    Weights, depth constants and gain rows go with their layer.

    Args:
        every_pair: try all L (L - 1) / 2 pairs and not only the L - 1 neighbours.

    Returns:
        pairs: [i, j] of every swap; `loss`, `change`, `standard_error` and `ratio` as in `drop`, one a pair.
        permutation_score: mean over the pairs of |change| / loss.
    """
    pairs = list(_pairs(depth_of(model), every_pair))
    losses: Losses = {pair: [] for pair in pairs}
    whole: list[Tensor] = []
    for ids, targets in batches:
        trunk = Trunk.of(model, ids)
        states = trunk.states()
        whole.append(window_losses(model, trunk.stream(states[-1]), targets))
        for pair in pairs:
            state = trunk.run(swapped(trunk.n_layer, *pair)[pair[0] :], states[pair[0]], pair[0])
            losses[pair].append(window_losses(model, trunk.stream(state), targets))
    found = _changes(losses, whole, batches)
    score = [abs(change) / found["loss"] for change in found["change"]]
    return {"pairs": [list(p) for p in pairs], **found, "permutation_score": sum(score) / len(score) if score else None}


def swapped(n_layer: int, i: int, j: int) -> list[int]:
    """The order of the layers with i and j in each other's place.

    >>> swapped(4, 0, 2)
    [2, 1, 0, 3]
    """
    order = list(range(n_layer))
    order[i], order[j] = j, i
    return order


def _pairs(n_layer: int, every: bool) -> Iterable[tuple[int, int]]:
    return ((i, j) for i in range(n_layer) for j in range(i + 1, n_layer if every else min(i + 2, n_layer)))


def _changes(losses: Losses, whole: Sequence[Tensor], batches: Batches) -> dict[str, Any]:
    n = n_scored(batches)
    loss = float(torch.cat(list(whole)).sum()) / n
    differences = [torch.cat(each) - torch.cat(list(whole)) for each in losses.values()]
    changes = [float(d.sum()) / n for d in differences]
    return {
        "loss": loss,
        "change": changes,
        "standard_error": [_standard_error(d, n) for d in differences],
        "ratio": [1 + change / loss for change in changes],
    }


def _standard_error(sums: Tensor, n: int) -> float | None:
    """Of sum(sums) / n, the windows' sums taken as independent; None for a single window."""
    windows = len(sums)
    return float(sums.std()) * windows**0.5 / n if windows > 1 else None
