"""The logit lens: what the model's own head predicts from the stream at every depth.

Dimensions: B batch, T position, D width, V vocabulary, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerrope.probes.trunk import Batches, Trunk, depth_of, n_scored, scored
from layerrope.training.kinds import Model


@torch.no_grad()
def logit_lens(model: Model, batches: Batches) -> dict[str, list[float]]:
    """p_l = softmax(head(final norm(h_l))), with the model's own final norm   (nostalgebraist 2020)

    Returns:
        loss: of p_l on the targets, nats per counted token, (L + 1,); depth 0 is the embedding.
        kl: KL(p_L || p_l) in nats per counted token, (L + 1,); the last is 0.
        agreement: share of counted positions at which p_l and p_L have the same most likely token, (L + 1,).
    """
    sums = torch.zeros(depth_of(model) + 1, 3, dtype=torch.float64)
    for ids, targets in batches:
        trunk, mask = Trunk.of(model, ids), scored(targets)
        states = trunk.states()
        final = _log_probabilities(trunk, states[-1], mask)
        for depth, state in enumerate(states):
            sums[depth] += _compare(_log_probabilities(trunk, state, mask), final, targets[mask]).cpu()
    loss, kl, agreement = (sums / n_scored(batches)).unbind(-1)
    return {"loss": loss.tolist(), "kl": kl.tolist(), "agreement": agreement.tolist()}


def _log_probabilities(trunk: Trunk, state: object, mask: Tensor) -> Tensor:
    """(N, V) at the N counted targets."""
    return trunk.model.logits(trunk.stream(state)[mask]).log_softmax(-1)


def _compare(mine: Tensor, final: Tensor, targets: Tensor) -> Tensor:
    """(sum of losses, sum of KL(final || mine), number of equal most likely tokens) in float64."""
    loss = -mine.gather(-1, targets[:, None]).double().sum()
    kl = (final.exp() * (final - mine)).double().sum()
    return torch.stack((loss, kl, (mine.argmax(-1) == final.argmax(-1)).double().sum()))
